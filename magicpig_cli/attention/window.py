"""Layers whose own rule is a sliding window: exact over the window, whatever the method."""

from __future__ import annotations

from typing import Any

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext, Weighed
from magicpig_cli.attention.exact import attend_exactly, weigh_exactly


def window_layer(context: LayerContext, window: int) -> LayerAttention:
    """Attention over the last `window` keys, where the model computes."""
    kind = SlidingWindow if context.device.type == "cpu" else DeviceWindow
    return kind(context, window)


class SlidingWindow(LayerAttention):
    """The last `window` keys, the query's own included; the store keeps no more than that."""

    def __init__(self, context: LayerContext, window: int) -> None:
        self._context = context
        self._window = window

    def prefilled(self, last_queries: torch.Tensor) -> None:
        """Nothing to build."""

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._context.store.read(self._first(), self._context.store.n_tokens)
        return attend_exactly(query, keys, values, self._context.scale, self._context.softcap)

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        return weigh_exactly(query, lse, self._context, self._first(), self._context.store.n_tokens)

    def _first(self) -> int:
        store = self._context.store
        return max(store.first_token, store.n_tokens - self._window)


class DeviceWindow(SlidingWindow):
    """Keeps the window on the device: a step sends one row, and once per `window` steps all of them."""

    def __init__(self, context: LayerContext, window: int) -> None:
        super().__init__(context, window)
        size = (context.shape.n_kv_heads, 2 * window, context.shape.head_dim)
        self._keys = torch.empty(size, dtype=torch.bfloat16, device=context.device)
        self._values = torch.empty_like(self._keys)
        # The tokens that lie there, from and up to.
        self._start = self._stop = 0

    def prefilled(self, last_queries: torch.Tensor) -> None:
        self._follow_store()

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._follow_store()
        seen = slice(self._first() - self._start, self._stop - self._start)
        return attend_exactly(
            query, self._keys[:, seen], self._values[:, seen], self._context.scale, self._context.softcap
        )

    def rewind(self, mark: Any) -> None:
        self._start = self._stop = 0

    @property
    def device_kv_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def _follow_store(self) -> None:
        """Send what the store has gained; from the front again when there is no room, or a gap."""
        store, first = self._context.store, self._first()
        if (
            self._stop < first
            or self._stop > store.n_tokens
            or store.n_tokens - self._start > self._keys.shape[1]
        ):
            self._start = self._stop = first
        new = slice(self._stop - self._start, store.n_tokens - self._start)
        store.send(self._stop, self._keys[:, new], self._values[:, new])
        self._stop = store.n_tokens
