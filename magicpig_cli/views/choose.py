"""Chooses the watchers of both streams by where these streams lead."""

from __future__ import annotations

import os
from typing import Literal

from magicpig_cli.views.base import AnswerWatcher, ProgressWatcher, View
from magicpig_cli.views.jsonview import JsonAnswer
from magicpig_cli.views.plain import AnswerAtEnd, ErrorsOnly, PhaseLines, StreamedAnswer
from magicpig_cli.views.streams import Messages, Output


def open_view(
    output: Output,
    messages: Messages,
    quiet: bool,
    as_json: bool,
    instead: AnswerWatcher | None = None,
    markdown: bool = False,
    long_answers: Literal["other screen", "below"] = "other screen",
    chatter: bool = False,
) -> View:
    """The view for these streams.

    Panels are drawn where standard error is a terminal that can move its cursor. Where the
    answer goes to the same terminal, it is part of the drawing and is written out at the end.
    `instead` watches standard output in place of the answer's own watcher. `markdown` asks for an answer
    that is rendered, where it goes to a terminal. `long_answers` says where an answer is drawn while it
    grows: on the terminal's other screen, if it has one, or below what stands there. With `chatter`
    libraries write to the terminal as well, so nothing is drawn on it.
    """
    can_draw = messages.stream.is_terminal and os.environ.get("TERM", "dumb") != "dumb"
    draws = can_draw and not quiet and not chatter
    shares_screen = draws and output.stream.same_terminal(messages.stream)
    answer: AnswerWatcher
    if instead is not None:
        answer = instead
    elif as_json:
        answer = JsonAnswer(output)
    elif markdown and output.stream.is_terminal:
        answer = _rendered(output)
    elif shares_screen:
        answer = AnswerAtEnd(output)
    else:
        answer = StreamedAnswer(output)
    progress: ProgressWatcher
    if quiet:
        progress = ErrorsOnly(messages)
    elif draws:
        from magicpig_cli.views.live import Live  # rich is only imported where it draws
        from magicpig_cli.views.wholescreen import WholeScreen, has_other_screen

        other = shares_screen and long_answers == "other screen" and has_other_screen()
        progress = Live(
            messages,
            shows_answer=shares_screen,
            leaves_for=output.stream,
            answer_screen=WholeScreen(messages) if other else None,
        )
    else:
        progress = PhaseLines(messages)
    return View(answer, progress)


def _rendered(output: Output) -> AnswerWatcher:
    """Rendered at the end, or plain on a terminal that cannot show it."""
    from magicpig_cli.views.markdown import RenderedAnswer, can_render

    return RenderedAnswer(output) if can_render(output) else AnswerAtEnd(output)
