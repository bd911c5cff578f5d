"""From token weights to places: sentences, lines, pages, sections, quotations, and what is put together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from magicpig_cli.documents import Document, PartRequest
from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.selection import select
from magicpig_cli.engine.events import Passage
from magicpig_cli.engine.passages import boundaries, find_passages, quotation


def document(text: str, marks: list[Mark] | None = None, pages: list[int] | None = None) -> Document:
    return Document("book.md", text, "utf-8", parts=build_parts(text, marks or [], pages or []))


def found(documents: list[Document], weights: list[dict[str, float]], count: int = 3) -> tuple[Passage, ...]:
    """Passages where a token is a character and each string of `weights` is heavy in its whole length."""
    scores = []
    for one, heavy in zip(documents, weights, strict=True):
        score = np.zeros(len(one.text))
        for piece, weight in heavy.items():
            at = one.text.index(piece)
            score[at : at + len(piece)] = weight / len(piece)
        scores.append(score)
    return find_passages(documents, [range(len(d.text)) for d in documents], scores, count)


def pieces(text: str) -> list[str]:
    cuts = [*boundaries(text), len(text)]
    return [text[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize(
    "expected",
    [
        ["The cat is called Tom. ", "It sleeps."],
        ['"Who are you?" ', "she asked him. ", "He went."],
        ["Mr. Holmes went out. ", "Nobody saw him go."],
        ["A title of some words\n\n", "The text below it."],
        ["A wrapped sentence goes\non to its end. ", "Done now."],
        ["What there is to buy:\n", "- nine apples\n", "- ten pears"],
        ["# A heading here\n", "Text under the heading."],
        [
            "\u5929\u6c17\u304c\u3044\u3044\u306e\u3067\u6563\u6b69\u3057\u307e\u3057\u305f\u3088\u3002",
            "\u96e8\u3002",
        ],
        [""],
    ],
)
def test_sentences(expected: list[str]) -> None:
    assert pieces("".join(expected)) == expected


def test_what_has_no_sentences_is_cut_into_lines() -> None:
    log = "".join(f"line {i} of a log without a full stop\n" for i in range(40))
    assert pieces(log) == log.splitlines(keepends=True)


def test_the_heaviest_come_first_with_their_shares() -> None:
    text = "One is the first. The second one stands here. And this is the third. Then comes the fourth."
    passages = found([document(text)], [{"first": 1.0, "third": 3.0}])
    assert [p.quotation for p in passages] == ["And this is the third.", "One is the first."]
    assert [p.share for p in passages] == pytest.approx([0.75, 0.25])
    assert [text[p.start : p.end] for p in passages] == [p.quotation for p in passages]


def test_neighbours_are_one_passage_and_leave_room_for_another() -> None:
    text = "The mill stands by the river. It is owned by Ada Lund. Nothing else happens. Rain fell all day."
    passages = found([document(text)], [{"mill": 2.0, "Ada Lund": 3.0, "Rain": 1.0}], 2)
    assert [p.quotation for p in passages] == [
        "The mill stands by the river. It is owned by Ada Lund.",
        "Rain fell all day.",
    ]


def test_nothing_heavy_nothing_found() -> None:
    assert found([document("Nobody looked here.")], [{}]) == ()


def test_lines_sections_and_pages() -> None:
    text = "# One\nFirst text here.\n\n## Two\n\nSecond text\nruns over lines.\n\fThird text on a page.\n"
    marks = [Mark("One", 1, 0), Mark("Two", 2, text.index("## Two"))]
    (second, third) = found(
        [document(text, marks, [0, text.index("Third")])], [{"Second": 2.0, "Third": 1.0}]
    )
    assert (second.first_line, second.last_line, second.section) == (6, 7, "Two")
    assert (second.first_page, second.last_page) == (1, 1)
    assert second.quotation == "Second text runs over lines."
    assert (third.first_line, third.first_page) == (8, 2)


def test_places_of_a_part_are_those_of_the_whole() -> None:
    text = "Page one begins. It goes on.\nPage two has this. The word is heron.\nPage three ends it all.\n"
    starts = [0, text.index("Page two"), text.index("Page three")]
    whole = document(text, [Mark("Start", 1, 0)], starts)
    part = select(whole, PartRequest("lines", "", 2, 2))
    (passage,) = found([part], [{"heron": 1.0}])
    assert (passage.first_line, passage.first_page, passage.section) == (2, 2, None)
    assert text[passage.start : passage.end] == "The word is heron."


def test_pages_of_a_part_that_cuts_them() -> None:
    text = "".join(f"Page {n} has this.\nAnd its second line, number {n}. More of it.\n" for n in (1, 2, 3))
    starts = [text.index(f"Page {n}") for n in (1, 2, 3)]
    part = select(document(text, [], starts), PartRequest("lines", "", 2, 5))
    passages = found([part], [{"number 1": 3.0, "number 2": 2.0, "Page 3": 1.0}])
    assert [(p.first_page, p.first_line) for p in passages] == [(1, 2), (2, 4), (3, 5)]
    assert all(text[p.start : p.end] == p.quotation for p in passages)


def test_several_documents() -> None:
    first = document("Nothing of note is here.\n")
    second = replace(document("Here it is: the word heron.\n"), source="b.txt")
    (passage,) = found([first, second], [{}, {"heron": 1.0}])
    assert (passage.source, passage.first_line, passage.share) == ("b.txt", 1, 1.0)


@pytest.mark.parametrize("peak", range(0, 900, 90))
def test_a_long_quotation_shows_its_heaviest_place_and_is_cut_between_words(peak: int) -> None:
    text = " ".join(f"word{i}" for i in range(130))
    at = text.index("word", peak)
    quoted = quotation(text, 0, len(text), at)
    assert len(quoted) <= 170
    assert text[at : at + 6].split()[0] in quoted
    inner = quoted.strip(". ")
    assert f" {inner} " in f" {text} "


def test_a_long_word_is_cut_anyway() -> None:
    quoted = quotation("x" * 1000, 0, 1000, 500)
    assert 100 < len(quoted) <= 170
