"""Citations as people see them: below the answer on standard error, one place a line, nothing in a pipe."""

from __future__ import annotations

from recorded import request

from magicpig_cli.engine.events import Cited, Passage
from magicpig_cli.views.base import Ending
from magicpig_cli.views.plain import last_lines
from magicpig_cli.views.track import Track


def lines(cited: Cited, ending: Ending) -> list[str]:
    track = Track()
    for event in [*request(["It", " is"], " green."), cited]:
        track.fold(event)
    assert track.answer == "It is green."
    return last_lines(track, ending, 80)


def test_places_stand_above_the_summary() -> None:
    book = Passage("book.md", 0, 12, 1_234, 1_235, None, None, "Chapter 3", "It was green.", 0.413)
    report = Passage("report.pdf", 0, 12, 7, 7, 12, 13, None, "Costs were green.", 0.0123)
    head, first, second, summary = lines(Cited((book, report)), Ending(0))
    assert head == "most attended to, with the share of attention:"
    assert first == "1. book.md:1234 (Chapter 3), 41 %: It was green."
    assert second == "2. report.pdf, page 12, 1.2 %: Costs were green."
    assert "read" in summary


def test_nothing_to_cite_is_said() -> None:
    sentence, _ = lines(Cited(()), Ending(0))
    assert "no place of the document" in sentence


def test_an_interrupted_answer_has_no_places() -> None:
    assert len(lines(Cited(()), Ending(130, interrupted=True))) == 1
