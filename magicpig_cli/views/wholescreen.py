"""Draws frames on a terminal's other screen, the one that editors use; the first one comes back as it was.

For long answers: terminals break the rows of their first screen anew when they are resized and push what no
longer fits into the scrollback, where nothing can take it away again. The other screen has no scrollback.
"""

from __future__ import annotations

import os

from magicpig_cli.views.screen import BEGIN, END, HIDE, NO_WRAP, SHOW, WRAP, Row, Size, size_of, wants_colour
from magicpig_cli.views.streams import Messages

_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_CLEAR = "\x1b[H\x1b[2J"
# Where the terminals' database is missing: families that have another screen.
_FAMILIES = ("xterm", "tmux", "screen", "rxvt", "alacritty", "kitty", "foot", "wezterm", "ghostty", "konsole")


class WholeScreen:
    """All of a terminal, from its first row on.

    Parameters
    ----------
    messages : Messages
        The terminal.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._colour = wants_colour()
        self._entered = False
        self._shown: list[str] = []
        self._size: Size | None = None

    def size(self) -> Size:
        return size_of(self._messages.stream)

    def draw(self, rows: list[Row]) -> None:
        """Show a frame in place of the last one."""
        if self._messages.stream.in_background:
            return
        size = self.size()
        fresh = size != self._size
        out = [BEGIN]
        if not self._entered:
            out += [_ENTER, HIDE]
        if fresh:
            out.append(_CLEAR)
            self._shown = []
        out.append(NO_WRAP)
        lines = [row.ansi(self._colour) for row in rows[: size.rows]]
        for i in range(max(len(lines), len(self._shown))):
            line = lines[i] if i < len(lines) else ""
            if i >= len(self._shown) or line != self._shown[i]:
                out.append(f"\x1b[{i + 1};1H\x1b[K{line}")
        out += [WRAP, END]
        self._messages.raw("".join(out))
        self._entered, self._shown, self._size = True, lines, size

    def erase(self) -> None:
        """Back to the first screen, as it was."""
        if self._entered:
            # Cleared first, for terminals that have no other screen after all.
            self._messages.raw(f"{_CLEAR}{_LEAVE}{WRAP}{SHOW}")
        self._entered, self._size = False, None

    def forget(self) -> None:
        """Others may have written here meanwhile: the next frame is drawn anew."""
        self._size = None


def has_other_screen() -> bool:
    """Whether this terminal has a screen besides the one with the scrollback."""
    name = os.environ.get("TERM", "")
    try:
        import curses

        curses.setupterm(name, 2)
        return curses.tigetstr("smcup") is not None
    except (ImportError, curses.error):
        return name.startswith(_FAMILIES)
