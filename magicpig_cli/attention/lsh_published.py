"""The published estimator of MagicPIG, for comparison: every query head samples alone.

`lsh` lets the query heads of a KV group share what any of them finds, with the joint probability;
this is the method it started from, in plain array operations and without tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import Choice, SelectingLayer, SelectingMethod
from magicpig_cli.lsh.estimator import inclusion_prob
from magicpig_cli.lsh.hashing import draw_plan, hash_keys, mean_key
from magicpig_cli.lsh.jit import KERNEL_LOCK
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.lsh.reference import hash_codes


@dataclass(frozen=True, slots=True)
class LshPublished(SelectingMethod):
    """MagicPIG as published (arXiv 2410.16179): K = 10, L = 150, 4 sinks, 64 recent tokens.

    A key counts 1/u times, u being the chance that it collides with this one query head in at least
    two tables.

    Attributes
    ----------
    params : LshParams
    """

    params: LshParams = field(default_factory=LshParams)
    name = "lsh-published"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return PublishedLayer(self, context)


class PublishedLayer(SelectingLayer):
    """Codes of all keys; a step compares them with the query's instead of looking them up."""

    def __init__(self, method: LshPublished, context: LayerContext) -> None:
        super().__init__(method, context)
        # As `lsh`, hyperplanes of its own for every layer.
        self._params = replace(method.params, seed=method.params.seed + context.layer)
        self._plan = draw_plan(self._params, context.shape)
        shape = context.shape
        self._mean = np.zeros((shape.n_kv_heads, shape.head_dim), np.float32)
        self._codes = np.empty((shape.n_kv_heads, self._params.n_tables, 0), np.uint16)

    def prefilled(self, last_queries: torch.Tensor) -> None:
        self._follow(*self.middle())

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        self._follow(start, stop)
        context, shape, params = self.context, self.context.shape, self._params
        keys = context.store.read(start, stop)[0].float() - torch.from_numpy(self._mean)[:, None]
        rows = query.reshape(shape.n_kv_heads, shape.group_size, shape.head_dim)
        norms = rows.norm(dim=2)[:, :, None] * keys.norm(dim=2)[:, None]
        cosine = torch.bmm(rows, keys.transpose(1, 2)) / norms.clamp_min(1e-30)
        angle = torch.arccos(cosine.double().clamp(-1, 1)).reshape(shape.n_q_heads, -1).numpy()
        u = inclusion_prob((1 - angle / np.pi) ** params.n_bits, params.n_tables, params.min_collisions)
        drawn = np.empty(u.shape, bool)
        for kv_head, queries in enumerate(rows.numpy()):
            codes = self._codes[kv_head, :, : stop - start]
            for i, code in enumerate(hash_codes(queries, self._plan, kv_head).T):
                collisions = (codes == code[:, None]).sum(axis=0, dtype=np.int32)
                drawn[kv_head * shape.group_size + i] = collisions >= 2
        log_weights = torch.from_numpy(-np.log(np.maximum(u, 1e-300)))
        return Choice.where(torch.from_numpy(drawn), start, log_weights)

    def mark(self) -> Any:
        return self._codes.shape[2]

    def rewind(self, mark: Any) -> None:
        self._codes = self._codes[:, :, :mark]

    def _follow(self, start: int, stop: int) -> None:
        """Hash the keys that have come since; the first of them decide the centre."""
        known, rows = start + self._codes.shape[2], self.context.store.rows
        if stop <= known:
            return
        codes = np.empty((len(rows), self._params.n_tables, stop - known), np.uint16)
        with KERNEL_LOCK:
            if known == start:
                mean_key(rows, start, stop, self._mean)
            for head in range(len(rows)):
                signs = self._plan.signs[head]
                hash_keys(rows[head], known, stop, self._mean[head], signs, self._params.n_bits, codes[head])
        self._codes = np.concatenate([self._codes, codes], axis=2)

    @property
    def table_bytes(self) -> int:
        return self._codes.nbytes
