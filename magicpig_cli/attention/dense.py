"""Exact attention over every stored key: the yardstick, and the dense layers of a model's profile."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from magicpig_cli.attention.base import AttentionMethod, LayerAttention, LayerContext, Weighed
from magicpig_cli.attention.exact import attend_exactly, weigh_exactly
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LshParams


@dataclass(frozen=True, slots=True)
class Dense(AttentionMethod):
    """All keys, no parameters."""

    name = "dense"

    def layer(self, context: LayerContext) -> LayerAttention:
        return dense_layer(context)


def dense_layer(context: LayerContext) -> LayerAttention:
    """Exact attention of one layer, where the model computes."""
    return HostDense(context) if context.device.type == "cpu" else DeviceDense(context)


class HostDense(LayerAttention):
    """Reads all rows of the store with the sampling kernel, every key with weight 1."""

    def __init__(self, context: LayerContext) -> None:
        self._context = context
        self._kernel = LshLayer(LshParams(), context.shape)

    def prefilled(self, last_queries: torch.Tensor) -> None:
        """Nothing to build."""

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        context, store = self._context, self._context.store
        started = perf_counter()
        result = self._kernel.attend(
            query.numpy(), store.rows, [(0, store.n_tokens)], context.scale, context.softcap
        )
        context.stats.attend_ms += (perf_counter() - started) * 1e3
        return torch.from_numpy(result.out), torch.from_numpy(result.lse)

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        return weigh_exactly(query, lse, self._context, 0, self._context.store.n_tokens)


class DeviceDense(LayerAttention):
    """Keeps a copy of the layer's keys and values on the device."""

    def __init__(self, context: LayerContext) -> None:
        self._context = context
        self._n_tokens = 0
        self._keys = self._values = torch.empty(0, 0, 0)
        self._dtype = torch.bfloat16

    def prefilled(self, last_queries: torch.Tensor) -> None:
        if last_queries.dtype == torch.float16:  # as small, and no step has to convert them all
            self._dtype = torch.float16
        self._follow_store()

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._follow_store()
        context, n = self._context, self._n_tokens
        return attend_exactly(query, self._keys[:, :n], self._values[:, :n], context.scale, context.softcap)

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        return weigh_exactly(query, lse, self._context, 0, self._n_tokens)

    def mark(self) -> Any:
        return self._n_tokens

    def rewind(self, mark: Any) -> None:
        self._n_tokens = min(self._n_tokens, mark)

    @property
    def device_kv_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def _follow_store(self) -> None:
        """Copy what the store has gained since the last call."""
        store = self._context.store
        if store.n_tokens > self._keys.shape[-2] or self._n_tokens == 0:
            shape = (self._context.shape.n_kv_heads, store.capacity, self._context.shape.head_dim)
            grown_keys = torch.empty(shape, dtype=self._dtype, device=self._context.device)
            grown_values = torch.empty_like(grown_keys)
            if self._n_tokens:
                grown_keys[:, : self._n_tokens] = self._keys[:, : self._n_tokens]
                grown_values[:, : self._n_tokens] = self._values[:, : self._n_tokens]
            self._keys, self._values = grown_keys, grown_values
        new = slice(self._n_tokens, store.n_tokens)
        store.send(self._n_tokens, self._keys[:, new], self._values[:, new])
        self._n_tokens = store.n_tokens
