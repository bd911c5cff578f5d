"""Plain text from a stream of pieces: blanks collapsed, blocks apart, lists and quotations prefixed.

The HTML, EPUB and Word readers write through it, so that all of them give the same kind of text: Markdown's
headings, lists, tables and code, and nothing escaped.
"""

from __future__ import annotations

import re

from magicpig_cli.documents.parts import Mark

_BLANKS = re.compile(r"[ \t\n\r\f\xa0]+")


class TextWriter:
    """Collects text; `text` is what it came to and `marks` where its headings begin."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._line_ends = 2  # at the end of what is written so far; the beginning counts as a blank line
        self._wanted = 0  # line ends wanted before the next piece
        self._space = False  # a blank wanted before it
        self._prefixes: list[list[str]] = []  # [of its first line, of the others]
        self._marks: list[Mark] = []
        self._heading: tuple[int, int | None] | None = None  # level, start

    @property
    def marks(self) -> list[Mark]:
        return self._marks

    @property
    def length(self) -> int:
        """Characters so far."""
        return self._length

    def text(self) -> str:
        """All of it, ended by one newline."""
        body = "".join(self._pieces).rstrip()
        return f"{body}\n" if body else ""

    def words(self, text: str) -> None:
        """Running text; a run of blanks is one, and none stands at a line's ends."""
        for i, piece in enumerate(_BLANKS.split(text)):
            if i:
                self._space = True
            if piece:
                self._put(piece)

    def verbatim(self, text: str) -> None:
        """Text whose blanks and line ends matter."""
        for i, line in enumerate(text.split("\n")):
            if i:
                self.line_end()
            if line:
                self._put(line)

    def line_end(self) -> None:
        """End the line, or leave one more empty."""
        self._flush_wanted()
        self._space = False
        self._emit("\n")
        self._line_ends += 1

    def block(self, line_ends: int = 2) -> None:
        """What follows begins a line of its own, after an empty one if `line_ends` is 2."""
        self._wanted = max(self._wanted, line_ends)
        self._space = False

    def open_prefix(self, first: str, rest: str) -> None:
        """Begin every line with `rest`, and the next one with `first`."""
        self._prefixes.append([first, rest])

    def close_prefix(self) -> None:
        """An item without any text still shows its sign."""
        self._prefixes.pop()

    def open_heading(self, level: int) -> None:
        self.block()
        self._heading = (level, None)
        self._put("#" * level)
        self._space = True

    def close_heading(self) -> None:
        """Its text so far is the title of a part; one without text leaves nothing."""
        assert self._heading is not None
        level, start = self._heading
        self._heading = None
        assert start is not None
        written = "".join(self._tail(start))
        title = written.lstrip("#").strip()
        if title:
            self._marks.append(Mark(title, level, start))
        else:
            self._remove_tail(start)
        self.block()

    def _tail(self, start: int) -> list[str]:
        pieces: list[str] = []
        at = self._length
        for piece in reversed(self._pieces):
            if at <= start:
                break
            at -= len(piece)
            pieces.append(piece)
        return pieces[::-1]

    def _remove_tail(self, start: int) -> None:
        while self._length > start:
            self._length -= len(self._pieces.pop())
        self._line_ends = 2

    def _put(self, piece: str) -> None:
        self._flush_wanted()
        at_line_start = self._line_ends > 0
        if at_line_start:
            for prefix in self._prefixes:
                self._emit(prefix[0])
                prefix[0] = prefix[1]
            if self._heading and self._heading[1] is None:
                self._heading = (self._heading[0], self._length)
        elif self._space:
            self._emit(" ")
        self._space = False
        self._emit(piece)
        self._line_ends = 0

    def _flush_wanted(self) -> None:
        while self._line_ends < self._wanted:
            self._emit("\n")
            self._line_ends += 1
        self._wanted = 0

    def _emit(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)
