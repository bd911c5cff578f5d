"""One sample of one task, for any number of contenders: read once, exactly, then each goes on from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import torch

from magicpig_cli.attention.base import StepStats
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.decode import decode
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.events import Finished, Token
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.reasoning import answer_text
from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.engine.step import make_step
from magicpig_cli.evaluate.contenders import Builder, Contender
from magicpig_cli.evaluate.probe import Probe
from magicpig_cli.evaluate.problems import Prompted

# The same attention summed in another order differs by less, relative to the output.
_ROUNDING = 1e-4

Outcome = tuple[Contender, dict[str, Any]]


def _counts(stats: StepStats) -> dict[str, int]:
    """What was offered and read, by head and by key; see StepStats."""
    alike = stats.rows_offered == 0
    return {
        "keys_offered": stats.keys_offered,
        "keys_touched": stats.keys_touched,
        "rows_offered": stats.keys_offered if alike else stats.rows_offered,
        "rows_touched": stats.keys_touched if alike else stats.rows_touched,
        "heads_judged": stats.heads_judged,
        "heads_resampled": stats.heads_resampled,
        "heads_exact": stats.heads_exact,
    }


def _kept(errors: torch.Tensor, tolerance: float | None) -> dict[str, Any]:
    """How many outputs were in truth within the tolerance."""
    return {} if tolerance is None else {"outputs_within_tolerance": int((errors <= tolerance).sum())}


def _calibration(errors: torch.Tensor, estimates: torch.Tensor | None) -> dict[str, Any]:
    """What estimated errors were worth: how many true ones were within twice the estimate, and the ratio.

    Outputs that were attended exactly, and whose error is rounding, say nothing about an estimate.
    """
    if estimates is None:
        return {}
    sampled = (estimates > 0) | (errors > _ROUNDING)
    true, estimate = errors[sampled], estimates[sampled]
    if not len(true):
        return {}
    return {
        "outputs_estimated": len(true),
        "outputs_within_twice_estimate": int((true <= 2 * estimate).sum()),
        "estimate_over_error_median": float((estimate / true.clamp_min(1e-30)).median()),
    }


def read(engine: Engine, token_ids: Sequence[int], room: int) -> tuple[Session, torch.Tensor]:
    """Prefill, exactly as `ask` does; the session and the logits of the last token.

    Parameters
    ----------
    engine : Engine
    token_ids : sequence of int
    room : int
        Tokens that will follow.
    """
    session = Session(Dense(), engine.n_layers, len(token_ids) + room, engine.device)
    progress = prefill(engine.loaded.model, session, token_ids, engine.settings.chunk_tokens)
    while True:
        try:
            next(progress)
        except StopIteration as done:
            return session, done.value


@torch.inference_mode()
def answer_problem(
    engine: Engine,
    prompted: Prompted,
    contenders: Sequence[Contender],
    dense_layers: tuple[int, ...],
    seed: int,
) -> Iterator[Outcome]:
    """Every contender's greedy answer, its score, and the share of keys that it read."""
    problem = prompted.problem
    session, logits = read(engine, prompted.token_ids, problem.max_tokens)
    builder, mark = Builder(session, dense_layers, seed), session.mark()
    for contender in contenders:
        method = builder.build(contender)
        beside = session.beside(method)
        answer, counts = "", Counter[str]()
        for event in decode(
            logits,
            make_step(engine.loaded.model, beside),
            beside.stats,
            Sampler(),
            answer_text(engine.loaded.tokenizer, reasoning_open=False),
            engine.loaded.stop_ids,
            problem.max_tokens,
            perf_counter(),
        ):
            if isinstance(event, Token):
                answer += event.reasoning + event.text
                counts.update(_counts(beside.stats))  # of the step that gave the token
                beside.stats.reset()
            elif isinstance(event, Finished):
                answer += event.reasoning_tail + event.tail
            if problem.score(answer) == 1.0:
                break  # more words could not change the score
        session.rewind(mark)
        yield (
            contender,
            {
                "parameters": repr(method),
                "score": problem.score(answer),
                "answer": answer,
                "expected": list(problem.answers),
                **counts,
                "prompt_tokens": len(prompted.token_ids),
            },
        )


@torch.inference_mode()
def output_error(
    engine: Engine,
    token_ids: Sequence[int],
    n_steps: int,
    contenders: Sequence[Contender],
    dense_layers: tuple[int, ...],
    seed: int,
) -> Iterator[Outcome]:
    """Relative L2 error of each layer's and head's output, over the last `n_steps` tokens of a text."""
    session, _ = read(engine, token_ids[:-n_steps], n_steps)
    builder = Builder(session, dense_layers, seed)
    methods = {c.label: builder.build(c) for c in contenders}
    probe = Probe(methods, dense_layers)
    step = make_step(engine.loaded.model, session.beside(probe))
    for token_id in token_ids[-n_steps:]:
        step(token_id)
    for contender in contenders:
        measured = probe.measured.get(contender.label)
        if measured is None:
            continue
        by_layer = {layer: torch.stack(steps) for layer, steps in measured.errors.items()}
        errors = torch.cat([steps.flatten() for steps in by_layer.values()])
        estimates = [estimate for steps in measured.estimates.values() for estimate in steps]
        yield (
            contender,
            {
                "parameters": repr(methods[contender.label]),
                "relative_error": float(errors.mean()),
                "relative_error_median": float(errors.median()),
                "relative_error_p90": float(errors.quantile(0.9)),
                "relative_error_by_layer_and_head": {
                    str(layer): [round(float(e), 5) for e in steps.mean(dim=0)]
                    for layer, steps in by_layer.items()
                },
                "outputs": len(errors),
                **_kept(errors, contender.tolerance),
                **_calibration(errors, torch.cat(estimates) if estimates else None),
                **_counts(measured.stats),
                "prompt_tokens": len(token_ids) - n_steps,
            },
        )


@torch.inference_mode()
def divergence(
    engine: Engine,
    token_ids: Sequence[int],
    n_steps: int,
    contenders: Sequence[Contender],
    dense_layers: tuple[int, ...],
    seed: int,
) -> Iterator[Outcome]:
    """KL divergence of next-token distributions from those of exact attention, and the text's log-likelihood.

    Teacher-forced: whatever a contender would have said, it reads the text's own tokens.
    """
    session, _ = read(engine, token_ids[:-n_steps], n_steps)
    builder, mark = Builder(session, dense_layers, seed), session.mark()
    fed, following = token_ids[-n_steps:-1], token_ids[-n_steps + 1 :]

    def distributions(of: Session) -> list[torch.Tensor]:
        step = make_step(engine.loaded.model, of)
        result = [torch.log_softmax(step(token_id).double(), dim=0).float().cpu() for token_id in fed]
        session.rewind(mark)
        return result

    exact = distributions(session)
    for contender in contenders:
        method = builder.build(contender)
        beside = session.beside(method)
        found = exact if contender.method == "dense" else distributions(beside)
        kl = [
            float((p.double().exp() * (p.double() - q.double())).sum())
            for p, q in zip(exact, found, strict=True)
        ]
        likelihood = [float(q[token_id]) for q, token_id in zip(found, following, strict=True)]
        yield (
            contender,
            {
                "parameters": repr(method),
                "kl_mean": sum(kl) / len(kl),
                "kl_max": max(kl),
                "negative_log_likelihood": -sum(likelihood) / len(likelihood),
                "steps": len(kl),
                **_counts(beside.stats),
                "prompt_tokens": len(token_ids) - n_steps,
            },
        )
