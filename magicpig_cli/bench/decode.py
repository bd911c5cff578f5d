"""Whole decode steps of the real model at a given context, sampled and dense in turns, and its prefill.

Reading 96,000 tokens for real would take many minutes, so the model reads as many as the time
budget allows, and its keys and values are extended to the context (`bench.keys.extend_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from magicpig_cli.attention.base import StepStats
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.session import Session
from magicpig_cli.bench.keys import extend_rows
from magicpig_cli.bench.text import reading_text
from magicpig_cli.bench.timing import Timing, ratio
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.prompt import PlainTextEncoder
from magicpig_cli.engine.step import make_step
from magicpig_cli.errors import UsageError
from magicpig_cli.models.shape import layer_windows


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """Results of `measure_decode`; `dense` goes through the same seam and the same model code."""

    step: Timing
    attention: Timing
    dense: Timing
    speedup: float
    sampled_share: float | None
    estimated_error: float | None
    exact_share: float | None
    resampled_share: float | None
    kv_bytes: int
    table_bytes: int


def require_full_layers(engine: Engine) -> None:
    """Refuse a model of which some layers keep a window of keys, which cannot be extended to a context.

    Raises
    ------
    UsageError
        Before anything is read.
    """
    windows = layer_windows(engine.loaded.model.config.get_text_config(decoder=True))
    sliding = sum(window is not None for window in windows)
    if sliding:
        raise UsageError(
            f"{sliding} of the {len(windows)} layers of {engine.model_id} keep only a sliding window, so "
            "their keys cannot be extended to a context; name a model whose layers all attend fully, or "
            "measure one layer with --shape"
        )


def read_text(engine: Engine, n_tokens: int) -> tuple[Session, PrefillFigures]:
    """Prefill `n_tokens` of real text, exactly as `ask` does, after a short warm-up."""
    encoder = PlainTextEncoder(engine.loaded.tokenizer)
    token_ids = encoder.encode(reading_text(8 * n_tokens))[:n_tokens]
    for warm_up in (token_ids[:64], token_ids):
        session = Session(Dense(), engine.n_layers, n_tokens, engine.device)
        started = perf_counter()
        with torch.inference_mode():
            for _progress in prefill(engine.loaded.model, session, warm_up, engine.settings.chunk_tokens):
                pass
        seconds = perf_counter() - started
    return session, PrefillFigures(n_tokens, seconds)


def extend_session(
    session: Session, n_tokens: int, room: int, seed: int, progress: Callable[[int], None]
) -> None:
    """Let every layer's store hold `n_tokens`: its real rows, and more like them.

    Parameters
    ----------
    session : Session
        Prefilled; becomes `n_tokens` long.
    n_tokens, room : int
        Context, and further tokens to make room for.
    seed : int
    progress : callable
        Gets the number of each layer that is done.
    """
    for layer, store in enumerate(session.stores):
        if store is None or store.first_token:
            raise ValueError(f"layer {layer} keeps a window only and cannot be extended")
        real = store.rows[:, : store.n_tokens].copy()
        store.reserve(n_tokens + room)
        store.rows[:, :n_tokens] = extend_rows(real, n_tokens, seed + layer)
        store.n_tokens = n_tokens
        progress(layer + 1)
    repeats = -(-n_tokens // session.n_tokens)
    session.token_ids = (session.token_ids * repeats)[:n_tokens]


def measure_decode(engine: Engine, session: Session, sampled: Session, rounds: int) -> DecodeFigures:
    """Steps of `sampled` and of `session` (dense) in turns, on the same tokens.

    Parameters
    ----------
    engine : Engine
    session : Session
        Dense, from `extend_session`.
    sampled : Session
        `session.beside(method)`.
    rounds : int
        Measured steps of each; two more come before them.
    """
    contenders = {"sampled": sampled, "dense": session}
    steps = {name: make_step(engine.loaded.model, each) for name, each in contenders.items()}
    times: dict[str, list[float]] = {"sampled": [], "dense": []}
    attention_ms: list[float] = []
    totals = StepStats()
    token = session.token_ids[-1]
    with torch.inference_mode():
        for turn in range(rounds + 2):
            for name, step in steps.items():
                stats = contenders[name].stats
                stats.reset()
                started = perf_counter()
                logits = step(token)
                elapsed = (perf_counter() - started) * 1e3
                if turn < 2:
                    continue
                times[name].append(elapsed)
                if name == "sampled":
                    attention_ms.append(stats.attention_ms)
                    totals.add(stats)
            token = int(logits.argmax())  # of the dense step: both go on with the same token
    return DecodeFigures(
        step=Timing.of(times["sampled"]),
        attention=Timing.of(attention_ms),
        dense=Timing.of(times["dense"]),
        speedup=ratio(times["dense"], times["sampled"]),
        sampled_share=totals.sampled_share,
        estimated_error=totals.estimated_error,
        exact_share=totals.exact_share,
        resampled_share=totals.resampled_share,
        kv_bytes=sampled.kv_bytes,
        table_bytes=sampled.table_bytes,
    )
