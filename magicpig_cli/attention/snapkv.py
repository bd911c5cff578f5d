"""SnapKV: keys that the prompt's last queries attended to are kept; the rest is never read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import avg_pool1d

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import BudgetedMethod, Choice, SelectingLayer, budgeted, capped


@dataclass(frozen=True, slots=True)
class SnapKV(BudgetedMethod):
    """Selection by an observation window (arXiv 2404.14469).

    Attention weights of the last queries are summed, averaged over neighbouring keys, and the best
    keys kept. The official code's defaults: the last 32 queries, average pooling over 5 keys, 2,048
    keys kept. Here the budget is a share, and the scores of a KV group's heads are averaged, so that
    each KV head keeps one set. Generated tokens are all kept.

    Attributes
    ----------
    window_tokens : int
        Queries that vote; fewer if the last prefill brought fewer.
    kernel_keys : int
        Keys that are pooled, odd.
    """

    window_tokens: int = 32
    kernel_keys: int = 5
    name = "snapkv"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return ObservedLayer(self, context, self.budget)


class ObservedLayer(SelectingLayer):
    """Chooses once per prefill; what comes afterwards is read exactly."""

    def __init__(self, method: SnapKV, context: LayerContext, budget: float) -> None:
        super().__init__(method, context)
        self._window, self._kernel, self._budget = method.window_tokens, method.kernel_keys, budget
        self._kept = torch.empty(context.shape.n_q_heads, 0, dtype=torch.int64)
        self._stop = 0

    def prefilled(self, last_queries: torch.Tensor) -> None:
        start, self._stop = super().middle()
        if self._stop == start:
            return
        queries = last_queries[:, -self._window :].float().cpu()
        votes = self._votes(queries)[:, start : self._stop]
        votes = avg_pool1d(votes, self._kernel, stride=1, padding=self._kernel // 2)
        best = votes.topk(budgeted(self._budget, self._stop - start), dim=1).indices + start
        self._kept = best.repeat_interleave(self.context.shape.group_size, dim=0)

    def _votes(self, queries: torch.Tensor) -> torch.Tensor:
        """Attention weights that the prompt's last queries give each token, (n_kv_heads, n)."""
        context, shape = self.context, self.context.shape
        n, n_queries = context.store.n_tokens, queries.shape[1]
        keys = context.store.read(0, n)[0].float()
        rows = queries.reshape(shape.n_kv_heads, -1, shape.head_dim)
        logits = capped(torch.bmm(rows, keys.transpose(1, 2)) * context.scale, context.softcap)
        unseen = torch.arange(n) > torch.arange(n - n_queries, n)[:, None]
        logits = logits.reshape(-1, n_queries, n).masked_fill_(unseen, -torch.inf)
        weights = torch.softmax(logits, dim=2).sum(dim=1)
        return weights.reshape(shape.n_kv_heads, shape.group_size, n).mean(dim=1)

    def middle(self) -> tuple[int, int]:
        start, stop = super().middle()
        return start, min(stop, max(start, self._stop))

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        return Choice.of(self._kept)

    def mark(self) -> Any:
        return self._kept, self._stop

    def rewind(self, mark: Any) -> None:
        self._kept, self._stop = mark

    @property
    def table_bytes(self) -> int:
        return self._kept.nbytes
