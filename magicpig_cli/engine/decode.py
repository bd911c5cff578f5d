"""The decode loop: one step is one token through the model and its attention seam."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from time import perf_counter

import torch

from magicpig_cli.attention.base import StepStats
from magicpig_cli.engine.events import Finished, Step, Token
from magicpig_cli.engine.reasoning import AnswerText
from magicpig_cli.engine.sampler import Sampler

# A step takes a token id and gives the logits of the next one, (vocabulary,), float32.
StepFunction = Callable[[int], torch.Tensor]


def decode(
    logits: torch.Tensor,
    step: StepFunction,
    stats: StepStats,
    sampler: Sampler,
    text: AnswerText,
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
    sampler, text, stop_ids, max_tokens
        `stop_ids` end the answer and are not part of it.
    started : float
        `perf_counter` when the request began, for the time to the first token.

    Yields
    ------
    Token and Step per token, then Finished.
    """
    totals, steps, decode_ms = StepStats(), 0, 0.0
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
        piece = text.push(token_id)
        yield Token(generated, token_id, piece.answer, text.pending, piece.reasoning)
        generated += 1
        if generated == max_tokens:
            break
        stats.reset()
        step_started = perf_counter()
        logits = step(token_id)
        step_ms = (perf_counter() - step_started) * 1e3
        totals.add(stats)
        steps, decode_ms = steps + 1, decode_ms + step_ms
        yield _step_event(generated, step_ms, stats)
    last = text.finish()
    yield Finished(
        reason=reason,  # type: ignore[arg-type]
        tail=last.answer,
        reasoning_tail=last.reasoning,
        generated_tokens=generated,
        first_token_s=first_token_s,
        decode_ms_per_token=decode_ms / steps if steps else None,
        attention_ms_per_token=totals.attention_ms / steps if steps else None,
        sampled_share=totals.sampled_share,
        estimated_error=totals.estimated_error,
        seed=sampler.seed,
        exact_share=totals.exact_share,
        resampled_share=totals.resampled_share,
    )


def _step_event(index: int, step_ms: float, stats: StepStats) -> Step:
    return Step(
        index=index,
        step_ms=step_ms,
        attention_ms=stats.attention_ms,
        retrieve_ms=stats.retrieve_ms,
        attend_ms=stats.attend_ms,
        sampled_share=stats.sampled_share,
        estimated_error=stats.estimated_error,
        exact_share=stats.exact_share,
        resampled_share=stats.resampled_share,
    )
