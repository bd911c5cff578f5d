"""Sinks and a recent window: what is left if the middle of the context is never read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import BudgetedMethod, Choice, SelectingLayer, budgeted


@dataclass(frozen=True, slots=True)
class Streaming(BudgetedMethod):
    """StreamingLLM (arXiv 2309.17453): attention sinks and the latest tokens.

    The official code keeps 4 sinks and 2,000 recent tokens (`start_size`, `recent_size`). Here the
    window is the 64 tokens that all methods read and, before them, the budget's share of the rest.
    """

    name = "streaming"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return StreamingLayer(self, context)


class StreamingLayer(SelectingLayer):
    """Lengthens the recent window by the budget."""

    def __init__(self, method: Streaming, context: LayerContext) -> None:
        super().__init__(method, context)
        self._budget = method.budget

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        tokens = torch.arange(stop - budgeted(self._budget, stop - start), stop)
        return Choice.of(tokens.expand(len(query), -1))
