"""vAttention: heavy hitters exactly, the rest by a uniform sample of verified size."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import (
    Choice,
    SelectingLayer,
    SelectingMethod,
    budgeted,
    logits_of,
    step_generator,
)


@dataclass(frozen=True, slots=True)
class VAttention(SelectingMethod):
    """Verified sparse attention (arXiv 2510.05688).

    The keys with the highest logits are read exactly; of the others, a uniform sample. Its size comes
    from the central limit theorem: a first sample tells how much exponentiated logits differ, and so how
    many make the denominator's relative error exceed `epsilon` with a probability of at most `delta`. The
    defaults are the middle of the official code's search (heavy 0.05, base 0.05, epsilon 0.05, delta 0.05);
    128 sinks and 128 recent tokens there. Heavy hitters are found exactly here, as its oracle variant does.

    Attributes
    ----------
    heavy : float
        Share of the keys read exactly.
    base_rate : float
        Share of the others in the first sample, which is the least that is read.
    epsilon, delta : float
    budget : float or None
        A fixed share instead, half of it heavy hitters and half a sample, without any guarantee.
    seed : int
    """

    heavy: float = 0.05
    base_rate: float = 0.05
    epsilon: float = 0.05
    delta: float = 0.05
    budget: float | None = None
    seed: int = 0
    name = "vattention"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return VerifiedLayer(self, context)


class VerifiedLayer(SelectingLayer):
    """One layer; only logits of keys that are counted as read decide about the sample's size."""

    def __init__(self, method: VAttention, context: LayerContext) -> None:
        super().__init__(method, context)
        self._method = method

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        context, method, n = self.context, self._method, stop - start
        keys, _ = context.store.read(0, context.store.n_tokens)
        logits = logits_of(query[:, None], keys, context.shape, context.scale, context.softcap)[:, 0]
        middle = logits[:, start:stop]
        fixed = None if method.budget is None else budgeted(method.budget, n)
        n_heavy = budgeted(method.heavy, n) if fixed is None else max(1, fixed // 2)
        heavy = middle.topk(n_heavy, dim=1).indices
        # A random order in which heavy hitters come last: its first b are a uniform sample of the rest.
        order = torch.rand(middle.shape, generator=step_generator(method.seed, context))
        order = order.scatter(1, heavy, 2.0).argsort(dim=1)[:, : n - n_heavy]
        ends = torch.cat([logits[:, :start], logits[:, stop:], middle.gather(1, heavy)], dim=1)
        if fixed is None:
            sizes = self._verified_sizes(ends, middle.gather(1, order))
        else:
            sizes = torch.full((len(query),), fixed - n_heavy)
        longest = int(sizes.max())
        log_weight = torch.log((n - n_heavy) / sizes.clamp_min(1).float())[:, None].expand(-1, longest)
        unused = torch.arange(longest) >= sizes[:, None]
        return Choice(
            torch.cat([heavy, order[:, :longest]], dim=1) + start,
            torch.cat([torch.zeros(heavy.shape), log_weight.masked_fill(unused, -torch.inf)], dim=1),
        )

    def _verified_sizes(self, exact: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Keys to sample, (n_q_heads,), from logits read exactly and those of the others in random order."""
        method, n = self._method, others.shape[1]
        if n == 0:
            return torch.zeros(len(exact), dtype=torch.int64)
        base = min(n, max(2, budgeted(method.base_rate, n)))
        top = torch.maximum(exact.amax(dim=1), others[:, :base].amax(dim=1))[:, None]
        first = torch.exp((others[:, :base] - top).double())
        denominator = torch.exp((exact - top).double()).sum(dim=1) + n * first.mean(dim=1)
        spread = first.std(dim=1, correction=1) if base > 1 else torch.zeros(len(exact))
        z = NormalDist().inv_cdf(1 - method.delta / 2)
        needed = (z * n * spread / (method.epsilon * denominator)) ** 2
        return needed.ceil().clamp(base, n).long()
