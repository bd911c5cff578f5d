"""The decode loop: one step is one token through the model and its attention seam."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from magicpig_cli.attention.base import StepStats
from magicpig_cli.engine.detokenize import StreamDecoder
from magicpig_cli.engine.events import Finished, Step, Token
from magicpig_cli.engine.sampler import Sampler

# A step takes a token id and gives the logits of the next one, (vocabulary,), float32.
StepFunction = Callable[[int], torch.Tensor]


@dataclass(slots=True)
class _Totals:
    """Sums over the steps of one answer."""

    steps: int = 0
    step_ms: float = 0.0
    attention_ms: float = 0.0
    offered: int = 0
    touched: int = 0
    error_sum: float = 0.0
    error_count: int = 0
    judged: int = 0
    exact: int = 0

    def add(self, step_ms: float, stats: StepStats) -> None:
        self.steps += 1
        self.step_ms += step_ms
        self.attention_ms += stats.retrieve_ms + stats.attend_ms
        self.offered += stats.keys_offered
        self.touched += stats.keys_touched
        self.error_sum += stats.error_sum
        self.error_count += stats.error_count
        self.judged += stats.heads_judged
        self.exact += stats.heads_exact


def decode(
    logits: torch.Tensor,
    step: StepFunction,
    stats: StepStats,
    sampler: Sampler,
    tokenizer: Any,
    stop_ids: Collection[int],
    max_tokens: int,
    started: float,
) -> Iterator[Token | Step | Finished]:
    """Generate until a stop token or `max_tokens`.

    Parameters
    ----------
    logits : torch.Tensor
        Of the prompt's last token.
    step : StepFunction
    stats : StepStats
        What the attention of a step reports into.
    sampler, tokenizer, stop_ids, max_tokens
        `stop_ids` end the answer and are not part of it.
    started : float
        `perf_counter` when the request began, for the time to the first token.

    Yields
    ------
    Token and Step per token, then Finished.
    """
    decoder = StreamDecoder(tokenizer)
    totals = _Totals()
    first_token_s: float | None = None
    generated = 0
    reason: str = "length"
    while generated < max_tokens:
        token_id = sampler(logits)
        if first_token_s is None:
            first_token_s = perf_counter() - started
        if token_id in stop_ids:
            reason = "stop"
            break
        yield Token(generated, token_id, decoder.push(token_id), decoder.pending)
        generated += 1
        if generated == max_tokens:
            break
        stats.reset()
        step_started = perf_counter()
        logits = step(token_id)
        step_ms = (perf_counter() - step_started) * 1e3
        totals.add(step_ms, stats)
        yield _step_event(generated, step_ms, stats)
    yield Finished(
        reason=reason,  # type: ignore[arg-type]
        tail=decoder.finish(),
        generated_tokens=generated,
        first_token_s=first_token_s,
        decode_ms_per_token=_ratio(totals.step_ms, totals.steps),
        attention_ms_per_token=_ratio(totals.attention_ms, totals.steps),
        sampled_share=_ratio(totals.touched, totals.offered),
        estimated_error=_root_mean(totals.error_sum, totals.error_count),
        seed=sampler.seed,
        exact_share=_ratio(totals.exact, totals.judged),
    )


def _step_event(index: int, step_ms: float, stats: StepStats) -> Step:
    return Step(
        index=index,
        step_ms=step_ms,
        attention_ms=stats.retrieve_ms + stats.attend_ms,
        retrieve_ms=stats.retrieve_ms,
        attend_ms=stats.attend_ms,
        sampled_share=_ratio(stats.keys_touched, stats.keys_offered),
        estimated_error=_root_mean(stats.error_sum, stats.error_count),
        exact_share=_ratio(stats.heads_exact, stats.heads_judged),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _root_mean(squares: float, count: int) -> float | None:
    return (squares / count) ** 0.5 if count else None
