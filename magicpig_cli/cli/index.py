"""`magicpig index`: read documents now, so that questions find them read. Arguments in, exit status out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from magicpig_cli.cli import options, values, wiring
from magicpig_cli.engine.events import Event, NotKept
from magicpig_cli.errors import MagicPigError
from magicpig_cli.views.base import View
from magicpig_cli.views.choose import open_view
from magicpig_cli.views.indexview import IndexPath
from magicpig_cli.views.streams import Messages, Output, Standard

if TYPE_CHECKING:
    from magicpig_cli.documents import PartRequest

EXAMPLES = """\b
Examples:
  magicpig index book.txt
  magicpig ask book.txt "Who hides the letter?"    # starts at once
  magicpig cache ls
\b
Interrupt it with Ctrl-C and run it again: it goes on where it was."""


def index(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, folders, or - for standard input.")
    ],
    model: options.ModelOption = "auto",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    quantize: options.QuantizeOption = "none",
    rope: options.RopeOption = None,
    system: options.SystemOption = None,
    section: options.SectionOption = None,
    pages: options.PagesOption = None,
    lines: options.LinesOption = None,
    threads: options.ThreadsOption = None,
    offline: options.OfflineOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Read the sources now, and keep what was read for questions that come later.

    Questions find it by content: the same text, read by the same model under the same --system, whatever
    the file is called. Prints the folder of the index.
    """
    engine_options = options.EngineOptions(
        model, device, dtype, threads=threads, offline=offline, cache=True, quantize=quantize, rope=rope
    ).checked()
    instruction = None if system is None else values.plain_text("--system", system)
    part = options.part_request(section, pages, lines)
    with wiring.own_streams(context, verbose, offline) as standard:

        def view_of(output: Output, messages: Messages) -> View:
            instead = None if as_json else IndexPath(output)
            return open_view(output, messages, quiet, as_json, instead, chatter=verbose)

        def work(watch: wiring.Watch) -> None:
            _read(sources, part, instruction, engine_options, standard, watch)

        return wiring.watched(standard, view_of, work, verbose)


def _read(
    sources: list[str],
    part: PartRequest | None,
    instruction: str | None,
    engine_options: options.EngineOptions,
    standard: Standard,
    watch: wiring.Watch,
) -> None:
    documents = wiring.read_documents(sources, part, standard, watch.view)
    watch.signals.check()
    with wiring.loaded_engine(engine_options, watch.show) as engine:
        if not engine.keeps:
            raise MagicPigError("no index is made: there is no folder for it; set MAGICPIG_CACHE to one")
        watch.show_all(_as_long_as_it_is_kept(engine.read(documents, instruction)))
    if watch.view.track.index_path is None:
        raise MagicPigError("the text was read, but the index that there is of it cannot be used")


def _as_long_as_it_is_kept(events: Iterator[Event]) -> Iterator[Event]:
    """The events of a reading, which is for nothing once it cannot be kept."""
    for event in events:
        if isinstance(event, NotKept):
            raise MagicPigError(f"no index is made: {event.text}")
        yield event
