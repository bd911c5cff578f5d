"""Draws frames at the cursor of a terminal and takes them away again.

Not rich.live: a frame here is placed by absolute columns with wrapping off, so a glyph whose
width terminals disagree about (emoji families) cannot shift a panel or break a row; a resize
accounts for rows that the terminal wrapped anew, if it is one that does; only rows that changed are sent.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from rich.cells import cell_len

from magicpig_cli.views.streams import Messages, Stream

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # one frame at once, where the terminal can

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
        self._colour = wants_colour()
        self._wraps_anew = _wraps_anew()
        self._shown: list[str] = []
        self._cells: list[int] = []
        self._columns = 0

    def size(self) -> Size:
        return size_of(self._messages.stream)

    def draw(self, rows: list[Row]) -> None:
        """Show a frame in place of the last one; nothing while another job has the terminal."""
        if self._messages.stream.in_background:
            return
        size = self.size()
        rows = rows[: max(1, size.rows - 1)]
        fresh = size.columns != self._columns
        out = [BEGIN, HIDE, NO_WRAP, self._to_top(size.columns)]
        lines = [row.ansi(self._colour) for row in rows]
        for i, line in enumerate(lines):
            if i:
                out.append("\r\n")
            known = i < len(self._shown) and not fresh
            if not known or line != self._shown[i]:
                out.append(f"\x1b[K{line}")
        if fresh or len(self._shown) > len(lines):
            out.append("\x1b[J")
        out += ["\r", WRAP, END]
        self._messages.raw("".join(out))
        self._shown, self._cells, self._columns = lines, [row.cells for row in rows], size.columns

    def erase(self) -> None:
        """Take the frame away; the cursor stands where the frame began, visible."""
        if not self._shown or self._messages.stream.in_background:
            return
        self._messages.raw(self._to_top(self.size().columns) + "\x1b[J" + WRAP + SHOW)
        self._shown, self._cells = [], []

    def forget(self) -> None:
        """Others have written here: the next frame begins where the cursor stands."""
        self._shown, self._cells = [], []

    def _to_top(self, columns: int) -> str:
        """From the last row of the shown frame to its first, in rows of the width that is now."""
        wrapped = [max(1, math.ceil(cells / columns)) if self._wraps_anew else 1 for cells in self._cells]
        # The cursor is at the start of the last row, which counts with its wrapped part only before it.
        up = sum(wrapped[:-1])
        return "\r" + (f"\x1b[{up}A" if up else "")


def size_of(stream: Stream) -> Size:
    """Of a terminal now; 80 x 24 where it doesn't tell."""
    try:
        columns, rows = os.get_terminal_size(-1 if stream.fd is None else stream.fd)
    except OSError:
        columns, rows = 0, 0
    return Size(columns or 80, rows or 24)


def wants_colour() -> bool:
    """No with NO_COLOR (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def _wraps_anew() -> bool:
    """Whether the terminal breaks rows anew when it becomes narrower.

    Most do. xterm, the Linux console and GNU screen cut rows off instead; tmux, wherever it runs, does not.
    """
    if os.environ.get("TMUX"):
        return True
    return "XTERM_VERSION" not in os.environ and not os.environ.get("TERM", "").startswith(
        ("linux", "screen")
    )


def _styled(span: Span, colour: bool) -> str:
    code = _SGR[span.style] if colour or span.style not in _COLOURS else ""
    return f"\x1b[{code}m{span.text}\x1b[0m" if code and span.text else span.text
