"""The three standard streams as this program uses them: bytes to file descriptors, faults told apart.

While a command answers, its own output goes through private copies of standard output and
standard error, and the numbered streams lead nowhere: whatever a library prints is lost, and
the answer is alone on standard output. Views write here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from magicpig_cli.errors import MagicPigError
from magicpig_cli.views.text import harmless

# What a pipe that is reported ready takes without blocking.
_PIECE_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
_WAIT_S = 0.1


class ReaderGone(Exception):
    """Nobody reads standard output any more."""


class OutputError(MagicPigError):
    """Standard output took no more: disk full, terminal gone."""

    kind = "output"


@dataclass(frozen=True, slots=True)
class Stream:
    """One output stream: a file descriptor and what hangs on it.

    Attributes
    ----------
    fd : int or None
        None where the stream was closed before the program began.
    encoding : str
        What text becomes on its way out.
    """

    fd: int | None
    encoding: str

    @property
    def is_terminal(self) -> bool:
        return self.fd is not None and os.isatty(self.fd)

    @property
    def has_reader(self) -> bool:
        """False once the reading end of a pipe or socket is closed."""
        if self.fd is None:
            return False
        if not self.is_pipe:
            return True
        watch = select.poll()
        watch.register(self.fd, 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in watch.poll(0))

    @property
    def is_pipe(self) -> bool:
        """A pipe or socket: some other program decides what becomes of it."""
        if self.fd is None:
            return False
        mode = os.fstat(self.fd).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    @property
    def in_background(self) -> bool:
        """Another job has this terminal in hand."""
        try:
            return os.tcgetpgrp(-1 if self.fd is None else self.fd) != os.getpgrp()
        except OSError:
            return False  # not our controlling terminal: nobody else's job either

    def same_terminal(self, other: Stream) -> bool:
        """Both streams end on one screen."""
        if self.fd is None or other.fd is None or not (self.is_terminal and other.is_terminal):
            return False
        return os.fstat(self.fd).st_rdev == os.fstat(other.fd).st_rdev

    def encode(self, text: str) -> bytes:
        """Bytes of `text`; what the encoding lacks is spelled out (`\\u2014`), never dropped."""
        return text.encode(self.encoding, errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Streams:
    """Where the answer goes (`out`) and where everything else goes (`err`)."""

    out: Stream
    err: Stream


class Output:
    """Standard output: writes all of it, or says why not.

    Parameters
    ----------
    stream : Stream
    give_up : callable
        Asked while the reader does not read; true ends the waiting (an interruption).
    """

    def __init__(self, stream: Stream, give_up: Callable[[], bool] = lambda: False) -> None:
        self.stream = stream
        self._give_up = give_up

    def write(self, text: str) -> None:
        """Write and flush.

        Raises
        ------
        ReaderGone
            If nobody reads.
        OutputError
            If the disk is full or the device fails.
        """
        self._write(harmless(text) if self.stream.is_terminal else text)

    def styled(self, text: str) -> None:
        """Write text that holds our own control sequences and no others; raises as `write` does."""
        self._write(text)

    def _write(self, text: str) -> None:
        if self.stream.fd is None:
            raise ReaderGone
        rest = memoryview(self.stream.encode(text))
        while rest:
            try:
                rest = rest[self._some(self.stream.fd, rest) :]
            except BrokenPipeError:
                raise ReaderGone from None
            except OSError as error:
                raise OutputError(
                    f"standard output could not be written ({error.strerror}), so what it holds is "
                    "incomplete; make room or write elsewhere, and run again"
                ) from error

    def _some(self, fd: int, data: memoryview) -> int:
        """Write what fits now. Waits in short turns, so that an interruption is noticed."""
        writable = False
        while not writable:
            _, writable_fds, _ = select.select([], [fd], [], _WAIT_S)
            writable = bool(writable_fds)
            if not writable and self._give_up():
                raise ReaderGone
        try:
            return os.write(fd, data[:_PIECE_BYTES])
        except BlockingIOError:
            return 0


class Messages:
    """Standard error: text for people. A closed or full stream never stops the answer."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def line(self, text: str) -> None:
        """One line, made harmless."""
        self.raw(harmless(text.replace("\n", " ")) + "\n")

    def raw(self, text: str) -> None:
        """Text with whatever control sequences it holds."""
        if self.stream.fd is None:
            return
        data = memoryview(self.stream.encode(text))
        with contextlib.suppress(OSError):
            while data:
                try:
                    data = data[os.write(self.stream.fd, data) :]
                except BlockingIOError:
                    select.select([], [self.stream.fd], [], _WAIT_S)


@dataclass(frozen=True, slots=True)
class Standard:
    """The standard streams as the program found them."""

    streams: Streams
    stdin_open: bool


def claim_standard() -> Standard:
    """Find out which standard streams are open, and fill the others with the null device.

    Otherwise the next file that is opened would get the number, and with it whatever a library prints.
    """
    was_open = []
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd
            was_open.append(False)
        else:
            was_open.append(True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
        else:
            # Help texts and tracebacks may hold what the locale lacks.
            getattr(sys, name).reconfigure(errors="backslashreplace")
    return Standard(
        Streams(
            Stream(1 if was_open[1] else None, _encoding(sys.stdout)),
            Stream(2 if was_open[2] else None, _encoding(sys.stderr)),
        ),
        was_open[0] and sys.stdin is not None,
    )


@contextlib.contextmanager
def private(streams: Streams, keep_chatter: bool) -> Iterator[Streams]:
    """Copies of the streams for this program alone; what anyone else prints meanwhile goes nowhere.

    Parameters
    ----------
    streams : Streams
    keep_chatter : bool
        Libraries may write to standard error (`--verbose`). Standard output stays ours.
    """
    sys.stdout and sys.stdout.flush()
    out_fd, err_fd = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2 if keep_chatter else null, 1)
    if not keep_chatter:
        os.dup2(null, 2)
    os.close(null)
    try:
        yield Streams(
            Stream(None if streams.out.fd is None else out_fd, streams.out.encoding),
            Stream(None if streams.err.fd is None else err_fd, streams.err.encoding),
        )
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout and sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr and sys.stderr.flush()
        os.dup2(out_fd, 1)
        os.dup2(err_fd, 2)
        os.close(out_fd)
        os.close(err_fd)


def _encoding(file: object) -> str:
    """The locale's encoding, with UTF-8 where that is plain ASCII: no answer fits in ASCII."""
    name = (getattr(file, "encoding", None) or "utf-8").lower()
    return "utf-8" if name in ("ascii", "us-ascii", "ansi_x3.4-1968", "646") else name
