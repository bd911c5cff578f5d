"""Output error: every contender attends with the same real queries and keys as exact attention.

A method of the seam that answers exactly and lets the contenders answer beside it, so one pass over
a text measures all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from magicpig_cli.attention.base import AttentionMethod, LayerAttention, LayerContext, StepStats, Weighed
from magicpig_cli.attention.dense import dense_layer


@dataclass(slots=True)
class Measured:
    """What one contender did.

    Attributes
    ----------
    stats : StepStats
        Never reset: sums over all steps.
    errors : dict
        Layer to a list with a tensor (n_q_heads,) per step: relative L2 errors of the outputs.
    estimates : dict
        Likewise, what the method itself estimated; empty if it cannot.
    """

    stats: StepStats = field(default_factory=StepStats)
    errors: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    estimates: dict[int, list[torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe(AttentionMethod):
    """Exact attention with observers.

    Attributes
    ----------
    methods : mapping
        Contender's label to its method.
    dense_layers : tuple of int
        Layers in which all of them are exact, which are not measured.
    measured : dict
        Label to what it did, filled as the session goes on.
    """

    methods: Mapping[str, AttentionMethod]
    dense_layers: tuple[int, ...]
    measured: dict[str, Measured] = field(default_factory=dict)
    name = "probe"

    def layer(self, context: LayerContext) -> LayerAttention:
        return dense_layer(context) if context.layer in self.dense_layers else ProbeLayer(self, context)


class ProbeLayer(LayerAttention):
    """One layer of exact attention, and of each contender."""

    def __init__(self, probe: Probe, context: LayerContext) -> None:
        self._layer = context.layer
        self._exact = dense_layer(context)
        self._measured = {label: probe.measured.setdefault(label, Measured()) for label in probe.methods}
        self._contenders = {
            label: method.layer(replace(context, stats=self._measured[label].stats))
            for label, method in probe.methods.items()
        }

    def prefilled(self, last_queries: torch.Tensor) -> None:
        self._exact.prefilled(last_queries)
        for attention in self._contenders.values():
            attention.prefilled(last_queries)

    def prepare(self) -> None:
        for attention in self._contenders.values():
            attention.prepare()

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        return self._exact.weights(query, lse)

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, lse = (part.clone() for part in self._exact.attend(query))
        size = output.float().norm(dim=1).clamp_min(1e-30)
        for label, attention in self._contenders.items():
            error = (attention.attend(query)[0].float() - output.float()).norm(dim=1) / size
            measured = self._measured[label]
            measured.errors.setdefault(self._layer, []).append(error.cpu())
            estimate = attention.estimated_error
            if estimate is not None:
                measured.estimates.setdefault(self._layer, []).append(estimate)
        return output, lse
