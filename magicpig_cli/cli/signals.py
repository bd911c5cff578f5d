"""Signals as requests: the first asks the work to stop in order, the second ends the process at once.

A signal interrupts computing wherever it is, but waits while an event is being shown, so that
no text is written twice or lost and no frame is cut in two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from types import FrameType

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
# `timeout` and shells signal the process and then its group, which is one request; a person is slower.
_SAME_REQUEST_S = 0.15
# The other screen left, cursor shown, automatic wrapping on, colours off.
RESTORE_TERMINAL = b"\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m\r\n"


class Interrupted(KeyboardInterrupt):
    """A signal asked the program to end. Libraries that let Ctrl-C pass let this pass.

    Parameters
    ----------
    number : int
        The signal's.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class Requests:
    """Handlers that take note of the first signal and nothing else; a context manager.

    Whoever works asks for `requested` between two steps.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._requested_at = 0.0
        self._terminal_fd: int | None = None
        self._showing = 0
        self._stop_requested = False
        self._before_stop: Callable[[], None] = lambda: None
        self._after_stop: Callable[[], None] = lambda: None
        self._previous: dict[int, object] = {}
        self._impatience: _Impatience | None = None

    def __enter__(self) -> Requests:
        for number in _ENDING:
            # What a parent ignores (nohup, a background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_ending)
        self._impatience = _Impatience(frozenset(self._previous), lambda: self._terminal_fd)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.requested is not None:
            # The second half of the request must not meet the handlers that were there before: those kill.
            sleep(max(0.0, self._requested_at + _SAME_REQUEST_S - monotonic()))
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
        if self._impatience is not None:
            self._impatience.end()

    def guard_terminal(
        self, fd: int | None, before_stop: Callable[[], None], after_stop: Callable[[], None]
    ) -> None:
        """A terminal is drawn on: leave it in order when the process ends at once or is stopped (Ctrl-Z).

        Parameters
        ----------
        fd : int or None
            None where nothing is drawn; then there is nothing to do.
        before_stop, after_stop : callable
            Called when the process is about to be stopped, and when it goes on, which may be without the
            first (SIGSTOP cannot be caught).
        """
        if fd is None:
            return
        self._terminal_fd = fd
        self._before_stop, self._after_stop = before_stop, after_stop
        for name, handler in (("SIGTSTP", self._on_stop), ("SIGCONT", self._on_continue)):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as shells count."""
        return 128 + (self.requested or signal.SIGINT)

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """While this is open signals wait."""
        self._showing += 1
        try:
            yield
        finally:
            self._showing -= 1
        if not self._showing:
            self._shown()

    def _shown(self) -> None:
        if self._stop_requested:
            self._stop()

    def _on_ending(self, number: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested, self._requested_at = number, monotonic()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._showing:
            self._stop_requested = True
        else:
            self._stop()

    def _on_continue(self, number: int, frame: FrameType | None) -> None:
        self._after_stop()

    def _stop(self) -> None:
        self._stop_requested = False
        self._before_stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here; goes on with SIGCONT
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._after_stop()


class Signals(Requests):
    """Handlers that also break into the computing, for the time of one request."""

    def __enter__(self) -> Signals:
        super().__enter__()
        return self

    def check(self) -> None:
        """Raise `Interrupted` if a signal came that some library swallowed, or that had to wait."""
        if self.requested is not None:
            raise Interrupted(self.requested)

    def _shown(self) -> None:
        super()._shown()
        self.check()

    def _on_ending(self, number: int, frame: FrameType | None) -> None:
        first = self.requested is None
        super()._on_ending(number, frame)
        if first and not self._showing:
            raise Interrupted(number)


class _Impatience:
    """Ends the process at the second signal, even while the interpreter waits for a kernel or a library.

    Python's own handlers run between two steps of the interpreter, and some steps take seconds; a thread
    that the signals wake does not wait for them.

    Parameters
    ----------
    numbers : frozenset of int
        The signals that count.
    terminal : callable
        Gives the terminal to leave in order; None where nothing is drawn.
    """

    def __init__(self, numbers: frozenset[int], terminal: Callable[[], int | None]) -> None:
        self._numbers = numbers
        self._terminal = terminal
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="magicpig-signals", daemon=True)
        self._thread.start()

    def end(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def _watch(self) -> None:
        first: float | None = None
        while data := self._ours.recv(64):
            for number in data:
                if number not in self._numbers:
                    continue
                if first is None:
                    first = monotonic()
                elif monotonic() - first > _SAME_REQUEST_S:
                    self._leave(number)

    def _leave(self, number: int) -> None:
        fd = self._terminal()
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, RESTORE_TERMINAL)
        os._exit(128 + number)
