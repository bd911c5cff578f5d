"""One layer of sampled attention, measured beside its yardsticks on the same keys."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from magicpig_cli.bench.keys import KeySet
from magicpig_cli.bench.timing import Timing, ratio, take_turns
from magicpig_cli.bench.yardsticks import DENSE_FORMS, DenseContender, read_everything, read_rows
from magicpig_cli.lsh.jit import KERNEL_LOCK
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams

_SINKS, _RECENT = 4, 64
_TRIED_KEYS = 65_536


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Results of `measure_kernel`; times in milliseconds unless the name says seconds."""

    sampled_share: float
    sampled_bytes_per_step: int
    hash_s_per_layer: float
    build_s_per_layer: float
    retrieve: Timing
    attend: Timing
    step: Timing
    gather_floor: Timing
    sequential_read: Timing
    dense: Timing
    dense_form: str
    step_over_floor: float
    dense_over_step: float
    sequential_over_step: float
    relative_error: float
    table_bytes_per_layer: int


def measure_kernel(keys: KeySet, shape: LayerShape, params: LshParams, rounds: int = 15) -> KernelFigures:
    """Build the tables, then let step, floor, sequential read and dense attention take turns.

    Before the step and before the floor the whole layer is read once, so both find their rows
    in memory and not in a cache, as they would between the other layers of a model.

    Parameters
    ----------
    keys : KeySet
    shape : LayerShape
    params : LshParams
    rounds : int
    """
    n_keys = keys.rows.shape[1]
    start, stop = min(_SINKS, n_keys - 1), max(n_keys - _RECENT, min(_SINKS, n_keys - 1) + 1)
    exact = [(0, start), (stop, n_keys)]
    scale = shape.head_dim**-0.5
    layer = LshLayer(params, shape)
    layer.build(keys.rows, start, min(stop, start + 64))  # compiles
    build = perf_counter()
    layer.build(keys.rows, start, stop)
    build_s = perf_counter() - build
    n_steps = len(keys.queries)
    floors = [GatherFloor(layer, query, keys.rows, exact) for query in keys.queries]
    dense = fastest_dense(keys, scale)
    words = keys.rows.reshape(-1).view(np.uint64)
    sums = np.zeros(64, np.uint64)
    retrieve_ms: list[float] = []
    attend_ms: list[float] = []

    def step(turn: int) -> None:
        result = layer.attend(keys.queries[turn % n_steps], keys.rows, exact, scale)
        if turn:
            retrieve_ms.append(result.retrieve_ms)
            attend_ms.append(result.attend_ms)

    times = take_turns(
        {
            "sequential": lambda turn: read_everything(words, 64, sums),
            "step": step,
            "dense": lambda turn: dense(keys.queries[turn % n_steps]),
            "floor": lambda turn: floors[turn % n_steps](),
        },
        rounds,
    )
    errors, touched = _errors(layer, keys, exact, scale)
    return KernelFigures(
        sampled_share=touched / (stop - start) / shape.n_q_heads,
        sampled_bytes_per_step=int(np.mean([floor.n_bytes for floor in floors])),
        hash_s_per_layer=layer.hash_s,
        build_s_per_layer=build_s,
        retrieve=Timing.of(retrieve_ms),
        attend=Timing.of(attend_ms),
        step=Timing.of(times["step"]),
        gather_floor=Timing.of(times["floor"]),
        sequential_read=Timing.of(times["sequential"]),
        dense=Timing.of(times["dense"]),
        dense_form=dense.form,
        step_over_floor=ratio(times["step"], times["floor"]),
        dense_over_step=ratio(times["dense"], times["step"]),
        sequential_over_step=ratio(times["sequential"], times["step"]),
        relative_error=float(np.mean(errors)),
        table_bytes_per_layer=layer.nbytes,
    )


class GatherFloor:
    """Reads the rows that one step reads, in its order, with its threads, and does nothing else."""

    def __init__(
        self, layer: LshLayer, query: np.ndarray, rows: np.ndarray, exact: list[tuple[int, int]]
    ) -> None:
        samples = layer.sampled_tokens(query)
        per_kv_head = layer.n_groups // layer.shape.n_kv_heads
        certain = np.concatenate([np.arange(start, stop) for start, stop in exact])
        order, bounds = [], []
        begin = 0
        for head in range(layer.shape.n_kv_heads):
            union = np.unique(np.concatenate(samples[head * per_kv_head : (head + 1) * per_kv_head]))
            tokens = np.concatenate([certain, union])
            parts = np.linspace(0, len(tokens), layer.n_parts + 1).astype(np.int64) + begin
            bounds += [(head, parts[i], parts[i + 1]) for i in range(layer.n_parts)]
            order.append(tokens)
            begin += len(tokens)
        self._order = np.concatenate(order).astype(np.int64)
        self._bounds = np.array(bounds, np.int64)
        self._words = rows.reshape(*rows.shape[:2], -1).view(np.uint64)
        self._sums = np.zeros(len(bounds), np.uint64)
        self.n_bytes = len(self._order) * self._words.shape[2] * 8

    def __call__(self) -> None:
        with KERNEL_LOCK:
            read_rows(self._words, self._order, self._bounds, self._sums)


def fastest_dense(keys: KeySet, scale: float) -> DenseContender:
    """Dense attention in the form of torch's that is fastest on these keys and this machine.

    The forms are tried on the first keys, as many as no cache holds: only the chosen one gets a copy of all.
    """
    first = keys.rows[:, :_TRIED_KEYS]

    def milliseconds(form: str) -> float:
        dense = DenseContender(first, scale, form)
        return median(take_turns({form: lambda turn: dense(keys.queries[0])}, 2)[form])

    return DenseContender(keys.rows, scale, min(DENSE_FORMS, key=milliseconds))


def _errors(
    layer: LshLayer, keys: KeySet, exact: list[tuple[int, int]], scale: float
) -> tuple[list[float], float]:
    """Relative L2 errors of head outputs over all steps and heads, and sampled pairs per step."""
    whole = LshLayer(LshParams(), layer.shape)
    errors: list[float] = []
    touched = 0
    for query in keys.queries:
        truth = whole.attend(query, keys.rows, [(0, keys.rows.shape[1])], scale).out.copy()
        result = layer.attend(query, keys.rows, exact, scale)
        touched += int(result.n_sampled.sum())
        difference = np.linalg.norm(result.out - truth, axis=1)
        errors += (difference / np.linalg.norm(truth, axis=1)).tolist()
    return errors, touched / len(keys.queries)
