"""Chooses the watchers of both streams by where these streams lead."""

from __future__ import annotations

import os

from magicpig_cli.views.base import AnswerWatcher, ProgressWatcher, View
from magicpig_cli.views.jsonview import JsonAnswer
from magicpig_cli.views.plain import AnswerAtEnd, ErrorsOnly, PhaseLines, StreamedAnswer
from magicpig_cli.views.streams import Messages, Output


def open_view(
    output: Output, messages: Messages, quiet: bool, as_json: bool, instead: AnswerWatcher | None = None
) -> View:
    """The view for these streams.

    Panels are drawn where standard error is a terminal that can move its cursor. Where the
    answer goes to the same terminal, it is part of the drawing and is written out at the end.
    `instead` watches standard output in place of the answer's own watcher.
    """
    draws = messages.stream.is_terminal and os.environ.get("TERM", "dumb") != "dumb" and not quiet
    shares_screen = draws and output.stream.same_terminal(messages.stream)
    answer: AnswerWatcher
    if instead is not None:
        answer = instead
    elif as_json:
        answer = JsonAnswer(output)
    elif shares_screen:
        answer = AnswerAtEnd(output)
    else:
        answer = StreamedAnswer(output)
    progress: ProgressWatcher
    if quiet:
        progress = ErrorsOnly(messages)
    elif draws:
        from magicpig_cli.views.live import Live  # rich is only imported where it draws

        progress = Live(messages, shows_answer=shares_screen, leaves_for=output.stream)
    else:
        progress = PhaseLines(messages)
    return View(answer, progress)
