"""Layers whose own rule is a sliding window: exact over the window, whatever the method."""

from __future__ import annotations

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext, Weighed
from magicpig_cli.attention.exact import attend_exactly, weigh_exactly


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
