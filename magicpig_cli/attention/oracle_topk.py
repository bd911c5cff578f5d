"""Exact top-k: the keys with the highest logits, found by computing all of them.

No real method can choose faster than it reads, so this is the bound of every selection: what
is lost here is lost to the idea of leaving keys out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import BudgetedMethod, Choice, SelectingLayer, budgeted, logits_of


@dataclass(frozen=True, slots=True)
class OracleTopK(BudgetedMethod):
    """The `budget` of keys with the highest logits, for each query head.

    MagicPIG (arXiv 2410.16179, section 3) shows where it fails; it has no parameter but the budget.
    """

    name = "oracle-topk"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return TopKLayer(self, context)


class TopKLayer(SelectingLayer):
    """Reads every key to choose; what it counts is what it attends to."""

    def __init__(self, method: OracleTopK, context: LayerContext) -> None:
        super().__init__(method, context)
        self._budget = method.budget

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        context = self.context
        keys, _ = context.store.read(start, stop)
        logits = logits_of(query[:, None], keys, context.shape, context.scale, context.softcap)[:, 0]
        return Choice.of(logits.topk(budgeted(self._budget, stop - start), dim=1).indices + start)
