"""More keys for just those KV groups of a step whose estimated error exceeds a tolerance.

A sampled step knows its own error (`lsh.estimator`), so it can tell where the sample was too small for what
was asked for. There the keys that were found in fewer tables are attended too, which needs no further search;
and where even all of them would be too few, all keys, by the same kernel as exact attention.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from magicpig_cli.attention.base import LayerContext
from magicpig_cli.lsh.layer import LshLayer, StepResult
from magicpig_cli.lsh.params import LayerShape, LshParams

# With a sample of the keys found in M' instead of M tables, the estimate falls to about (M'/M)^1.5 of what it
# was: on real keys M = 6, 4, 3, 2, 1 gave 1, 0.44, 0.26, 0.14, 0.05 with K=8, and M = 3, 2, 1 gave 1, 0.57,
# 0.27 with K=10 (docs/accuracy.md). Only the first guess hangs on it: what counts is the new estimate.
_FALL = 1.5


class Correction:
    """Judges the results of one layer's steps, and attends again where they are too inaccurate.

    Parameters
    ----------
    tolerance : float
        Largest estimated relative L2 error of a head's output that stands, at least 0.
    context : LayerContext
    tables : LshLayer
        Whose results are judged.

    Attributes
    ----------
    corrected : frozenset of int
        KV heads that the last step attended exactly.
    """

    def __init__(self, tolerance: float, context: LayerContext, tables: LshLayer) -> None:
        self._tolerance, self._context, self._tables = tolerance, context, tables
        self.corrected: frozenset[int] = frozenset()
        shape = context.shape
        self._kernel = LshLayer(LshParams(), LayerShape(shape.group_size, 1, shape.head_dim))

    def apply(self, query: np.ndarray, result: StepResult, exact: list[tuple[int, int]]) -> None:
        """Attend again where `result` errs too much; it is changed in place, and what was read is counted.

        All query heads of a KV group are attended together: the rows are read once for them.

        Parameters
        ----------
        query : numpy.ndarray
            float32, (n_q_heads, head_dim).
        result : StepResult
            Of the sampled step; the heads made exact have no error afterwards.
        exact : list of (start, stop)
            Token ranges outside the tables.
        """
        shape, stats = self._context.shape, self._context.stats
        started = perf_counter()
        over = [
            kv_head for kv_head in range(shape.n_kv_heads) if self._error(kv_head, result) > self._tolerance
        ]
        self.corrected = frozenset(kv for kv in over if not self._resampled(kv, query, result, exact))
        stats.attend_ms += (perf_counter() - started) * 1e3
        stats.heads_judged += shape.n_q_heads
        stats.heads_resampled += (len(over) - len(self.corrected)) * shape.group_size
        stats.heads_exact += len(self.corrected) * shape.group_size

    def _error(self, kv_head: int, result: StepResult) -> float:
        """The largest estimate of a KV group; what is not known counts as infinite."""
        worst = float(np.sqrt(result.squared_error[self._heads(kv_head)]).max())
        return worst if worst == worst else np.inf

    def _heads(self, kv_head: int) -> slice:
        size = self._context.shape.group_size
        return slice(kv_head * size, (kv_head + 1) * size)

    def _resampled(
        self, kv_head: int, query: np.ndarray, result: StepResult, exact: list[tuple[int, int]]
    ) -> bool:
        """Take ever more keys of a KV group until it errs little enough, or all; whether a sample did."""
        context, tables = self._context, self._tables
        heads, least = self._heads(kv_head), tables.params.min_collisions
        while (error := self._error(kv_head, result)) > self._tolerance:
            fall = (self._tolerance / error) ** (1 / _FALL)
            least = min(least - 1, int(least * fall))
            if least < 1:
                self._attend_exactly(kv_head, query, result)
                return False
            tables.attend_again(
                kv_head, least, query, context.store.rows, exact, context.scale, context.softcap
            )
            context.stats.keys_touched += int(result.n_sampled[heads].sum())
        return True

    def _attend_exactly(self, kv_head: int, query: np.ndarray, result: StepResult) -> None:
        context, heads = self._context, self._heads(kv_head)
        rows = context.store.rows[kv_head : kv_head + 1]
        everything = [(0, context.store.n_tokens)]
        exact = self._kernel.attend(query[heads], rows, everything, context.scale, context.softcap)
        result.out[heads], result.lse[heads] = exact.out, exact.lse
        result.squared_error[heads] = 0.0
        context.stats.keys_touched += (self._tables.stop - self._tables.start) * context.shape.group_size
