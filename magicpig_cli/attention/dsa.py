"""DeepSeek's sparse attention: a cheap indexer scores tokens, and all heads of a layer read the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from magicpig_cli.attention.base import LayerAttention, LayerContext
from magicpig_cli.attention.selected import (
    BudgetedMethod,
    Choice,
    SelectingLayer,
    budgeted,
    capped,
)

_NEWTON_STEPS = 12


@dataclass(frozen=True, slots=True)
class Dsa(BudgetedMethod):
    """Token-level top-k shared by a layer (DeepSeek-V3.2, arXiv 2512.02556).

    The index of token s is sum_j w_j ReLU(q_j . k_s) over the indexer's heads; the model trains those,
    and reads the best 2,048 tokens. None of the models that this program runs ships an indexer, so
    here it is **untrained**: its heads are the layer's own query heads over keys in 8 bits, and only the
    weights w are fitted, per layer, when a prompt was read. They minimise the divergence of the softmax
    of the index from the heads' mean attention (the paper's warm-up objective) over the prompt's last
    queries.

    Attributes
    ----------
    calibration_queries : int
        Last queries of the prompt that the weights are fitted on.
    ridge : float
        Added to the curvature of the fit, so that heads that say the same keep finite weights.
    """

    calibration_queries: int = 16
    ridge: float = 1e-3
    name = "dsa"

    def selecting(self, context: LayerContext) -> LayerAttention:
        return IndexedLayer(self, context)


class IndexedLayer(SelectingLayer):
    """Keys in 8 bits, one scale per token and KV head, and the weights of the heads."""

    def __init__(self, method: Dsa, context: LayerContext) -> None:
        super().__init__(method, context)
        self._method = method
        shape = context.shape
        self._keys = torch.empty(shape.n_kv_heads, 0, shape.head_dim, dtype=torch.int8)
        self._scales = torch.empty(shape.n_kv_heads, 0, 1)
        self._weights = torch.full((shape.n_q_heads,), 1.0 / shape.n_q_heads)

    def prefilled(self, last_queries: torch.Tensor) -> None:
        start, stop = self.middle()
        if stop == start:
            return
        queries = last_queries[:, -self._method.calibration_queries :].float().cpu()
        features = self._features(queries, start, stop)
        self._weights = fit_weights(features, self._attention(queries, start, stop), self._method.ridge)

    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        index = self._features(query[:, None], start, stop)[0] @ self._weights
        best = index.topk(budgeted(self._method.budget, stop - start)).indices + start
        return Choice.of(best.expand(len(query), -1))

    def mark(self) -> Any:
        return self._keys.shape[1], self._weights

    def rewind(self, mark: Any) -> None:
        n, self._weights = mark
        self._keys, self._scales = self._keys[:, :n], self._scales[:, :n]

    def _features(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """ReLU(q_j . k_s) in the units of logits, (n_queries, n, n_q_heads)."""
        self._follow(start, stop)
        context, shape = self.context, self.context.shape
        keys = self._keys[:, : stop - start].float() * self._scales[:, : stop - start]
        rows = queries.reshape(shape.n_kv_heads, -1, shape.head_dim)
        logits = torch.bmm(rows, keys.transpose(1, 2)).reshape(shape.n_q_heads, queries.shape[1], -1)
        return (logits * context.scale).clamp_min(0).permute(1, 2, 0)

    def _attention(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Exact attention over these tokens, averaged over heads, (n_queries, n)."""
        context, shape = self.context, self.context.shape
        keys = context.store.read(start, stop)[0].float()
        rows = queries.reshape(shape.n_kv_heads, -1, shape.head_dim)
        logits = capped(torch.bmm(rows, keys.transpose(1, 2)) * context.scale, context.softcap)
        return torch.softmax(logits, dim=2).reshape(shape.n_q_heads, queries.shape[1], -1).mean(dim=0)

    def _follow(self, start: int, stop: int) -> None:
        """Quantise the keys that have come since."""
        known = start + self._keys.shape[1]
        if stop <= known:
            return
        keys = self.context.store.read(known, stop)[0].float()
        scales = keys.abs().amax(dim=2, keepdim=True).clamp_min(1e-12) / 127
        self._keys = torch.cat([self._keys, (keys / scales).round().to(torch.int8)], dim=1)
        self._scales = torch.cat([self._scales, scales], dim=1)

    @property
    def table_bytes(self) -> int:
        return self._keys.nbytes + self._scales.nbytes


def fit_weights(features: torch.Tensor, target: torch.Tensor, ridge: float) -> torch.Tensor:
    """Weights w for which softmax(features w) is nearest to `target` in the Kullback-Leibler sense.

    The divergence is convex in w, so Newton's method with halved steps finds its minimum.

    Parameters
    ----------
    features : torch.Tensor
        float32, (n_queries, n, n_weights).
    target : torch.Tensor
        float32, (n_queries, n), rows that sum to 1.
    ridge : float

    Returns
    -------
    torch.Tensor
        float32, (n_weights,).
    """
    phi, target = features.double(), target.double()
    n_weights = phi.shape[2]
    expected = torch.einsum("tn,tnj->j", target, phi)
    penalty = ridge * len(phi) * torch.eye(n_weights, dtype=phi.dtype)
    w = torch.full((n_weights,), 1.0 / n_weights, dtype=phi.dtype)

    def loss(w: torch.Tensor) -> float:
        return float(torch.logsumexp(phi @ w, dim=1).sum() - expected @ w + 0.5 * w @ penalty @ w)

    current = loss(w)
    for _ in range(_NEWTON_STEPS):
        p = torch.softmax(phi @ w, dim=1)
        mean = torch.einsum("tn,tnj->tj", p, phi)
        gradient = mean.sum(dim=0) - expected + penalty @ w
        weighted = (phi * p[:, :, None]).reshape(-1, n_weights)
        curvature = phi.reshape(-1, n_weights).T @ weighted - mean.T @ mean + penalty
        step = torch.linalg.solve(curvature, gradient)
        length = 1.0
        while length > 1e-4 and loss(w - length * step) > current:
            length /= 2
        if length <= 1e-4:
            break
        w = w - length * step
        before, current = current, loss(w)
        if before - current < 1e-9 * abs(before):
            break
    return w.float()
