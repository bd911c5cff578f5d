"""Quest: pages of keys with a bound on their logits; the pages with the highest bounds are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import BudgetedMethod, Choice, SelectingLayer, budgeted


@dataclass(frozen=True, slots=True)
class Quest(BudgetedMethod):
    """Query-aware pages (arXiv 2406.10774).

    A page's bound is the sum over channels of max(q min, q max) of its keys. The official code has
    pages of 16 tokens, a budget of 1,024 tokens, and leaves the first two layers dense; here the
    budget is a share and the dense layers are those of every method. The bounds read two vectors per
    page at every step, 1/16 of what all keys and values are; that isn't counted as keys.

    Attributes
    ----------
    page_tokens : int
    """

    page_tokens: int = 16
    name = "quest"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return QuestLayer(self, context)


class QuestLayer(SelectingLayer):
    """Minima and maxima of the pages that are complete; they grow with the answer."""

    def __init__(self, method: Quest, context: LayerContext) -> None:
        super().__init__(method, context)
        self._budget, self._page = method.budget, method.page_tokens
        shape = context.shape
        self._bounds = torch.empty(2, shape.n_kv_heads, 0, shape.head_dim)

    def prefilled(self, last_queries: torch.Tensor) -> None:
        self._follow(*self.middle())

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        self._follow(start, stop)
        shape = self.context.shape
        tail = self._bounds_of(start + self._bounds.shape[2] * self._page, stop)
        low, high = torch.cat([self._bounds, tail], dim=2)
        rows = query.reshape(shape.n_kv_heads, shape.group_size, shape.head_dim)
        # max(q lo, q hi) takes hi where q is positive and lo where it is negative.
        bound = rows.clamp_min(0) @ high.transpose(1, 2) + rows.clamp_max(0) @ low.transpose(1, 2)
        n_pages = high.shape[1]
        best = bound.reshape(shape.n_q_heads, n_pages).topk(budgeted(self._budget, n_pages), dim=1).indices
        tokens = (best[:, :, None] * self._page + torch.arange(self._page)).flatten(1)
        weights = torch.zeros(tokens.shape).masked_fill(tokens >= stop - start, -torch.inf)
        return Choice(tokens.clamp_max(stop - start - 1) + start, weights)

    def mark(self) -> Any:
        return self._bounds.shape[2]

    def rewind(self, mark: Any) -> None:
        self._bounds = self._bounds[:, :, :mark]

    def _follow(self, start: int, stop: int) -> None:
        """Add the pages that have become complete."""
        known = start + self._bounds.shape[2] * self._page
        complete = (stop - known) // self._page * self._page
        if complete > 0:
            self._bounds = torch.cat([self._bounds, self._bounds_of(known, known + complete)], dim=2)

    def _bounds_of(self, start: int, stop: int) -> torch.Tensor:
        """Minima and maxima, (2, n_kv_heads, n_pages, head_dim); the last page may be short."""
        keys = self.context.store.read(start, stop)[0].float()
        pages = keys.split(self._page, dim=1) if stop > start else ()
        if not pages:
            return self._bounds[:, :, :0]
        whole = keys[:, : keys.shape[1] // self._page * self._page].unflatten(1, (-1, self._page))
        bounds = torch.stack([whole.amin(dim=2), whole.amax(dim=2)])
        if pages[-1].shape[1] < self._page:
            short = torch.stack([pages[-1].amin(dim=1), pages[-1].amax(dim=1)])
            bounds = torch.cat([bounds, short[:, :, None]], dim=2)
        return bounds

    @property
    def table_bytes(self) -> int:
        return self._bounds.nbytes
