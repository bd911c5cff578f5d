"""Wraps a text that grows, for a column of a terminal, without wrapping it all again at every piece."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

from magicpig_cli.views.text import harmless

_WORD = re.compile(r" *[^ ]+ *| +")


class Wrapped:
    """Lines of a growing text; greedy, so that only the last line can still change."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._text = ""
        self._done: list[str] = []  # lines that stand
        self._last = ""  # the text of the line that may still grow

    def feed(self, piece: str) -> None:
        """More text."""
        self._text += piece
        self._wrap(harmless(piece).replace("\t", "    "))

    def resize(self, width: int) -> None:
        """Another width: everything is wrapped again."""
        if width == self.width:
            return
        self.width = width
        self._done, self._last = [], ""
        self._wrap(harmless(self._text).replace("\t", "    "))

    @property
    def n_lines(self) -> int:
        return len(self._done) + bool(self._last)

    def tail(self, n: int) -> list[str]:
        """The last `n` lines, without the spaces at their ends."""
        lines = self._done[-n:] if n > 0 else []
        if self._last and n > 0:
            lines = [*lines, self._last][-n:]
        return [line.rstrip(" ") for line in lines]

    def _wrap(self, piece: str) -> None:
        *whole, open_ = (self._last + piece).split("\n")
        for paragraph in whole:
            self._done.extend(wrap_line(paragraph, self.width))
        *stand, self._last = wrap_line(open_, self.width)
        self._done.extend(stand)


def wrap_line(text: str, width: int) -> list[str]:
    """One paragraph as lines of at most `width` cells, at least one line.

    Lines keep the spaces at their ends, so that joined they are the paragraph again; those
    spaces may stand out beyond the width.
    """
    lines, line, used = [], "", 0
    for word in _WORD.findall(text):
        bare = cell_len(word.rstrip(" "))
        if line and used + bare > width:
            lines.append(line)
            line, used = "", 0
        if bare > width:
            *full, word = chop_cells(word, width)
            lines.extend(full)
        line += word
        used += cell_len(word)
    return [*lines, line]
