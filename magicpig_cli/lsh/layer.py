"""The tables of one layer and one attention step over them: what the seam calls.

Owns every array that the kernels use, so that a step allocates nothing: the hash plan, the
blocks of tables, counts, partial sums and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numba
import numpy as np

from magicpig_cli.lsh import kernels
from magicpig_cli.lsh.estimator import log_sampling_table
from magicpig_cli.lsh.hashing import draw_plan, hash_keys, mean_key
from magicpig_cli.lsh.jit import KERNEL_LOCK
from magicpig_cli.lsh.kernels import COUNTS_PER_WORD
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.tables import BLOCK_KEYS, TableBlock, append_block, empty_block, sort_by_code
from magicpig_cli.lsh.tile import GROUP_HEADS
from magicpig_cli.lsh.weights import key_weights, log_inclusion, widened

# Tasks that a step is cut into, at least: enough for many cores to share evenly, few enough that their
# partial sums and counts cost nothing. Fixed, not taken from the threads, so that sums come out the same.
_ATTEND_TASKS = 32
_RETRIEVE_TASKS = 8


@dataclass(slots=True)
class StepResult:
    """One step's attention; the arrays are the layer's own and hold until its next step.

    Attributes
    ----------
    out : numpy.ndarray
        float32, (n_q_heads, head_dim).
    lse : numpy.ndarray
        float32, (n_q_heads,): log of the (estimated) sum of exponentiated logits.
    n_sampled : numpy.ndarray
        int64, (n_q_heads,): sampled keys that the head attended to, the same for all heads of a group.
    squared_error : numpy.ndarray
        float32, (n_q_heads,): estimated squared L2 error of `out` over its squared norm
        (`estimator.squared_error`).
    retrieve_ms, attend_ms : float
    """

    out: np.ndarray
    lse: np.ndarray
    n_sampled: np.ndarray
    squared_error: np.ndarray
    retrieve_ms: float = 0.0
    attend_ms: float = 0.0


class LshLayer:
    """Hash tables over the keys of one layer.

    Parameters
    ----------
    params : LshParams
    shape : LayerShape

    Attributes
    ----------
    start, stop : int
        Tokens start to stop - 1 are in the tables.
    mean : numpy.ndarray
        float32, (n_kv_heads, head_dim): m_c, the mean of the keys of the first build.
    plan : HashPlan
    n_groups : int
        Groups of query heads that sample together: those of a KV head, at most GROUP_HEADS of them.
    n_parts : int
        Parts that a group's keys are attended in.
    hash_s : float
        Seconds of building that went into hashing (the rest is sorting).
    """

    def __init__(self, params: LshParams, shape: LayerShape) -> None:
        self.params = params
        self.shape = shape
        self.start = self.stop = 0
        self.hash_s = 0.0
        self._blocks: list[TableBlock] = []
        self.plan = draw_plan(params, shape)
        self.mean = np.zeros((shape.n_kv_heads, shape.head_dim), np.float32)
        # M of each KV head's last step.
        self._least = np.full(shape.n_kv_heads, params.min_collisions)
        self._counter = np.zeros(1, np.int64)
        per_kv_head = -(-shape.group_size // GROUP_HEADS)
        self.n_groups = shape.n_kv_heads * per_kv_head
        self.n_parts = -(-_ATTEND_TASKS // self.n_groups)
        self._n_splits = min(params.n_tables, -(-_RETRIEVE_TASKS // self.n_groups))
        self._counts = np.zeros((self.n_groups, self._n_splits, 0), np.uint8)
        self._query_tiles = np.zeros((2, self.plan.padded_dim, GROUP_HEADS), np.float32)
        self._codes = np.zeros((self.n_groups, params.n_tables, GROUP_HEADS), np.uint16)
        n_tasks = self.n_groups * self.n_parts
        self._sums = np.zeros((n_tasks, GROUP_HEADS, 4), np.float32)
        self._outs = np.zeros((n_tasks, GROUP_HEADS, 2, shape.head_dim), np.float32)
        self._part_sampled = np.zeros(n_tasks, np.int64)
        self._result = StepResult(
            np.zeros((shape.n_q_heads, shape.head_dim), np.float32),
            np.zeros(shape.n_q_heads, np.float32),
            np.zeros(shape.n_q_heads, np.int64),
            np.zeros(shape.n_q_heads, np.float32),
        )

    @property
    def result(self) -> StepResult:
        """Of the last step."""
        return self._result

    @property
    def nbytes(self) -> int:
        """Bytes of the tables: ids and offsets."""
        return sum(block.nbytes for block in self._blocks)

    def build(self, rows: np.ndarray, start: int, stop: int) -> None:
        """Hash tokens start to stop - 1 into fresh tables; their mean key becomes the centre.

        Parameters
        ----------
        rows : numpy.ndarray
            uint16 bf16 bit patterns, (n_kv_heads, capacity, 2, head_dim).
        start, stop : int
            stop > start.
        """
        if stop <= start:
            raise ValueError(f"no keys to build from: start {start}, stop {stop}")
        with KERNEL_LOCK:
            mean_key(rows, start, stop, self.mean)
        self._blocks = []
        self.start = self.stop = start
        self.hash_s = 0.0
        for first in range(start, stop, BLOCK_KEYS):
            self._blocks.append(self._hash_block(rows, first, min(stop, first + BLOCK_KEYS)))
        self._cover(stop)

    def insert(self, rows: np.ndarray, start: int, stop: int) -> None:
        """Add tokens start to stop - 1, where start is `self.stop`, with the centre that there is."""
        if start != self.stop or not self._blocks:
            raise ValueError(f"tables end at token {self.stop}, so tokens cannot be added at {start}")
        for first in range(start, stop, BLOCK_KEYS):
            self._blocks = append_block(
                self._blocks, self._hash_block(rows, first, min(stop, first + BLOCK_KEYS))
            )
        self._cover(stop)

    def mark(self) -> Any:
        """What `rewind` needs to come back to the keys held now."""
        return self.start, self.stop, tuple(self._blocks)

    def rewind(self, mark: Any) -> None:
        """Forget keys that were inserted after `mark`; blocks are never changed, so this costs nothing."""
        self.start, stop, blocks = mark
        self._blocks = list(blocks)
        self._cover(stop)

    def attend(
        self,
        query: np.ndarray,
        rows: np.ndarray,
        exact: Sequence[tuple[int, int]],
        scale: float,
        softcap: float = 0.0,
    ) -> StepResult:
        """Attention of one step: the tables' keys by sampling, the ranges `exact` with certainty.

        Parameters
        ----------
        query : numpy.ndarray
            float32, (n_q_heads, head_dim).
        rows : numpy.ndarray
            uint16 bf16 bit patterns, (n_kv_heads, capacity, 2, head_dim).
        exact : sequence of (start, stop)
            Token ranges outside the tables.
        scale, softcap : float
        """
        result, least = self._result, self.params.min_collisions
        self._least[:] = least
        with KERNEL_LOCK:
            started = perf_counter()
            if self._blocks:
                self._retrieve(query)
            retrieved = perf_counter()
            self._attend_heads(slice(0, self.shape.n_kv_heads), least, query, rows, exact, scale, softcap)
            result.retrieve_ms = (retrieved - started) * 1e3
            result.attend_ms = (perf_counter() - retrieved) * 1e3
        return result

    def attend_again(
        self,
        kv_head: int,
        min_collisions: int,
        query: np.ndarray,
        rows: np.ndarray,
        exact: Sequence[tuple[int, int]],
        scale: float,
        softcap: float = 0.0,
    ) -> None:
        """Attend again with the query heads of one KV head, to the keys found in fewer tables than before.

        What the last `attend` retrieved serves again; its result is changed in place.

        Parameters
        ----------
        kv_head : int
        min_collisions : int
            1 to the M of `params`; the smaller, the more keys.
        query, rows, exact, scale, softcap
            As the last call of `attend` got them.
        """
        self._least[kv_head] = min_collisions
        with KERNEL_LOCK:
            heads = slice(kv_head, kv_head + 1)
            self._attend_heads(heads, min_collisions, query, rows, exact, scale, softcap)

    def _attend_heads(
        self,
        kv_heads: slice,
        min_collisions: int,
        query: np.ndarray,
        rows: np.ndarray,
        exact: Sequence[tuple[int, int]],
        scale: float,
        softcap: float,
    ) -> None:
        """The kernel for some KV heads and all query heads of theirs, into the same part of the result."""
        result, size = self._result, self.shape.group_size
        per_kv_head = self.n_groups // self.shape.n_kv_heads
        heads = slice(kv_heads.start * size, kv_heads.stop * size)
        groups = slice(kv_heads.start * per_kv_head, kv_heads.stop * per_kv_head)
        tasks = slice(groups.start * self.n_parts, groups.stop * self.n_parts)
        sums, outs, sampled = self._sums[tasks], self._outs[tasks], self._part_sampled[tasks]
        self._counter[0] = 0
        kernels.attend(
            query[heads],
            rows[kv_heads],
            np.asarray(exact, np.int64).reshape(-1, 2),
            self._counts.view(np.uint64)[groups],
            min_collisions,
            self.start,
            self.mean[kv_heads],
            self.params.n_bits,
            log_sampling_table(self.params.n_tables, min_collisions),
            np.float32(scale),
            np.float32(softcap),
            self.n_parts,
            numba.get_num_threads(),
            self._counter,
            sums,
            outs,
            sampled,
        )
        kernels.reduce_parts(
            sums,
            outs,
            sampled,
            groups.stop - groups.start,
            self.n_parts,
            result.out[heads],
            result.lse[heads],
            result.n_sampled[heads],
            result.squared_error[heads],
        )

    def sampled_tokens(self, query: np.ndarray) -> list[np.ndarray]:
        """The tokens that a step with these queries samples, ascending, an array per group of heads."""
        self._least[:] = self.params.min_collisions
        with KERNEL_LOCK:
            self._retrieve(query)
        return self._marked()

    def weights(
        self,
        query: np.ndarray,
        rows: np.ndarray,
        exact: Sequence[tuple[int, int]],
        lse: np.ndarray,
        scale: float,
        softcap: float = 0.0,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The weights of the keys that the last step read, computed again.

        Parameters
        ----------
        query, rows, exact, scale, softcap
            As the last call of `attend` got them.
        lse : numpy.ndarray
            As it gave it, float32, (n_q_heads,).

        Returns
        -------
        list of (tokens, weights)
            Per group of query heads, in order: int64, (n,) and float32, (n_heads, n).
        """
        certain = [np.arange(start, stop) for start, stop in exact]
        samples = self._marked() if self._blocks else [np.empty(0, np.int64)] * self.n_groups
        per_kv_head = self.n_groups // self.shape.n_kv_heads
        result = []
        for group, sample in enumerate(samples):
            heads = slice(
                self.shape.n_q_heads * group // self.n_groups,
                self.shape.n_q_heads * (group + 1) // self.n_groups,
            )
            kv_head = group // per_kv_head
            params = replace(self.params, min_collisions=int(self._least[kv_head]))
            tokens = np.concatenate([*certain, sample])
            keys = widened(rows[kv_head, tokens, 0])
            log_u = np.zeros(len(tokens))
            n_certain = len(tokens) - len(sample)
            log_u[n_certain:] = log_inclusion(query[heads], keys[n_certain:], self.mean[kv_head], params)
            result.append((tokens, key_weights(query[heads], keys, lse[heads], scale, softcap, log_u)))
        return result

    def _marked(self) -> list[np.ndarray]:
        """The tokens that the last retrieval found often enough, ascending, an array per group of heads."""
        per_kv_head = self.n_groups // self.shape.n_kv_heads
        least = np.repeat(self._least, per_kv_head)[:, None]
        found = self._counts.sum(axis=1, dtype=np.int64) >= least
        return [self.start + np.flatnonzero(row) for row in found]

    def _retrieve(self, query: np.ndarray) -> None:
        plan = self.plan
        kernels.hash_all_queries(query, plan.signs, plan.n_bits, self._query_tiles, self._codes)
        for block in self._blocks:
            self._counter[0] = 0
            kernels.retrieve(
                self._codes,
                self.shape.n_q_heads,
                block.start - self.start,
                block.offsets,
                block.ids,
                self.params.min_collisions,
                numba.get_num_threads(),
                self._counter,
                self._counts,
            )

    def _hash_block(self, rows: np.ndarray, start: int, stop: int) -> TableBlock:
        params, n_keys = self.params, stop - start
        block = empty_block(start, n_keys, self.shape.n_kv_heads, params.n_tables, params.n_bits)
        codes = np.empty((params.n_tables, n_keys), np.uint16)
        with KERNEL_LOCK:
            for head in range(self.shape.n_kv_heads):
                started = perf_counter()
                hash_keys(
                    rows[head], start, stop, self.mean[head], self.plan.signs[head], params.n_bits, codes
                )
                self.hash_s += perf_counter() - started
                sort_by_code(codes, n_keys, block.offsets[head], block.ids[head])
        return block

    def _cover(self, stop: int) -> None:
        """Counts for tokens up to `stop`."""
        self.stop = stop
        # Whole words, which kernels read; what is beyond the keys is never counted.
        n_counts = -(-(stop - self.start) // COUNTS_PER_WORD) * COUNTS_PER_WORD
        if n_counts != self._counts.shape[2]:
            self._counts = np.zeros((self.n_groups, self._n_splits, n_counts), np.uint8)
