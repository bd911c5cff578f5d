"""Plays a recorded request through the real views on this process's own streams.

Run as `python tests/views/play.py TEXT [SECONDS] [--json] [--quiet] [--markdown]` on any streams.
"""

from __future__ import annotations

import sys
import time

from recorded import request

from magicpig_cli.cli import exits
from magicpig_cli.cli.signals import Signals
from magicpig_cli.engine.events import Event, PrefillProgress
from magicpig_cli.views.choose import open_view
from magicpig_cli.views.streams import Messages, Output, claim_standard


def main(text: str, pause_s: float, as_json: bool, quiet: bool, markdown: bool) -> int:
    streams = claim_standard().streams
    with Signals() as signals:
        output = Output(streams.out, give_up=lambda: signals.requested is not None)
        view = open_view(output, Messages(streams.err), quiet, as_json, markdown=markdown)
        signals.guard_terminal(view.terminal_fd, view.suspend, view.resume)
        ending = exits.ANSWERED
        words = text.split(" ")
        pieces = [word if i == 0 else " " + word for i, word in enumerate(words)]

        def show(event: Event) -> None:
            with signals.showing():
                view.show(event)

        try:
            for event in request(pieces[:-1], pieces[-1]):
                show(event)
                time.sleep(pause_s / 10 if isinstance(event, PrefillProgress) else pause_s)
        except BaseException as error:
            ending = exits.ending_of(error, signals)
        return exits.finish(view, ending, Messages(streams.err))


if __name__ == "__main__":
    positional = [a for a in sys.argv[1:] if not a.startswith("--")]
    sys.exit(
        main(
            positional[0],
            float(positional[1]) if len(positional) > 1 else 0.0,
            "--json" in sys.argv,
            "--quiet" in sys.argv,
            "--markdown" in sys.argv,
        )
    )
