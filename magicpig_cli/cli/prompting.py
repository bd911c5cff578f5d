"""Where a chat's questions come from: a line editor on a terminal, else the lines of standard input."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from magicpig_cli.cli.signals import Interrupted, Signals
from magicpig_cli.errors import UsageError
from magicpig_cli.views.streams import Standard

if TYPE_CHECKING:
    from prompt_toolkit.data_structures import Size


# Far more than any model reads; a stream without line ends (/dev/zero) would fill the memory.
LONGEST_LINE_BYTES = 64 << 20


class Questions(Protocol):
    """A source of lines."""

    interactive: bool

    def next(self) -> str | None:
        """The next line, without its end; None when there are no more."""


class Lines:
    """Lines of standard input, each read when the one before has been dealt with."""

    interactive = False

    def __init__(self) -> None:
        self._number = 0

    def next(self) -> str | None:
        data = sys.stdin.buffer.readline(LONGEST_LINE_BYTES + 1)
        if not data:
            return None
        self._number += 1
        if len(data) > LONGEST_LINE_BYTES:
            raise UsageError(
                f"line {self._number} of standard input holds more than {LONGEST_LINE_BYTES >> 20} MiB, more "
                "than any question; write one question per line"
            )
        try:
            return data.decode("utf-8-sig" if self._number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise UsageError(
                f"line {self._number} of standard input is not valid UTF-8 text; convert the questions first"
            ) from None


class Editor:
    """A line editor with history, on the terminal that standard error leads to.

    The history lasts as long as the chat: nothing of it is written to disk.
    """

    interactive = True

    def __init__(self, standard: Standard) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output.vt100 import Vt100_Output

        fd = standard.streams.err.fd
        if fd is None:
            raise UsageError("standard error is closed, so there is nowhere to ask; name a terminal")
        # The numbered streams lead nowhere meanwhile (`views.streams.private`).
        self._screen = os.fdopen(os.dup(fd), "w", encoding=standard.streams.err.encoding)
        # Never asks for the cursor's position: an answer that comes late would be taken for a question.
        output = Vt100_Output(self._screen, self._size, term=os.environ.get("TERM"), enable_cpr=False)
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), output=output, enable_suspend=True
        )

    def _size(self) -> Size:
        from prompt_toolkit.data_structures import Size

        columns, rows = os.get_terminal_size(self._screen.fileno())
        return Size(rows=rows or 24, columns=columns or 80)

    def next(self) -> str | None:
        while True:
            try:
                # Without handlers of ours a signal would leave the terminal as the editor set it.
                with Signals():
                    return self._session.prompt("> ")
            except KeyboardInterrupt as request:
                if isinstance(request, Interrupted) and request.number != signal.SIGINT:
                    raise
                # What was typed is dropped, as in a shell.
            except EOFError:
                return None


def choose_questions(standard: Standard) -> Callable[[Standard], Questions]:
    """A line editor where both ends are a terminal, else plain lines; opened when it is called.

    It is called with the streams that are the program's own by then.

    Raises
    ------
    UsageError
        If standard input is closed.
    """
    if not standard.stdin_open:
        raise UsageError("standard input is closed, so no question can come; open it, or use `magicpig ask`")
    if sys.stdin.isatty() and standard.streams.err.is_terminal:
        return Editor
    return lambda own: Lines()
