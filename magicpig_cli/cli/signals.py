"""Signals as requests: the first asks the work to stop in order, the second ends the process at once.

A signal interrupts computing wherever it is, but waits while an event is being shown, so that
no text is written twice or lost and no frame is cut in two.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
# Cursor shown, automatic wrapping on, colours off.
RESTORE_TERMINAL = b"\x1b[?25h\x1b[?7h\x1b[0m\r\n"


class Interrupted(KeyboardInterrupt):
    """A signal asked the program to end. Libraries that let Ctrl-C pass let this pass."""


class Signals:
    """Handlers for the time of one request; a context manager."""

    def __init__(self) -> None:
        self.requested: int | None = None
        self._terminal_fd: int | None = None
        self._showing = 0
        self._stop_requested = False
        self._before_stop: Callable[[], None] = lambda: None
        self._after_stop: Callable[[], None] = lambda: None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in _ENDING:
            # What a parent ignores (nohup, a background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_ending)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()

    def guard_terminal(
        self, fd: int | None, before_stop: Callable[[], None], after_stop: Callable[[], None]
    ) -> None:
        """A terminal is drawn on: leave it in order when the process ends at once or is stopped (Ctrl-Z).

        Parameters
        ----------
        fd : int or None
            None where nothing is drawn; then there is nothing to do.
        before_stop, after_stop : callable
            Called when the process is about to be stopped, and when it goes on.
        """
        if fd is None:
            return
        self._terminal_fd = fd
        self._before_stop, self._after_stop = before_stop, after_stop
        if hasattr(signal, "SIGTSTP") and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as shells count."""
        return 128 + (self.requested or signal.SIGINT)

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """While this is open signals wait.

        Raises
        ------
        Interrupted
            At its end, if one came.
        """
        self._showing += 1
        try:
            yield
        finally:
            self._showing -= 1
        if not self._showing:
            if self._stop_requested:
                self._stop()
            self.check()

    def check(self) -> None:
        """Raise `Interrupted` if a signal came that some library swallowed."""
        if self.requested is not None:
            raise Interrupted

    def _on_ending(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            if self._terminal_fd is not None:
                with contextlib.suppress(OSError):
                    os.write(self._terminal_fd, RESTORE_TERMINAL)
            os._exit(128 + number)
        self.requested = number
        if not self._showing:
            raise Interrupted

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._showing:
            self._stop_requested = True
        else:
            self._stop()

    def _stop(self) -> None:
        self._stop_requested = False
        self._before_stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here; goes on with SIGCONT
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._after_stop()
