"""What commands around the engine share: a view, signals, and both streams ended whatever happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import typer

from magicpig_cli.cli import exits, options
from magicpig_cli.cli.chatter import set_up_libraries
from magicpig_cli.cli.signals import Interrupted, Signals
from magicpig_cli.engine.events import DocumentInfo, Event, Notice
from magicpig_cli.views.base import View
from magicpig_cli.views.streams import Messages, Output, ReaderGone, Standard, private

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import RenderableType

    from magicpig_cli.documents import Document, PartRequest
    from magicpig_cli.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Watch:
    """One request's view, and the signals that may end it."""

    view: View
    signals: Signals
    output: Output

    def show(self, event: Event) -> None:
        """Hand an event to the view.

        Raises
        ------
        Interrupted, ReaderGone
        """
        with self.signals.showing():
            self.view.show(event)
        if not self.output.stream.has_reader:
            raise ReaderGone

    def show_all(self, events: Iterator[Event]) -> None:
        """Hand over all events; their source is closed whatever happens."""
        with closing(cast("Generator[Event, None, None]", events)):
            for event in events:
                self.show(event)


def watched(
    standard: Standard,
    make_view: Callable[[Output, Messages], View],
    work: Callable[[Watch], None],
    verbose: bool,
) -> int:
    """Do some work before the eyes of a view, and give the exit status."""
    messages = Messages(standard.streams.err)
    with Signals() as signals:
        output = Output(standard.streams.out, give_up=lambda: signals.requested is not None)
        view = make_view(output, messages)
        signals.guard_terminal(view.terminal_fd, view.suspend, view.resume)
        ending = exits.ANSWERED
        try:
            work(Watch(view, signals, output))
        except BaseException as error:
            ending = exits.ending_of(error, signals)
            if verbose and ending.failure:
                view.clear()
                exits.print_traceback(error, messages)
        status = ending.status
        try:
            with signals.showing():
                status = exits.finish(view, ending, messages)
        except Interrupted:
            status = status or signals.exit_status
        return status


def read_documents(
    sources: Sequence[str], part: PartRequest | None, standard: Standard, view: View
) -> list[Document]:
    """The sources as text, and what the view should tell of them."""
    from magicpig_cli.documents import read_sources

    started = perf_counter()
    documents = read_sources(sources, sys.stdin.buffer if standard.stdin_open else None, part)
    infos = [DocumentInfo(d.source, d.encoding, len(d.text), None, d.part) for d in documents]
    view.read(infos, [notice for d in documents for notice in d.notices], perf_counter() - started)
    return documents


@contextmanager
def own_streams(context: typer.Context, verbose: bool, offline: bool) -> Iterator[Standard]:
    """The standard streams for this command alone, with libraries set up to be quiet.

    Raises
    ------
    ReaderGone
        If standard output was closed before the program began.
    """
    standard: Standard = context.obj
    if standard.streams.out.fd is None:
        raise ReaderGone
    set_up_libraries(verbose, offline)
    with private(standard.streams, keep_chatter=verbose) as own:
        yield Standard(own, standard.stdin_open)


def notices_to(progress: Callable[[str], None]) -> Callable[[Any], None]:
    """A listener for `Engine.load` that passes on what people should read, and nothing else."""

    def report(event: Any) -> None:
        if isinstance(event, Notice):
            progress(event.text)

    return report


def print_page(page: RenderableType, output: Output, width: int) -> None:
    """Print something of rich's in plain characters, as wide as the terminal, or `width` elsewhere."""
    from io import StringIO

    from rich.console import Console

    if output.stream.is_terminal:
        width = os.get_terminal_size(output.stream.fd or 1).columns
    text = StringIO()
    console = Console(file=text, width=width, force_terminal=False, no_color=True, markup=False, emoji=False)
    console.print(page)
    output.write(text.getvalue())


@contextmanager
def loaded_engine(engine_options: options.EngineOptions, show: Callable[[Any], None]) -> Iterator[Engine]:
    """A loaded engine, which lets go of its indexes at the end."""
    from magicpig_cli.engine.engine import Engine

    engine = Engine.load(options.engine_settings(engine_options), report=show)
    try:
        yield engine
    finally:
        engine.close()
