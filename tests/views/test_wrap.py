"""Growing text, wrapped."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from magicpig_cli.views.wrap import Wrapped, wrap_line

TEXTS = st.text(st.sampled_from("ab c  \n漢é👍\u0301-\t"), max_size=120)


@given(TEXTS, st.integers(2, 30), st.lists(st.integers(0, 120), max_size=6))
def test_pieces_wrap_like_the_whole(text: str, width: int, cuts: list[int]) -> None:
    at_once = Wrapped(width)
    at_once.feed(text.replace("\t", " "))
    in_pieces = Wrapped(width)
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    for start, stop in itertools.pairwise(edges):
        in_pieces.feed(text[start:stop].replace("\t", " "))
    assert in_pieces.tail(1000) == at_once.tail(1000)


@given(TEXTS, st.integers(2, 30))
def test_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    for paragraph in text.replace("\t", " ").split("\n"):
        lines = wrap_line(paragraph, width)
        assert "".join(lines) == paragraph
        assert all(cell_len(line.rstrip(" ")) <= width for line in lines)


def test_words_stay_whole() -> None:
    assert [line.rstrip() for line in wrap_line("the keeper of the lighthouse", 10)] == [
        "the keeper",
        "of the",
        "lighthouse",
    ]


def test_a_word_wider_than_the_column_is_cut() -> None:
    assert wrap_line("abcdefghij", 4) == ["abcd", "efgh", "ij"]


def test_another_width_wraps_all_again() -> None:
    text = Wrapped(10)
    text.feed("the keeper of ")
    text.resize(40)
    text.feed("the lighthouse")
    assert text.tail(5) == ["the keeper of the lighthouse"]


def test_control_sequences_are_spelled_out() -> None:
    text = Wrapped(40)
    text.feed("a\x1b[2Jb\rc\td")
    assert text.tail(1) == ["a\\x1b[2Jb\\x0dc    d"]


def test_the_tail_is_bounded() -> None:
    text = Wrapped(10)
    text.feed("\n".join(map(str, range(50))))
    assert text.tail(3) == ["47", "48", "49"]
    assert text.tail(0) == []
    assert text.n_lines == 50
