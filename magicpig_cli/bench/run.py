"""`magicpig bench`: which measurements a request needs, in order, and their results as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.registry import MethodOptions, build_method
from magicpig_cli.bench.decode import (
    DecodeFigures,
    PrefillFigures,
    extend_session,
    measure_decode,
    read_text,
    require_full_layers,
)
from magicpig_cli.bench.kernel import KernelFigures, measure_kernel
from magicpig_cli.bench.keys import KeySet, generate_keys
from magicpig_cli.bench.room import require_layer, require_model
from magicpig_cli.bench.timing import Timing
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.memory import host_peak_bytes
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.models.machine import cpu_name, versions
from magicpig_cli.models.profiles import dense_layers

# One layer at the shapes of models whose weights are not needed for it: q heads, KV heads, head_dim, layers.
SHAPES: dict[str, tuple[LayerShape, int]] = {
    "llama-3.1-8b": (LayerShape(32, 8, 128), 32),
    "llama-3.2-3b": (LayerShape(24, 8, 128), 28),
    "llama-3.2-1b": (LayerShape(32, 8, 64), 16),
    "qwen2.5-7b": (LayerShape(28, 4, 128), 28),
    "smollm2-135m": (LayerShape(9, 3, 64), 30),
}
# Real tokens that a decode benchmark reads before it extends their keys: 2,048 take seconds on two cores.
REAL_TOKENS = 2048
_QUERIES = 8


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure.

    Attributes
    ----------
    n_bits, n_tables, min_collisions : int or None
        None chooses by context, as `ask` does.
    rounds : int
        Measured rounds of each contender.
    seed : int
        Of keys and hyperplanes.
    """

    n_bits: int | None = None
    n_tables: int | None = None
    min_collisions: int | None = None
    rounds: int = 15
    seed: int = 0


Progress = Callable[[str], None]


def bench_shape(
    name: str, contexts: list[int], options: BenchOptions, threads: int | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """One layer at a named shape, for every context.

    Raises
    ------
    UsageError
        If the shape is unknown.
    DoesNotFit
        If there is no memory for one of the contexts, before the first is measured.
    """
    if name not in SHAPES:
        raise UsageError(f"there is no shape {name!r}; choose one of {', '.join(SHAPES)}")
    use_threads(threads or available_cores())
    shape, n_layers = SHAPES[name]
    require_layer(name, shape, contexts, lambda ctx: _params(ctx, options))
    for ctx in contexts:
        progress(f"generating {ctx:,} keys at the shape of {name}")
        keys = generate_keys(shape, ctx, _QUERIES, options.seed)
        progress(f"measuring the kernels on {ctx:,} keys")
        figures = measure_kernel(keys, shape, _params(ctx, options), options.rounds)
        result = _common(ctx, None, shape, n_layers, options, keys)
        yield result | _kernel_json(figures) | {"decode": None, "prefill": None, "memory": _memory_json()}


def bench_model(
    engine: Engine, contexts: list[int], options: BenchOptions, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Kernels, whole decode steps and prefill of a loaded model, for every context.

    Raises
    ------
    UsageError
        If some of the model's layers keep only a window.
    DoesNotFit
        If there is no memory for one of the contexts, before the first is measured.
    """
    require_full_layers(engine)
    require_model(engine, contexts, lambda ctx: _params(ctx, options))
    n_real = min(REAL_TOKENS, min(contexts), engine.loaded.context_tokens)
    progress(f"reading {n_real:,} tokens of real text")
    dense, prefill = read_text(engine, n_real)
    for ctx in sorted(contexts):
        progress(f"extending the keys of {engine.n_layers} layers to {ctx:,} tokens")
        extend_session(dense, ctx, 64, options.seed, lambda layer: None)
        params = _params(ctx, options)
        chosen = engine.settings.dense_layers
        method = build_method(
            "lsh",
            MethodOptions(
                ctx,
                dense_layers(engine.n_layers) if chosen is None else chosen,
                params.n_bits,
                params.n_tables,
                params.min_collisions,
                options.seed,
                tolerance=engine.settings.tolerance,
            ),
        )
        progress(f"building the tables of {ctx:,} keys per layer")
        sampled = dense.beside(method)
        progress(f"decoding at {ctx:,} tokens, sampled and dense in turns")
        mark = dense.mark()
        decode = measure_decode(engine, dense, sampled, options.rounds)
        del sampled
        dense.rewind(mark)
        progress(f"measuring the kernels on {ctx:,} keys of layer {engine.n_layers // 2}")
        keys, shape = _layer_keys(dense, engine.n_layers // 2, ctx, n_real)
        figures = measure_kernel(keys, shape, params, options.rounds)
        result = _common(ctx, engine, shape, engine.n_layers, options, keys)
        yield (
            result
            | _kernel_json(figures)
            | {
                "decode": _decode_json(decode),
                "prefill": _prefill_json(prefill),
                "memory": _memory_json(),
            }
        )


def _params(ctx: int, options: BenchOptions) -> LshParams:
    return lsh_params(ctx, options.n_bits, options.n_tables, options.min_collisions, options.seed)


def _layer_keys(session: Any, layer: int, ctx: int, n_real: int) -> tuple[KeySet, LayerShape]:
    """The keys of one layer of the session, with queries that the model asked at the end of the text."""
    store, observed = session.stores[layer], session.observed(layer)
    shape = LayerShape(observed.shape[0], store.rows.shape[0], store.rows.shape[3])
    queries = np.ascontiguousarray(observed[:, -_QUERIES:].float().cpu().numpy().transpose(1, 0, 2))
    description = (
        f"layer {layer} of the model reading {n_real:,} tokens of text, extended to {ctx:,} by drawing "
        "stretches of 64 tokens again and moving each a little"
    )
    rows = np.ascontiguousarray(store.rows[:, :ctx])
    return KeySet(rows, queries, "model", description), shape


def _common(
    ctx: int, engine: Engine | None, shape: LayerShape, n_layers: int, options: BenchOptions, keys: KeySet
) -> dict[str, Any]:
    params = _params(ctx, options)
    trained = engine.loaded.context_tokens if engine else None
    return {
        "ctx": ctx,
        "model": engine.model_id if engine else None,
        "beyond_trained_context": None if trained is None else ctx > trained,
        "shape": {
            "n_layers": n_layers,
            "n_q_heads": shape.n_q_heads,
            "n_kv_heads": shape.n_kv_heads,
            "head_dim": shape.head_dim,
        },
        "n_bits": params.n_bits,
        "n_tables": params.n_tables,
        "min_collisions": params.min_collisions,
        "threads": int(numba.get_num_threads()),
        "seed": options.seed,
        "machine": machine(),
        "keys": {"source": keys.source, "description": keys.description},
    }


def machine() -> dict[str, str | None]:
    """What the figures were measured on and with."""
    found = versions()
    return {"cpu": cpu_name()} | {name: found[name] for name in ("python", "numpy", "numba", "torch")}


def _timed(name: str, timing: Timing) -> dict[str, float]:
    return {name: timing.median_ms, f"{name}_min": timing.min_ms, f"{name}_max": timing.max_ms}


def _kernel_json(figures: KernelFigures) -> dict[str, Any]:
    return {
        "sampled_share": figures.sampled_share,
        "sampled_bytes_per_step": figures.sampled_bytes_per_step,
        "kernel": {
            "hash_s_per_layer": figures.hash_s_per_layer,
            "build_s_per_layer": figures.build_s_per_layer,
            **_timed("retrieve_ms", figures.retrieve),
            **_timed("attend_ms", figures.attend),
            **_timed("step_ms", figures.step),
            **_timed("gather_floor_ms", figures.gather_floor),
            **_timed("sequential_read_ms", figures.sequential_read),
            **_timed("dense_ms", figures.dense),
            "dense_form": figures.dense_form,
            "step_over_floor": figures.step_over_floor,
            "dense_over_step": figures.dense_over_step,
            "sequential_read_over_step": figures.sequential_over_step,
            "relative_error": figures.relative_error,
            "table_bytes_per_layer": figures.table_bytes_per_layer,
        },
    }


def _decode_json(figures: DecodeFigures) -> dict[str, Any]:
    return {
        **_timed("ms_per_token", figures.step),
        **_timed("cpu_attention_ms_per_token", figures.attention),
        **_timed("dense_ms_per_token", figures.dense),
        "speedup": figures.speedup,
        "sampled_share": figures.sampled_share,
        "estimated_error": figures.estimated_error,
        "exact_share": figures.exact_share,
        "resampled_share": figures.resampled_share,
        "kv_bytes": figures.kv_bytes,
        "table_bytes": figures.table_bytes,
    }


def _prefill_json(figures: PrefillFigures) -> dict[str, Any]:
    return {"tokens": figures.tokens, "tokens_per_s": figures.tokens_per_s}


def _memory_json() -> dict[str, Any]:
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return {"device_peak_bytes": device, "host_peak_bytes": host_peak_bytes()}
