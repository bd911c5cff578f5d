"""Draws frames at the cursor of a terminal and takes them away again.

Not rich.live: a frame here is placed by absolute columns with wrapping off, so a glyph whose
width terminals disagree about (emoji families) cannot shift a panel or break a row; a resize
accounts for rows that the terminal wrapped anew; and only rows that changed are sent.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from rich.cells import cell_len

from magicpig_cli.views.streams import Messages

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # one frame at once, where the terminal can

_SGR = {"": "", "bold": "1", "dim": "2", "accent": "36", "good": "32", "title": "1"}
_COLOURS = ("accent", "good")


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one style of `_SGR`."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a frame: spans from the left, and perhaps more from a column on."""

    left: tuple[Span, ...] = ()
    column: int = 0
    right: tuple[Span, ...] = ()

    @property
    def cells(self) -> int:
        """Columns that it covers."""
        if self.right:
            return self.column + sum(cell_len(span.text) for span in self.right)
        return sum(cell_len(span.text) for span in self.left)

    def ansi(self, colour: bool) -> str:
        """The row as a terminal takes it."""
        text = "".join(_styled(span, colour) for span in self.left)
        if self.right:
            text += f"\x1b[{self.column + 1}G" + "".join(_styled(span, colour) for span in self.right)
        return text


@dataclass(frozen=True, slots=True)
class Size:
    columns: int
    rows: int


class Screen:
    """The part of a terminal from the cursor's row downwards.

    Parameters
    ----------
    messages : Messages
        The terminal.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._colour = not os.environ.get("NO_COLOR")
        self._shown: list[str] = []
        self._cells: list[int] = []
        self._columns = 0

    def size(self) -> Size:
        """Of the terminal now; 80 x 24 where it doesn't tell."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:
            columns, rows = 0, 0
        return Size(columns or 80, rows or 24)

    def draw(self, rows: list[Row]) -> None:
        """Show a frame in place of the last one; nothing while another job has the terminal."""
        if self._in_background():
            return
        size = self.size()
        rows = rows[: max(1, size.rows - 1)]
        fresh = size.columns != self._columns
        out = [_BEGIN, _HIDE, _NO_WRAP, self._to_top(size.columns)]
        lines = [row.ansi(self._colour) for row in rows]
        for i, line in enumerate(lines):
            if i:
                out.append("\r\n")
            known = i < len(self._shown) and not fresh
            if not known or line != self._shown[i]:
                out.append(f"\x1b[K{line}")
        if fresh or len(self._shown) > len(lines):
            out.append("\x1b[J")
        out += ["\r", _WRAP, _END]
        self._messages.raw("".join(out))
        self._shown, self._cells, self._columns = lines, [row.cells for row in rows], size.columns

    def erase(self) -> None:
        """Take the frame away; the cursor stands where the frame began, visible."""
        if not self._shown or self._in_background():
            return
        self._messages.raw(self._to_top(self.size().columns) + "\x1b[J" + _WRAP + _SHOW)
        self._shown, self._cells = [], []

    @property
    def _fd(self) -> int:
        return -1 if self._messages.stream.fd is None else self._messages.stream.fd

    def _to_top(self, columns: int) -> str:
        """From the last row of the shown frame to its first, in rows of the width that is now."""
        wrapped = [max(1, math.ceil(cells / columns)) for cells in self._cells]
        # The cursor is at the start of the last row, which counts with its wrapped part only before it.
        up = sum(wrapped[:-1])
        return "\r" + (f"\x1b[{up}A" if up else "")

    def _in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:
            return False  # not our controlling terminal: nobody else's job either


def _styled(span: Span, colour: bool) -> str:
    code = _SGR[span.style] if colour or span.style not in _COLOURS else ""
    return f"\x1b[{code}m{span.text}\x1b[0m" if code and span.text else span.text
