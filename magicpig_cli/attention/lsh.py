"""LSH-sampled attention (MagicPIG, arXiv 2410.16179): the default method.

Sinks and recent tokens are attended exactly; of the rest, only keys that share a bucket with a
query of their group in enough hash tables, each with weight 1/u for its inclusion
probability u. Tokens that leave the recent window enter the tables, so a long answer stays sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from magicpig_cli.attention.base import AttentionMethod, LayerAttention, LayerContext, Weighed
from magicpig_cli.attention.dense import dense_layer
from magicpig_cli.attention.exact import weigh_exactly
from magicpig_cli.attention.kept_tables import (
    KeepsTables,
    TableSource,
    TablesPlan,
    arrays_of,
    plan_tables,
    take_arrays,
)
from magicpig_cli.attention.tolerance import Correction
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LshParams

# Tokens that gather beyond the recent window before they enter the tables together. Until then they are
# attended exactly, which costs less than looking for them would: a block of tables has 2^K offsets per table,
# however few its keys.
_INSERT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Lsh(AttentionMethod):
    """Parameters as published (section 5): K, L, 4 sinks, 64 recent tokens, some dense layers; and M.

    Attributes
    ----------
    params : LshParams
        K, L, M and the seed of the hyperplanes.
    dense_layers : tuple of int
        Layers that attend exactly, because they attend broadly.
    n_sinks, n_recent : int
        Exact tokens at the start and at the end of the context.
    tolerance : float or None
        Where the estimated error of a head's output exceeds it, the head's KV group attends to more keys, if
        need be to all.
    """

    params: LshParams
    dense_layers: tuple[int, ...] = (0,)
    n_sinks: int = 4
    n_recent: int = 64
    tolerance: float | None = None
    name = "lsh"

    def layer(self, context: LayerContext) -> LayerAttention:
        return dense_layer(context) if context.layer in self.dense_layers else SampledLayer(self, context)


class SampledLayer(LayerAttention):
    """Tables of one layer, and the exact ranges around what they cover.

    Which keys are hashed together is decided as the store grows, and done when it is needed: the tables come
    out the same whenever that is, and in whichever thread.
    """

    def __init__(self, method: Lsh, context: LayerContext) -> None:
        self._method = method
        self._context = context
        # Every layer draws hyperplanes of its own, so that their errors are independent.
        params = replace(method.params, seed=method.params.seed + context.layer)
        self._tables = LshLayer(params, context.shape)
        # Held while tables change, which may happen beside the thread that reads (`builder`).
        self._changing = threading.RLock()
        # Tokens at which one hashing ends and the next begins; how many of them are done; and the tables as
        # they were after so many, where `mark` asked (None until they are).
        self._stops: list[int] = []
        self._n_hashed = 0
        self._marks: dict[int, Any] = {}
        self._source: TableSource | None = None
        self._correction = (
            None if method.tolerance is None else Correction(method.tolerance, context, self._tables)
        )

    def prefilled(self, last_queries: torch.Tensor) -> None:
        self._follow_store()

    def prepare(self) -> None:
        with self._changing:
            tables, rows = self._tables, self._context.store.rows
            for stop in self._stops[self._n_hashed :]:
                if not self._n_hashed:
                    self._build(stop)
                elif tables.stop < stop:
                    tables.insert(rows, tables.stop, stop)
                self._n_hashed += 1
                if self._n_hashed in self._marks:
                    self._marks[self._n_hashed] = tables.mark()

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        context, store, tables = self._context, self._context.store, self._tables
        self._follow_store()
        self.prepare()
        host_query, exact = context.transfer.to_host(query), self._exact()
        result = tables.attend(host_query, store.rows, exact, context.scale, context.softcap)
        stats = context.stats
        stats.retrieve_ms += result.retrieve_ms
        stats.attend_ms += result.attend_ms
        n_keys = tables.stop - tables.start
        stats.keys_offered += n_keys * context.shape.n_q_heads
        stats.keys_touched += int(result.n_sampled.sum())
        if self._correction is not None:
            self._correction.apply(host_query, result, exact)
        stats.error_sum += float(result.squared_error.sum())
        stats.error_count += context.shape.n_q_heads
        return context.transfer.to_device(result.out, result.lse, query)

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        context, rows = self._context, self._context.store.rows
        host_query, sums = query.float().cpu().numpy(), lse.float().cpu().numpy()
        found = self._tables.weights(host_query, rows, self._exact(), sums, context.scale, context.softcap)
        sampled = [Weighed(tokens, weights) for tokens, weights in found]
        corrected = self._correction.corrected if self._correction is not None else ()
        if not corrected:
            return sampled
        whole = weigh_exactly(query, lse, context, 0, context.store.n_tokens)
        per_kv_head = len(sampled) // len(whole)
        return [
            weighed
            for i, exactly in enumerate(whole)
            for weighed in ([exactly] if i in corrected else sampled[i * per_kv_head : (i + 1) * per_kv_head])
        ]

    def _exact(self) -> list[tuple[int, int]]:
        """Ranges of tokens outside the tables."""
        return [(0, self._tables.start), (self._tables.stop, self._context.store.n_tokens)]

    @property
    def estimated_error(self) -> torch.Tensor:
        return torch.from_numpy(self._tables.result.squared_error).sqrt()

    def _build(self, stop: int) -> None:
        """The first tables, from whoever offers the very same or from the keys."""
        tables, start, arrays = self._tables, self._method.n_sinks, None
        if self._source is not None:
            arrays = self._source(plan_tables(tables, start, stop).key)
        if arrays is None:
            tables.build(self._context.store.rows, start, stop)
        else:
            take_arrays(tables, start, arrays)

    @property
    def keeper_of_tables(self) -> KeepsTables:
        return self

    def planned_tables(self) -> TablesPlan | None:
        return plan_tables(self._tables, self._method.n_sinks, self._stops[0]) if self._stops else None

    def first_tables(self) -> Mapping[str, np.ndarray]:
        self.prepare()
        return arrays_of(self._tables)

    def offer_tables(self, source: TableSource) -> None:
        self._source = source

    def mark(self) -> Any:
        with self._changing:
            mark = len(self._stops)
            self._marks[mark] = self._tables.mark() if mark == self._n_hashed else None
            return mark

    def rewind(self, mark: Any) -> None:
        with self._changing:
            del self._stops[mark:]
            if self._n_hashed > mark:
                self._tables.rewind(self._marks[mark])
                self._n_hashed = mark
            self._marks = {known: tables for known, tables in self._marks.items() if known <= mark}

    def _follow_store(self) -> None:
        """Plan to hash keys that left the recent window, once they are many; sinks never enter the tables."""
        stop = self._context.store.n_tokens - self._method.n_recent
        if stop >= self._stops[-1] + _INSERT_TOKENS if self._stops else stop > self._method.n_sinks:
            self._stops.append(stop)

    @property
    def table_bytes(self) -> int:
        return self._tables.nbytes
