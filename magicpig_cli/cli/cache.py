"""`magicpig cache`: what was read and is kept on this disk, how much it takes, and removing it."""

from __future__ import annotations

import json
from collections.abc import Sequence
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

    def matches(self, name: str) -> bool:
        """Whether a person may mean it by this: the beginning of its key, or a document's name."""
        names = {*self.documents, *(Path(document).name for document in self.documents)}
        return (len(name) >= 4 and self.key.startswith(name)) or name in names


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
        found = [entry for entry in entries if entry.matches(name)]
        if not found:
            raise UsageError(f"nothing of the name {harmless(name)} is kept; see `magicpig cache ls`")
        chosen += [entry for entry in found if entry not in chosen]
    return _removed(context, folder, chosen, quiet)


@app.command("clear", cls=Command, epilog=_CLEAR_EXAMPLES)
def clear(context: typer.Context, quiet: options.QuietOption = False) -> int:
    """Remove all indexes and interrupted readings; models stay."""
    folder = _folder()
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
    heads, damaged = folder.heads()
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
        for head in heads
    ]
    nothing = {"id": None, "dtype": None, "quantization": None}
    entries += [
        Entry(p.key, p.documents, nothing | {"id": p.model_id}, p.n_tokens, p.n_bytes, p.last_used,
              "being read" if p.is_going_on else "interrupted", p.is_going_on, p.path)
        for p in folder.partials()
    ]  # fmt: skip
    for key, _ in damaged:
        where = folder.root / key
        n_bytes, last_used = _measured(where)
        entries.append(Entry(key, (), nothing, 0, n_bytes, last_used, "damaged", False, where))
    return entries


def _measured(folder: Path) -> tuple[int, float]:
    """Bytes of a folder's files and the time of its last change, as far as they can be read."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir()), folder.stat().st_mtime
    except OSError:
        return 0, 0.0


def _removed(context: typer.Context, folder: IndexFolder, entries: Sequence[Entry], quiet: bool) -> int:
    n_bytes, kept = 0, []
    for entry in entries:
        is_partial = entry.state in ("interrupted", "being read")
        if folder.remove_partial(entry.key) if is_partial else folder.remove(entry.key):
            n_bytes += entry.n_bytes
        else:
            kept.append(entry)
    standard: Standard = context.obj
    if not quiet and len(entries) > len(kept):
        removed = count(len(entries) - len(kept), "entry").replace("entrys", "entries")
        Messages(standard.streams.err).line(f"removed {removed}, {byte_size(n_bytes)}")
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
