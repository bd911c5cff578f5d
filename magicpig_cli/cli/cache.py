"""`magicpig cache`: what was read and is kept on this disk, how much it takes, and removing it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli.amounts import byte_size
from magicpig_cli.cli import exits, options
from magicpig_cli.cli.completion import kept_documents
from magicpig_cli.cli.help import Command, Group
from magicpig_cli.errors import MagicPigError, UsageError
from magicpig_cli.views.streams import Messages, Output, ReaderGone, Standard
from magicpig_cli.views.text import count, harmless

if TYPE_CHECKING:
    from magicpig_cli.store.index_folder import IndexFolder

EXAMPLES = """\b
Examples:
  magicpig cache ls
  magicpig cache rm book.txt
  MAGICPIG_CACHE_LIMIT=20GB magicpig index book.txt"""
_LS_EXAMPLES = """\b
Examples:
  magicpig cache ls
  magicpig cache ls --json | jq 'map(.bytes) | add'"""
_RM_EXAMPLES = """\b
Examples:
  magicpig cache rm book.txt
  magicpig cache rm 3fa94c1e"""
_CLEAR_EXAMPLES = """\b
Examples:
  magicpig cache clear"""
_PATH_EXAMPLES = """\b
Examples:
  du -sh $(magicpig cache path)"""

app = typer.Typer(
    name="cache",
    cls=Group,
    help="What was read and is kept: list, remove, find on disk.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
)

# Enough of a key to tell indexes apart on a screen.
_KEY_LETTERS = 8
_SHORTEST_KEY = 4
_NAME_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """An index, or a reading that was interrupted, as it is listed."""

    key: str
    documents: tuple[str, ...]
    model: dict[str, Any]
    tokens: int
    n_bytes: int
    last_used: float
    state: str
    in_use: bool
    path: Path

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "documents": list(self.documents),
            "model": self.model,
            "tokens": self.tokens,
            "bytes": self.n_bytes,
            "last_used": _when(self.last_used).isoformat(),
            "state": self.state,
            "in_use": self.in_use,
            "path": str(self.path),
        }

    def short_of(self, name: str) -> set[str]:
        """What a person may mean by a part of a name: its key by the beginning, documents by the end."""
        if len(name) >= _SHORTEST_KEY and self.key.startswith(name):
            return {self.key}
        return {document for document in self.documents if Path(document).name == name}


@app.command("ls", cls=Command, epilog=_LS_EXAMPLES)
def list_indexes(context: typer.Context, as_json: options.JsonOption = False) -> int:
    """List what is kept, the last used first."""
    entries = _entries(_folder())
    if as_json:
        return _print(context, json.dumps([entry.as_json() for entry in entries], indent=2))
    return _print(context, _table(entries)) if entries else 0


@app.command("rm", cls=Command, epilog=_RM_EXAMPLES)
def remove(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="A key of `cache ls`, its first letters, or a document's name.",
            autocompletion=kept_documents,
        ),
    ],
    quiet: options.QuietOption = False,
) -> int:
    """Remove indexes."""
    folder = _folder()
    entries = _entries(folder)
    chosen = []
    for name in names:
        chosen += [entry for entry in _meant(name, entries) if entry not in chosen]
    return _removed(context, folder, chosen, quiet)


@app.command("clear", cls=Command, epilog=_CLEAR_EXAMPLES)
def clear(context: typer.Context, quiet: options.QuietOption = False) -> int:
    """Remove all indexes and interrupted readings; models stay."""
    folder = _folder()
    with _changing(folder):
        folder.clean()
    return _removed(context, folder, _entries(folder), quiet)


@app.command("path", cls=Command, epilog=_PATH_EXAMPLES)
def path(context: typer.Context) -> int:
    """Print the folder that indexes are kept in."""
    return _print(context, str(_folder().root))


def kept_names() -> list[str]:
    """What `rm` takes: short keys, and documents' names."""
    entries = _entries(_folder())
    documents = {document for entry in entries for document in entry.documents}
    return [*(entry.key[:_KEY_LETTERS] for entry in entries), *sorted(documents)]


def _folder() -> IndexFolder:
    from magicpig_cli.models.cachedir import cache_root, find_cached
    from magicpig_cli.store.index_folder import INDEXES, IndexFolder

    return IndexFolder(find_cached(INDEXES) or cache_root() / INDEXES)


def _entries(folder: IndexFolder) -> list[Entry]:
    contents = folder.contents()
    entries = [
        Entry(
            head.key,
            head.documents,
            {"id": head.model.id, "dtype": head.model.dtype, "quantization": head.model.quantization},
            head.n_tokens,
            head.n_bytes,
            head.last_used,
            "whole",
            folder.is_in_use(head.key),
            folder.root / head.key,
        )
        for head in contents.heads
    ]
    nothing = {"id": None, "dtype": None, "quantization": None}
    entries += [
        Entry(p.key, p.documents, nothing | {"id": p.model_id}, p.n_tokens, p.n_bytes, p.last_used,
              "being read" if p.is_going_on else "interrupted", p.is_going_on, p.path)
        for p in contents.partials
    ]  # fmt: skip
    entries += [
        Entry(entry.key, (), nothing, 0, entry.n_bytes, entry.last_used, "damaged", False, entry.path)
        for entry in contents.unusable
    ]
    return entries


def _meant(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """All that has this name; where nothing has, all that it is short for, if that is one thing."""
    exact = [entry for entry in entries if entry.key == name or name in entry.documents]
    if exact:
        return exact
    short = {meant for entry in entries for meant in entry.short_of(name)}
    if not short:
        raise UsageError(f"nothing of the name {harmless(repr(name))} is kept; see `magicpig cache ls`")
    if len(short) > 1:
        several = ", ".join(harmless(meant) for meant in sorted(short))
        raise UsageError(
            f"{harmless(name)} may be any of {several}; name one in full, or a key of `cache ls`"
        )
    return [entry for entry in entries if entry.short_of(name)]


@contextmanager
def _changing(folder: IndexFolder) -> Iterator[None]:
    """Say in a sentence where nothing can be removed: a read-only disk, a folder of somebody else."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MagicPigError(f"nothing can be removed from {folder.root}: {reason}; see its rights") from None


def _removed(context: typer.Context, folder: IndexFolder, entries: Sequence[Entry], quiet: bool) -> int:
    n_bytes, kept = 0, []
    for entry in entries:
        with _changing(folder):
            removed = folder.remove_folder(entry.path)
        if removed:
            n_bytes += entry.n_bytes
        else:
            kept.append(entry)
    standard: Standard = context.obj
    if not quiet and len(entries) > len(kept):
        n_removed = count(len(entries) - len(kept), "entry").replace("entrys", "entries")
        Messages(standard.streams.err).line(f"removed {n_removed}, {byte_size(n_bytes)}")
    if kept:
        names = ", ".join(entry.key[:_KEY_LETTERS] for entry in kept)
        raise MagicPigError(f"{names} is being used by another magicpig and was not removed; end that first")
    return 0


def _table(entries: Sequence[Entry]) -> str:
    head = ("KEY", "DOCUMENTS", "MODEL", "TOKENS", "SIZE", "LAST USED", "")
    lines = [head]
    for entry in entries:
        state = entry.state if entry.state != "whole" else "in use" if entry.in_use else ""
        lines.append(
            (
                entry.key[:_KEY_LETTERS],
                _shortened(harmless(", ".join(entry.documents) or "?")),
                _shortened(harmless(str(entry.model["id"] or "?"))),
                f"{entry.tokens:,}",
                byte_size(entry.n_bytes),
                f"{_when(entry.last_used).astimezone():%Y-%m-%d %H:%M}",
                state,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = {3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _NAME_COLUMNS else "…" + text[1 - _NAME_COLUMNS :]


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _print(context: typer.Context, text: str) -> int:
    standard: Standard = context.obj
    try:
        Output(standard.streams.out).write(text + "\n")
    except ReaderGone:
        return exits.READER_GONE
    return 0
