"""Folds the engine's events into the figures that views show. Pure: no clock, no stream, no drawing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from magicpig_cli.engine.events import (
    Cited,
    DocumentInfo,
    Event,
    Finished,
    Indexed,
    Loaded,
    LoadProgress,
    Memory,
    Notice,
    Prefilled,
    PrefillProgress,
    Prompted,
    Step,
    Token,
)
from magicpig_cli.views.text import count

Phase = Literal["start", "load", "prefill", "decode", "done"]

# Steps that the sparkline and the running means look back on.
RECENT_STEPS = 60


@dataclass(slots=True)
class Track:
    """Everything seen so far of one request. One thread folds; another may read meanwhile.

    The answer never ends in a newline: line ends are held back until more text follows, so
    that what is streamed plus one newline is the answer plus one newline.
    """

    phase: Phase = "start"
    read_s: float | None = None
    documents: tuple[DocumentInfo, ...] = ()
    notices: list[str] = field(default_factory=list)
    loading: LoadProgress | None = None
    loaded: Loaded | None = None
    prompted: Prompted | None = None
    indexed: Indexed | None = None
    prefill: PrefillProgress | None = None
    prefilled: Prefilled | None = None
    memory: Memory | None = None
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    generated_tokens: int = 0
    finished: Finished | None = None
    cited: Cited | None = None
    _pieces: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _held: str = ""
    _pending: str = ""

    def fold(self, event: Event) -> str:
        """Take in one event.

        Returns
        -------
        str
            What it adds to the answer; often empty.
        """
        match event:
            case Notice():
                self.notices.append(event.text)
            case LoadProgress():
                self.phase, self.loading = "load", event
            case Loaded():
                self.loaded = event
            case Prompted():
                self.prompted, self.documents = event, event.documents
            case Indexed():
                self.indexed = event
            case PrefillProgress():
                self.phase, self.prefill = "prefill", event
            case Prefilled():
                self.prefilled = event
            case Memory():
                self.memory = event
            case Token():
                self.phase = "decode"
                self.generated_tokens = event.index + 1
                self._pending = event.pending
                self._thoughts.append(event.reasoning)
                return self._extend(event.text)
            case Cited():
                self.cited = event
            case Step():
                self.steps.append(event)
            case Finished():
                self.phase, self.finished = "done", event
                self.generated_tokens = event.generated_tokens
                self._pending = ""
                self._thoughts.append(event.reasoning_tail)
                return self._extend(event.tail)
        return ""

    def cut(self) -> str:
        """The answer ends here, unfinished: what it adds, the text that was held back for more."""
        pending, self._pending = self._pending, ""
        return self._extend(pending)

    def _extend(self, text: str) -> str:
        whole = self._held + text
        piece = whole.rstrip("\n")
        self._held = whole[len(piece) :]
        if piece:
            self._pieces.append(piece)
        return piece

    @property
    def answer(self) -> str:
        return "".join(self._pieces)

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered; empty with most models."""
        return "".join(self._thoughts).strip()

    @property
    def index_path(self) -> str | None:
        """The index that was used, or that was made of this reading."""
        if self.indexed is not None:
            return self.indexed.path
        return self.prompted.index_path if self.prompted else None

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt that need not be read."""
        return self.prompted.reused_tokens if self.prompted else 0

    @property
    def known_place(self) -> str:
        """Where those are."""
        return "the index" if self.prompted and self.prompted.index_path else "memory"

    @property
    def step_ms(self) -> float | None:
        """Mean of recent steps, or of all once the answer is finished."""
        if self.finished and self.finished.decode_ms_per_token is not None:
            return self.finished.decode_ms_per_token
        return _mean([step.step_ms for step in tuple(self.steps)])

    @property
    def attention_ms(self) -> float | None:
        if self.finished and self.finished.attention_ms_per_token is not None:
            return self.finished.attention_ms_per_token
        return _mean([step.attention_ms for step in tuple(self.steps)])

    @property
    def retrieve_ms(self) -> float | None:
        return _mean([step.retrieve_ms for step in tuple(self.steps)])

    @property
    def attend_ms(self) -> float | None:
        return _mean([step.attend_ms for step in tuple(self.steps)])

    @property
    def attention_share(self) -> float | None:
        """CPU attention's part of a step, 0 to 1."""
        if not self.step_ms or self.attention_ms is None:
            return None
        return self.attention_ms / self.step_ms

    @property
    def sampled_share(self) -> float | None:
        return self._share("sampled_share")

    @property
    def estimated_error(self) -> float | None:
        """Root mean square, as the engine does it."""
        if self.finished:
            return self.finished.estimated_error
        squares = [step.estimated_error**2 for step in tuple(self.steps) if step.estimated_error is not None]
        mean = _mean(squares)
        return None if mean is None else mean**0.5

    @property
    def exact_share(self) -> float | None:
        """Head outputs that a tolerance made exact."""
        return self._share("exact_share")

    @property
    def resampled_share(self) -> float | None:
        """Head outputs for which a tolerance had more of the keys read."""
        return self._share("resampled_share")

    def _share(self, name: Literal["sampled_share", "exact_share", "resampled_share"]) -> float | None:
        """The engine's own, once it has finished; before that the mean over steps that have one."""
        if self.finished:
            return getattr(self.finished, name)
        return _mean([share for step in tuple(self.steps) if (share := getattr(step, name)) is not None])

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Over the work done so far: a share of the work counts as that share of the tokens."""
        if self.prefilled:
            return self.prefilled.tokens_per_s
        done = self.prefill
        if done is None or done.elapsed_s <= 0:
            return None
        return done.fraction * done.tokens_total / done.elapsed_s

    def prefill_left_s(self, since_event_s: float = 0.0) -> float | None:
        """Seconds left, from the share of the *work* done; None while too little is known.

        Parameters
        ----------
        since_event_s : float
            Seconds since the last progress event.
        """
        done = self.prefill
        if done is None or done.elapsed_s < 0.5 or done.fraction < 0.005:
            return None
        return max(0.0, done.elapsed_s * (1 - done.fraction) / done.fraction - since_event_s)

    @property
    def cut_short(self) -> str | None:
        """Why an answer ended before the model was done, and the way out; None if it was done."""
        if self.finished is None:
            return None
        n = self.finished.generated_tokens
        only_thought = bool(self.reasoning) and not self.answer
        if self.finished.reason != "length":
            what = f"the model ended after {count(n, 'token')} of reasoning without an answer"
            return f"{what}; --json tells what it thought" if only_thought else None
        limit = self.loaded.model.context_tokens if self.loaded else None
        if limit and self.prompted and self.prompted.prompt_tokens + n >= limit:
            return (
                f"the answer stopped after {n:,} tokens because the model's context of {limit:,} tokens "
                "is full; ask about a shorter document or use a model with a longer context"
            )
        if only_thought:
            return f"the model was still reasoning after {count(n, 'token')}; raise --max-tokens (-n)"
        return f"the answer was cut after {n:,} tokens; raise --max-tokens (-n) for more"


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
