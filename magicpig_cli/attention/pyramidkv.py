"""PyramidKV: SnapKV with more keys in lower layers and fewer in upper ones."""

from __future__ import annotations

from dataclasses import dataclass

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.snapkv import ObservedLayer, SnapKV


@dataclass(frozen=True, slots=True)
class PyramidKV(SnapKV):
    """Budgets that fall from layer to layer (arXiv 2406.02069).

    They fall linearly from 2 b - b / beta to b / beta around the mean b. Where the first would be
    more than all keys, it is all of them and the last so much more, as in the official code; beta is
    20 there. The window and the pooling are SnapKV's.

    Attributes
    ----------
    beta : int
        The last layer's budget is 1/beta of the mean.
    """

    beta: int = 20
    name = "pyramidkv"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return ObservedLayer(self, context, self.layer_budget(context.layer, context.n_layers))

    def layer_budget(self, layer: int, n_layers: int) -> float:
        """The share of keys that a layer keeps; `budget` on average over all layers."""
        first = min(1.0, 2 * self.budget - self.budget / self.beta)
        last = 2 * self.budget - first
        return first + (last - first) * layer / max(1, n_layers - 1)
