"""The parts of a document (headings, chapters, pages), as its reader found them.

Readers mark where something begins; here marks become parts with an end, lines and pages. They
stay beside the text on its way to the prompt: `selection` cuts by them, the outline lists them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

PartKind = Literal["heading", "chapter", "definition", "time", "page"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a part begins: its title, its depth (1 is outermost) and the character it starts at."""

    title: str
    level: int
    start: int
    kind: PartKind = "heading"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a text.

    Attributes
    ----------
    title : str
    level : int
        1 is outermost; a page has level 1.
    start, end : int
        Characters of the text, end exclusive.
    kind : str
        What it was found as.
    first_line, last_line : int
        Lines of the text, counted from 1.
    first_page, last_page : int or None
        Pages of the source, counted from 1; None where it has none.
    """

    title: str
    level: int
    start: int
    end: int
    kind: PartKind
    first_line: int
    last_line: int
    first_page: int | None = None
    last_page: int | None = None


@dataclass(frozen=True, slots=True)
class PartInfo:
    """The part of a source that was asked for and is all that is read of it.

    Attributes
    ----------
    label : str
        Such as `section "Chapter 3"`, `pages 10-42` or `lines 1200:2400`.
    first_line, last_line : int
        Of the whole text, counted from 1.
    first_page, last_page : int or None
        None where the source has no pages.
    start, end : int
        Characters of the whole text, end exclusive.
    of_characters : int
        Characters of the whole text.
    """

    label: str
    first_line: int
    last_line: int
    first_page: int | None
    last_page: int | None
    start: int
    end: int
    of_characters: int


class Places:
    """Which line and which page a character of a text is on.

    Parameters
    ----------
    text : str
    pages : sequence of int
        The character at which each page starts, ascending; empty where there are no pages.
    """

    def __init__(self, text: str, pages: Sequence[int] = ()) -> None:
        self._length = len(text)
        self._lines = [0]
        at = text.find("\n")
        while at >= 0:
            self._lines.append(at + 1)
            at = text.find("\n", at + 1)
        if len(self._lines) > 1 and self._lines[-1] == self._length:
            self._lines.pop()  # the last line's own end
        self._pages = list(pages)

    @property
    def n_lines(self) -> int:
        return len(self._lines)

    def line_at(self, character: int) -> int:
        """Number of the line, from 1."""
        return bisect_right(self._lines, character)

    def page_at(self, character: int) -> int | None:
        """Number of the page, from 1; None where there are no pages."""
        return max(1, bisect_right(self._pages, character)) if self._pages else None

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """Characters from the start of one line to the end of another, end exclusive."""
        end = self._lines[last] if last < self.n_lines else self._length
        return self._lines[first - 1], end

    def part(self, title: str, level: int, start: int, end: int, kind: PartKind) -> Part:
        """A part with its lines and pages."""
        last = max(start, end - 1)
        return Part(
            title,
            level,
            start,
            end,
            kind,
            self.line_at(start),
            self.line_at(last),
            self.page_at(start),
            self.page_at(last),
        )


def build_parts(text: str, marks: Sequence[Mark], pages: Sequence[int] = ()) -> tuple[Part, ...]:
    """Parts in the order of the text, pages last.

    A part ends where the next one of its level or of a higher one begins.

    Parameters
    ----------
    text : str
    marks : sequence of Mark
        Ascending by `start`.
    pages : sequence of int
        The character at which each page starts.
    """
    places = Places(text, pages)
    parts = []
    for mark, end in zip(marks, _ends(marks, len(text)), strict=True):
        parts.append(places.part(_one_line(mark.title), mark.level, mark.start, end, mark.kind))
    for number, (start, end) in enumerate(pairwise([*pages, len(text)]), 1):
        parts.append(
            Part(
                f"page {number:,}",
                1,
                start,
                end,
                "page",
                places.line_at(start),
                places.line_at(max(start, end - 1)),
                number,
                number,
            )
        )
    return tuple(parts)


def _ends(marks: Sequence[Mark], length: int) -> list[int]:
    """Where each part ends, in one pass from the last to the first."""
    ends: list[int] = []
    later: list[Mark] = []  # those behind, by falling level: each ends all parts of its level and below
    for mark in reversed(marks):
        while later and later[-1].level > mark.level:
            later.pop()
        ends.append(later[-1].start if later else length)
        later.append(mark)
    return ends[::-1]


def sections(parts: Sequence[Part]) -> list[Part]:
    """The parts that have a title of their own."""
    return [part for part in parts if part.kind != "page"]


def pages(parts: Sequence[Part]) -> list[Part]:
    """The pages."""
    return [part for part in parts if part.kind == "page"]


def _one_line(title: str) -> str:
    return " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in title).split())
