"""Exact attention for just those KV groups of a step whose estimated error exceeds a tolerance.

A sampled step knows its own error (`lsh.estimator`), so it can tell where the sample was too small for what
was asked for. There all keys are read, from the same store and by the same kernel as exact attention.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from magicpig_cli.attention.base import LayerContext
from magicpig_cli.lsh.layer import LshLayer, StepResult
from magicpig_cli.lsh.params import LayerShape, LshParams


class Correction:
    """Judges the results of one layer's steps, and replaces what is too inaccurate.

    Parameters
    ----------
    tolerance : float
        Largest estimated relative L2 error of a head's output that stands, at least 0.
    context : LayerContext

    Attributes
    ----------
    corrected : frozenset of int
        KV heads that the last step attended exactly.
    """

    def __init__(self, tolerance: float, context: LayerContext) -> None:
        self._tolerance, self._context = tolerance, context
        self.corrected: frozenset[int] = frozenset()
        shape = context.shape
        self._kernel = LshLayer(LshParams(), LayerShape(shape.group_size, 1, shape.head_dim))

    def apply(self, query: np.ndarray, result: StepResult) -> int:
        """Attend exactly where `result` errs too much; it is changed in place.

        All query heads of a KV group are attended together: the rows are read once for them.

        Parameters
        ----------
        query : numpy.ndarray
            float32, (n_q_heads, head_dim).
        result : StepResult
            Of the sampled step; the heads made exact have no error afterwards.

        Returns
        -------
        int
            Query heads made exact.
        """
        context, shape, stats = self._context, self._context.shape, self._context.stats
        started = perf_counter()
        # Whatever is not known to be within the tolerance exceeds it.
        over = ~(np.sqrt(result.squared_error) <= self._tolerance)
        groups = np.flatnonzero(over.reshape(shape.n_kv_heads, shape.group_size).any(axis=1))
        everything = [(0, context.store.n_tokens)]
        for kv_head in groups:
            heads = slice(kv_head * shape.group_size, (kv_head + 1) * shape.group_size)
            rows = context.store.rows[kv_head : kv_head + 1]
            exact = self._kernel.attend(query[heads], rows, everything, context.scale, context.softcap)
            result.out[heads], result.lse[heads] = exact.out, exact.lse
            result.squared_error[heads] = 0.0
        self.corrected = frozenset(groups.tolist())
        n_exact = len(groups) * shape.group_size
        stats.attend_ms += (perf_counter() - started) * 1e3
        stats.heads_judged += shape.n_q_heads
        stats.heads_exact += n_exact
        return n_exact
