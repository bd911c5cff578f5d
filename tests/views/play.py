"""Plays a recorded request through the real views on this process's own streams.

Run as `python tests/views/play.py TEXT [SECONDS] [options]` on any streams; its options are those of `main`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from recorded import request

from magicpig_cli.cli import exits
from magicpig_cli.cli.signals import Signals
from magicpig_cli.engine.events import Event, Finished, PrefillProgress, Token
from magicpig_cli.views.choose import open_view
from magicpig_cli.views.streams import Messages, Output, claim_standard

# So that nothing is left running where a test forgot it.
_LONGEST_HOLD_S = 300


def hold(gate: Path) -> None:
    """Stand still until the file is there; meanwhile another beside it says that this is so."""
    gate.with_suffix(".reached").touch()
    end = time.monotonic() + _LONGEST_HOLD_S
    while not gate.exists() and time.monotonic() < end:
        time.sleep(0.02)


def played(
    text: str,
    pause_s: float,
    reading: Path | None,
    answering: Path | None,
    thoughts: str,
    thinking: Path | None,
) -> Iterator[Event]:
    """The events at their pace; amid the reading, after thoughts and before the end, at a gate, if any."""
    pieces = [word if i == 0 else " " + word for i, word in enumerate(text.split(" "))]
    for event in request(pieces[:-1], pieces[-1]):
        if thoughts and isinstance(event, Token):
            yield Token(0, 0, "", reasoning=thoughts)
            thoughts = ""
            if thinking:
                hold(thinking)
        if answering and isinstance(event, Finished):
            hold(answering)
        yield event
        is_reading = isinstance(event, PrefillProgress)
        if reading and is_reading and event.layer == 15 and event.fraction > 0.5:
            hold(reading)
        time.sleep(pause_s / 10 if is_reading else pause_s)


def main(arguments: argparse.Namespace) -> int:
    streams = claim_standard().streams
    with Signals() as signals:
        output = Output(streams.out, give_up=lambda: signals.requested is not None)
        messages = Messages(streams.err)
        view = open_view(output, messages, arguments.quiet, arguments.json, markdown=arguments.markdown)
        signals.guard_terminal(view.terminal_fd, view.suspend, view.resume)
        ending = exits.ANSWERED
        try:
            for event in played(
                arguments.text,
                arguments.pause_s,
                arguments.read_until,
                arguments.answer_until,
                arguments.thoughts,
                arguments.think_until,
            ):
                with signals.showing():
                    view.show(event)
        except BaseException as error:
            ending = exits.ending_of(error, signals)
        return exits.finish(view, ending, Messages(streams.err))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("pause_s", type=float, nargs="?", default=0.0)
    for name in ("--json", "--quiet", "--markdown"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--thoughts", default="")
    for name in ("--read-until", "--think-until", "--answer-until"):
        parser.add_argument(name, type=Path, metavar="FILE")
    sys.exit(main(parser.parse_args()))
