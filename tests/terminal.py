"""A pseudo-terminal with a screen that is read (pyte), and a process in it (pexpect)."""

from __future__ import annotations

import codecs
import copy
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pexpect
import pyte

_ZERO_WIDTH = re.compile("[\u200b-\u200d\ufe0f]")
_OTHER_SCREEN = 1049
_FRAME, _FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"
# What ends the erasing of a screen before a frame of another size.
_ANEW = re.compile(rb"\x1b\[[02]?J")


class TwoScreens(pyte.HistoryScreen):
    """pyte's screen with the other one that editors use, which pyte 0.8 does not know."""

    def __init__(self, columns: int, rows: int) -> None:
        self._first: tuple[Any, ...] | None = None
        super().__init__(columns, rows, history=10_000, ratio=0.5)

    @property
    def on_other_screen(self) -> bool:
        return self._first is not None

    def set_mode(self, *modes: int, **options: Any) -> None:
        super().set_mode(*modes, **options)
        if _OTHER_SCREEN in modes and options.get("private") and self._first is None:
            self._first = copy.deepcopy((dict(self.buffer), self.history, self.cursor))
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if _OTHER_SCREEN in modes and options.get("private") and self._first is not None:
            rows, self.history, self.cursor = self._first
            self._first = None
            self.buffer.clear()
            self.buffer.update(rows)
            self.cursor.y = min(self.cursor.y, self.lines - 1)
            self.dirty.update(range(self.lines))


class Terminal:
    """One command in a terminal of its own.

    Parameters
    ----------
    command : sequence of str
    columns, rows : int
    env : dict
    """

    def __init__(self, command: Sequence[str], columns: int, rows: int, env: dict[str, str]) -> None:
        self.screen = TwoScreens(columns, rows)
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = b""
        self.process = pexpect.spawn(
            command[0], list(command[1:]), dimensions=(rows, columns), env={"TERM": "xterm-256color", **env}
        )
        self.process.delaybeforesend = None

    def read(self, seconds: float) -> None:
        """Show what comes within this time; returns early when the process has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                data = self.process.read_nonblocking(65536, timeout=0.05)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return
            self.raw += data
            # pyte 0.8 drops what follows a zero-width character that is no combining one.
            self._stream.feed(_ZERO_WIDTH.sub("", self._decoder.decode(data)))

    def wait_for(self, seen: str | Callable[[], bool], seconds: float = 120) -> None:
        """Read until the text (or condition) is there; AssertionError with the screen if it never is.

        What stands there while a frame is half drawn is not looked at.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            if self.raw.rfind(_FRAME) > self.raw.rfind(_FRAME_ENDS):
                continue
            if (seen in self.text) if isinstance(seen, str) else seen():
                return
        raise AssertionError(f"not seen: {seen}\n{self.text}")

    def finish(self, seconds: float = 120) -> int:
        """Read to the end and give the exit status; a signal counts as -n."""
        self.read(seconds)
        assert self.process.flag_eof, f"not finished after {seconds} s\n{self.text}"
        self.process.wait()
        signal = self.process.signalstatus
        return -signal if signal is not None else self.process.exitstatus

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, and wait for the first frame that is drawn for it."""
        before = len(self.raw)
        self.process.setwinsize(rows, columns)
        self.screen.resize(rows, columns)
        self.wait_for(lambda: bool(_ANEW.search(self.raw, before)))

    @property
    def lines(self) -> list[str]:
        """The screen, without empty lines at its end."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def everything(self) -> str:
        """Scrollback and screen."""
        columns = self.screen.columns
        above = ("".join(line[x].data for x in range(columns)).rstrip() for line in self.screen.history.top)
        return "\n".join([*above, *self.lines])

    @property
    def on_other_screen(self) -> bool:
        return self.screen.on_other_screen

    @property
    def cursor_hidden(self) -> bool:
        return self.screen.cursor.hidden
