"""The live screen on standard error: progress, panels and, on a shared terminal, the growing answer.

Progress is drawn where the cursor is. An answer that takes more than a moment gets the terminal's other
screen, so that nothing of it is left in the scrollback, whatever is resized meanwhile. A thread of its own
draws, at most twelve times a second and never for more than a fiftieth of the time, so that the clock runs
while the model computes and drawing costs next to nothing.
"""

from __future__ import annotations

import threading
from time import perf_counter

from magicpig_cli.engine.events import Event, Notice
from magicpig_cli.views.base import Ending
from magicpig_cli.views.glyphs import ASCII, UNICODE
from magicpig_cli.views.layout import frame
from magicpig_cli.views.plain import last_lines
from magicpig_cli.views.screen import Screen
from magicpig_cli.views.streams import Messages, Stream
from magicpig_cli.views.track import Track
from magicpig_cli.views.wholescreen import WholeScreen
from magicpig_cli.views.wrap import Wrapped

_SHORTEST_TURN_S = 1 / 12
_CLOCK_TURN_S = 0.25
_SHARE_OF_TIME = 0.02
# Shorter answers are not worth another screen.
_MOMENT_S = 0.7


class Live:
    """Draws what happens.

    Parameters
    ----------
    messages : Messages
        The terminal.
    shows_answer : bool
        The answer is part of the screen.
    leaves_for : Stream
        Where the answer goes. If that is a pipe, its reader may write to this very terminal,
        so the screen is left before the first piece goes out.
    answer_screen : WholeScreen, optional
        Where a long answer is drawn; without one, below the cursor like everything else.
    """

    def __init__(
        self,
        messages: Messages,
        shows_answer: bool,
        leaves_for: Stream,
        answer_screen: WholeScreen | None = None,
    ) -> None:
        self.terminal_fd = messages.stream.fd
        self._messages = messages
        self._screen: Screen | WholeScreen = Screen(messages)
        self._whole = answer_screen
        self._glyphs = UNICODE if messages.stream.encoding.replace("-", "") == "utf8" else ASCII
        self._answer = Wrapped(80) if shows_answer else None
        self._thoughts: Wrapped | None = None
        self._leaves = leaves_for.is_pipe
        self._track = Track()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._answer_began: float | None = None
        self._drawing, self._suspended = True, False
        self._news = True
        self._last_draw = 0.0
        self._started = self._last_event = perf_counter()
        self.draws = 0
        self.draw_s = 0.0
        self._thread = threading.Thread(target=self._turns, name="magicpig-live", daemon=True)
        self._thread.start()

    def show(self, event: Event, track: Track) -> None:
        with self._lock:
            self._track, self._news, self._last_event = track, True, perf_counter()
            if self._answer_began is None and track.phase == "decode":
                self._answer_began = self._last_event
            if isinstance(event, Notice):
                self._screen.erase()
                self._messages.line(f"magicpig: {event.text}")

    def piece(self, text: str) -> None:
        with self._lock:
            self._thoughts = None  # they stood where the answer goes
            if self._answer is not None:
                self._answer.feed(text)

    def thought(self, text: str) -> None:
        with self._lock:
            if self._answer is None:
                return
            if self._thoughts is None:
                self._thoughts = Wrapped(80)
                text = f"(reasoning) {text.lstrip()}"
            self._thoughts.feed(text)

    def before_answer(self) -> None:
        if self._leaves:
            self.clear()

    def clear(self) -> None:
        self._drawing = False
        self._wake.set()
        with self._lock:
            self._screen.erase()

    def suspend(self) -> None:
        with self._lock:
            self._suspended = True
            self._screen.erase()

    def resume(self) -> None:
        with self._lock:
            self._suspended, self._news = False, True
            self._screen.forget()

    def finish(self, track: Track, ending: Ending) -> None:
        for line in last_lines(track, ending, self._screen.size().columns):
            self._messages.line(line)

    def _turns(self) -> None:
        turn_s = _SHORTEST_TURN_S
        while not self._wake.wait(turn_s):
            with self._lock:
                now = perf_counter()
                idle = not self._news and now - self._last_draw < _CLOCK_TURN_S
                if idle or self._suspended or not self._drawing:
                    continue
                self._draw(now)
                spent = perf_counter() - now
            self.draws += 1
            self.draw_s += spent
            turn_s = max(_SHORTEST_TURN_S, spent / _SHARE_OF_TIME)

    def _draw(self, now: float) -> None:
        self._news, self._last_draw = False, now
        answering = self._answer_began is not None
        if self._whole is not None and self._screen is not self._whole and answering:
            if now - (self._answer_began or now) < _MOMENT_S:
                return  # what stands there, stands
            self._screen.erase()
            self._screen = self._whole
        rows = frame(
            self._track,
            self._thoughts or self._answer,
            self._screen.size(),
            self._glyphs,
            now - self._started,
            now - self._last_event,
        )
        self._screen.draw(rows)
