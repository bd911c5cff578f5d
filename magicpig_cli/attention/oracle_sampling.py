"""Sampling from the exact distribution: what sampling could reach if probabilities cost nothing.

Every key is drawn with a probability proportional to its attention weight, at most 1, and counts
1/u times; LSH draws from a distribution that only resembles it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import (
    BudgetedMethod,
    Choice,
    SelectingLayer,
    budgeted,
    logits_of,
    step_generator,
)


@dataclass(frozen=True, slots=True)
class OracleSampling(BudgetedMethod):
    """Keys drawn with exact probabilities (MagicPIG, arXiv 2410.16179, section 3, "oracle sampling").

    The paper draws with replacement; here each key is drawn or not on its own (Poisson sampling), so
    that the budget counts distinct keys and a budget of 1 is exact attention.

    Attributes
    ----------
    seed : int
    """

    seed: int = 0
    name = "oracle-sampling"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return OracleSamplingLayer(self, context)


class OracleSamplingLayer(SelectingLayer):
    """Reads every key to know its probability; what it counts is what it attends to."""

    def __init__(self, method: OracleSampling, context: LayerContext) -> None:
        super().__init__(method, context)
        self._budget, self._seed = method.budget, method.seed

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        context = self.context
        keys, _ = context.store.read(start, stop)
        logits = logits_of(query[:, None], keys, context.shape, context.scale, context.softcap)[:, 0]
        u = inclusion(torch.softmax(logits.double(), dim=1), budgeted(self._budget, stop - start))
        drawn = torch.rand(u.shape, generator=step_generator(self._seed, context), dtype=u.dtype) < u
        return Choice.where(drawn, start, -torch.log(u.clamp_min(1e-300)))


def inclusion(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Probabilities min(1, c w) whose sum is `count` in each row.

    Parameters
    ----------
    weights : torch.Tensor
        float64, (rows, n), not negative, a positive sum in each row.
    count : int
        1 to n.

    Returns
    -------
    torch.Tensor
        float64, (rows, n).
    """
    if count >= weights.shape[1]:
        return torch.ones_like(weights)
    certain = torch.zeros_like(weights, dtype=torch.bool)
    while True:
        rest = weights.masked_fill(certain, 0.0)
        scale = (count - certain.sum(dim=1)) / rest.sum(dim=1).clamp_min(1e-300)
        u = rest * scale[:, None]
        more = (u >= 1.0) & ~certain
        if not more.any():
            return u.masked_fill(certain, 1.0)
        certain |= more
