"""`magicpig models`: which models have a short name, what is on this disk, and fetching one beforehand."""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli.amounts import byte_size
from magicpig_cli.cli import exits, options
from magicpig_cli.cli.chatter import set_up_libraries
from magicpig_cli.cli.completion import model_names
from magicpig_cli.cli.help import Command, Group
from magicpig_cli.cli.signals import Signals
from magicpig_cli.views.streams import Messages, Output, ReaderGone, Standard, private

if TYPE_CHECKING:
    from magicpig_cli.models.sources import ModelSource

EXAMPLES = """\b
Examples:
  magicpig models ls
  magicpig models pull llama-3.2-1b
  magicpig ask book.txt "Who hides the letter?" --model llama-3.2-1b --offline"""
_LS_EXAMPLES = """\b
Examples:
  magicpig models ls
  magicpig models ls --json | jq -r '.[] | select(.on_disk) | .name'"""
_PULL_EXAMPLES = """\b
Examples:
  magicpig models pull smollm2-135m
  magicpig models pull Qwen/Qwen3-4B-Instruct-2507
\b
Gated models need an account of huggingface.co and its consent: `hf auth login`, or HF_TOKEN.
What has arrived when a download is interrupted is kept."""
_PATH_EXAMPLES = """\b
Examples:
  magicpig models path smollm2-135m
  ls -lh $(magicpig models path smollm2-135m)"""

app = typer.Typer(
    name="models",
    cls=Group,
    help="Models with a short name: list, fetch, find on disk.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A name of `models ls`, a hub id, a folder or a .gguf file.",
        autocompletion=model_names,
    ),
]

# A terminal line is redrawn at most this often.
_REDRAW_S = 0.1


@app.command("ls", cls=Command, epilog=_LS_EXAMPLES)
def list_models(context: typer.Context, as_json: options.JsonOption = False) -> int:
    """List the models that have a short name, and whether they are on this disk."""
    set_up_libraries(verbose=False, offline=False)
    rows = _rows()
    text = json.dumps(rows, indent=2) if as_json else _table(rows)
    return _print(context, text)


@app.command("pull", cls=Command, epilog=_PULL_EXAMPLES)
def pull(
    context: typer.Context,
    name: NameArgument,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Fetch a model now, so that a later question needs no network, and print its folder."""
    return _located(context, name, offline=False, quiet=quiet, verbose=verbose)


@app.command("path", cls=Command, epilog=_PATH_EXAMPLES)
def path(context: typer.Context, name: NameArgument, verbose: options.VerboseOption = False) -> int:
    """Print the folder of a model that is on this disk."""
    return _located(context, name, offline=True, quiet=False, verbose=verbose)


def _located(context: typer.Context, name: str, *, offline: bool, quiet: bool, verbose: bool) -> int:
    set_up_libraries(verbose, offline)
    standard: Standard = context.obj
    with private(standard.streams, keep_chatter=verbose) as own, Signals() as signals:
        progress = Progress(Messages(own.err), quiet)
        try:
            source = _resolve(name, offline, progress)
            signals.check()
            progress.clear()
            Output(own.out).write(f"{source.folder}\n")
        except BaseException as error:
            progress.clear()
            ending = exits.ending_of(error, signals)
            if verbose and ending.failure:
                exits.print_traceback(error, Messages(own.err))
            if ending.failure:
                Messages(own.err).line(f"magicpig: {ending.failure.sentence}")
            return ending.status
    return 0


def _resolve(name: str, offline: bool, progress: Progress) -> ModelSource:
    from magicpig_cli.models.sources import resolve

    # `auto` means the GPU's default only where torch sees one, and torch takes seconds to import.
    kind = _device_kind() if name == "auto" else "cpu"
    return resolve(name, offline=offline, device_kind=kind, progress=progress.show, notice=progress.notice)


def _device_kind() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _rows() -> list[dict[str, Any]]:
    from magicpig_cli.models.catalog import CATALOG
    from magicpig_cli.models.sources import on_disk

    rows = []
    for entry in CATALOG:
        folder = on_disk(entry)
        rows.append(
            {
                "name": entry.name,
                "hub_id": entry.hub_id,
                "parameters": entry.parameters,
                "weight_bytes": entry.weight_bytes,
                "context_tokens": entry.context_tokens,
                "gated": entry.gated,
                "licence": entry.licence,
                "on_disk": folder is not None,
                "path": None if folder is None else str(folder),
            }
        )
    return rows


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("NAME", "HUB ID", "PARAMETERS", "SIZE", "CONTEXT", "ACCESS", "ON DISK")
    lines = [
        (
            row["name"],
            row["hub_id"],
            _millions(row["parameters"]),
            byte_size(row["weight_bytes"]),
            f"{row['context_tokens']:,}",
            "gated" if row["gated"] else "free",
            "yes" if row["on_disk"] else "no",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    right = {2, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *lines]
    )


def _millions(n: int) -> str:
    return f"{n / 1e6:.0f} M" if n < 1e9 else f"{n / 1e9:.1f} B"


def _print(context: typer.Context, text: str) -> int:
    standard: Standard = context.obj
    try:
        Output(standard.streams.out).write(text + "\n")
    except ReaderGone:
        return exits.READER_GONE
    return 0


class Progress:
    """Standard error while something is fetched: one line that grows on a terminal, else one per phase."""

    def __init__(self, messages: Messages, quiet: bool) -> None:
        self._messages = messages
        self._quiet = quiet
        self._phase = ""
        self._drawn_at = 0.0
        self._drawn = False

    def show(self, phase: str, done: int, total: int | None) -> None:
        if self._quiet:
            return
        amount = byte_size(done) if total is None else f"{byte_size(done)} of {byte_size(total)}"
        if not self._messages.stream.is_terminal:
            if phase != self._phase and total is not None:
                self._messages.line(f"{phase}: {byte_size(total)}")
                self._phase = phase
            return
        if phase == self._phase and monotonic() - self._drawn_at < _REDRAW_S and done != total:
            return
        self._phase, self._drawn_at, self._drawn = phase, monotonic(), True
        self._messages.raw(f"\r\x1b[K{phase}: {amount}")

    def notice(self, sentence: str) -> None:
        self.clear()
        if not self._quiet:
            self._messages.line(f"magicpig: {sentence}")

    def clear(self) -> None:
        if self._drawn:
            self._messages.raw("\r\x1b[K")
            self._drawn = False
