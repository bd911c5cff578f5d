"""What a view is: a pair of watchers, one per standard stream, and the rules between them.

The watcher of standard output gets the answer; the watcher of standard error gets everything
else. `View` hands every event to both, in an order that keeps one screen clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from magicpig_cli.engine.events import DocumentInfo, Event, Notice, Token
from magicpig_cli.views.track import Track


@dataclass(frozen=True, slots=True)
class Failure:
    """Why it failed: the kind for scripts, the sentence for people."""

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended. Without `failure` and not `interrupted` it was answered."""

    status: int
    failure: Failure | None = None
    interrupted: bool = False


class AnswerWatcher(Protocol):
    """Writes to standard output."""

    writes_at_once: bool
    """Pieces go out as they come, not at the end."""

    def show(self, piece: str) -> None:
        """More of the answer."""

    def finish(self, track: Track, ending: Ending) -> None:
        """The end: whatever is still owed to the reader."""


class ProgressWatcher(Protocol):
    """Writes to standard error."""

    terminal_fd: int | None
    """The terminal it draws on; None where it draws nothing."""

    def show(self, event: Event, track: Track) -> None:
        """Something happened."""

    def piece(self, text: str) -> None:
        """More of the answer, which standard output gets now or at the end."""

    def thought(self, text: str) -> None:
        """More of the model's reasoning, which standard output never gets."""

    def before_answer(self) -> None:
        """Text is about to go to standard output: leave the screen if it may be the same."""

    def clear(self) -> None:
        """Restore the terminal; nothing of a drawing remains."""

    def suspend(self) -> None:
        """The process is about to be stopped."""

    def resume(self) -> None:
        """The process goes on."""

    def finish(self, track: Track, ending: Ending) -> None:
        """Last words, after the answer."""


class View:
    """Both watchers of one request, and the figures they share."""

    def __init__(self, answer: AnswerWatcher, progress: ProgressWatcher) -> None:
        self.track = Track()
        self._answer = answer
        self.progress = progress

    @property
    def terminal_fd(self) -> int | None:
        """The terminal that is drawn on; None where nothing is drawn."""
        return self.progress.terminal_fd

    def read(self, documents: Sequence[DocumentInfo], notices: Sequence[str], read_s: float) -> None:
        """The sources are read; their tokens are not counted yet."""
        self.track.documents, self.track.read_s = tuple(documents), read_s
        for notice in notices:
            self.show(Notice(notice))

    def show(self, event: Event) -> None:
        """Take in one event and let both streams tell of it.

        Raises
        ------
        ReaderGone, OutputError
            If standard output takes no more.
        """
        piece = self.track.fold(event)
        if isinstance(event, Token) and event.reasoning:
            self.progress.thought(event.reasoning)
        if piece:
            self.progress.piece(piece)
            if self._answer.writes_at_once:
                self.progress.before_answer()
            self._answer.show(piece)
        self.progress.show(event, self.track)

    def finish(self, ending: Ending) -> None:
        """End both streams; raises as `show` does, with the terminal restored."""
        piece = self.track.cut()
        if piece:
            self.progress.piece(piece)
        self.progress.clear()
        if piece:
            self._answer.show(piece)
        self._answer.finish(self.track, ending)
        self.progress.finish(self.track, ending)

    def clear(self) -> None:
        """Restore the terminal without another word."""
        self.progress.clear()

    def suspend(self) -> None:
        self.progress.suspend()

    def resume(self) -> None:
        self.progress.resume()
