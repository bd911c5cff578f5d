"""Methods at budgets: who takes part, and how `lsh`, which knows no budget, is made to read as much.

Collisions and tables are chosen so that the sum of inclusion probabilities of real keys, for the
prompt's last queries, is the share asked for. What is reported is what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.registry import WITH_TOLERANCE, WITHOUT_BUDGET, MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.lsh.estimator import collision_prob, inclusion_prob, sampling_prob
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.lsh.tile import GROUP_HEADS

_SINKS, _RECENT = 4, 64
_LAYERS, _QUERIES = 6, 4
_MOST_TABLES = 4096
# Beyond, as many collisions as that err more at a hundredth of the keys (benchmarks/collisions.py).
_STEEPEST = 8
_KEYS_OF_SHARE = 20_000


@dataclass(frozen=True, slots=True)
class Contender:
    """A method, and the share of keys that it should read or the error that it should keep to.

    None for both: it reads what it reads by itself.
    """

    method: str
    budget: float | None
    tolerance: float | None = None

    @property
    def label(self) -> str:
        if self.tolerance is not None:
            return f"{self.method} within {self.tolerance:g}"
        return self.method if self.budget is None else f"{self.method} {self.budget:g}"


def contenders(
    methods: Sequence[str], budgets: Sequence[float] | None, tolerances: Sequence[float] | None = None
) -> list[Contender]:
    """Every method at every budget, those that can at every tolerance; `dense` once.

    Without budgets, and tolerances for a method, once as it is.
    """
    entrants = []
    for method in methods:
        within = (tolerances or ()) if method in WITH_TOLERANCE else ()
        shares: Sequence[float | None] = budgets or (() if within else (None,))
        if method == "dense":
            shares = (None,)
        entrants += [Contender(method, share) for share in shares]
        entrants += [Contender(method, None, tolerance) for tolerance in within]
    return entrants


class Builder:
    """Builds contenders for a prefilled session.

    Parameters
    ----------
    session : Session
        Exact, prefilled.
    dense_layers : tuple of int
    seed : int
    """

    def __init__(self, session: Session, dense_layers: tuple[int, ...], seed: int) -> None:
        self._session, self._dense_layers, self._seed = session, dense_layers, seed
        self._collisions: dict[tuple[int, int], np.ndarray] = {}

    def build(self, contender: Contender) -> AttentionMethod:
        """Its method. Without a budget, rivals read as much as `lsh` does at its own K and L."""
        name, budget = contender.method, contender.budget
        n_bits = n_tables = min_collisions = None
        usual = lsh_params(self._session.n_tokens)
        if budget is None and name not in ("lsh", "dense", "vattention"):
            budget = self.share("lsh", usual)
        if name in ("lsh", "lsh-published") and budget is not None:
            params = self.lsh_for(usual, budget) if name == "lsh" else self.published_for(budget)
            n_bits, n_tables, min_collisions = params.n_bits, params.n_tables, params.min_collisions
        given = None if name in WITHOUT_BUDGET else budget
        options = MethodOptions(
            self._session.n_tokens,
            self._dense_layers,
            n_bits,
            n_tables,
            min_collisions,
            self._seed,
            budget=given,
            tolerance=contender.tolerance,
        )
        return build_method(name, options)

    def share(self, name: str, params: LshParams) -> float:
        """Share of the keys that `lsh` or `lsh-published` is expected to read."""
        collision = self._collision_probs(name, params.n_bits)
        if name == "lsh":
            return float(sampling_prob(collision, params).mean())
        return float(inclusion_prob(collision, params.n_tables, params.min_collisions).mean())

    def lsh_for(self, usual: LshParams, share: float) -> LshParams:
        """`lsh` with K of `usual` at a share: as many collisions as its number of tables allows.

        For a small share more collisions err less than fewer tables do (docs/accuracy.md).
        """
        chosen = replace(usual, n_tables=self.tables("lsh", usual, share))
        for collisions in range(usual.min_collisions + 1, _STEEPEST + 1):
            steeper = replace(usual, n_tables=_MOST_TABLES, min_collisions=collisions)
            n_tables = self.tables("lsh", steeper, share)
            if n_tables > usual.n_tables:
                break
            chosen = replace(steeper, n_tables=n_tables)
        return chosen

    def published_for(self, share: float) -> LshParams:
        """`lsh-published` at a share: K and M of the paper, as many tables as it takes."""
        published = LshParams()
        return replace(published, n_tables=self.tables("lsh-published", published, share))

    def tables(self, name: str, params: LshParams, share: float) -> int:
        """Tables for which, with K and M of `params`, the expected share is nearest to the one asked for."""

        def reached(n_tables: int) -> float:
            return self.share(name, replace(params, n_tables=n_tables))

        low, high = params.min_collisions, _MOST_TABLES
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if reached(middle) < share else (low, middle)
        return min((low, high), key=lambda n: abs(reached(n) - share))

    def _collision_probs(self, name: str, n_bits: int) -> np.ndarray:
        """For some layers and queries, of every key between sinks and recent tokens."""
        key = (int(name == "lsh"), n_bits)
        if key not in self._collisions:
            layers = [i for i in self._full_layers() if i not in self._dense_layers]
            picked = layers[:: max(1, len(layers) // _LAYERS)]
            parts = [self._layer_probs(i, n_bits, name == "lsh") for i in picked]
            probs = np.sort(np.concatenate(parts)) if parts else np.zeros(1)
            # Evenly out of a sorted list: their mean is that of all to a thousandth, for less time per share.
            self._collisions[key] = probs[:: max(1, len(probs) // _KEYS_OF_SHARE)]
        return self._collisions[key]

    def _full_layers(self) -> list[int]:
        session = self._session
        return [i for i in range(session.n_layers) if session.rule(i)[1].window is None]

    def _layer_probs(self, layer: int, n_bits: int, grouped: bool) -> np.ndarray:
        session = self._session
        shape, store = session.rule(layer)[0], session.stores[layer]
        if store is None or store.n_tokens <= _SINKS + _RECENT:
            return np.zeros(0)
        keys = store.read(_SINKS, store.n_tokens - _RECENT)[0].double()
        keys = keys - keys.mean(dim=1, keepdim=True)
        queries = session.observed(layer)[:, -_QUERIES:].double().cpu()
        per_kv_head = -(-shape.group_size // GROUP_HEADS)
        n_groups = shape.n_kv_heads * per_kv_head if grouped else shape.n_q_heads
        parts = []
        for group in range(n_groups):
            heads = range(shape.n_q_heads * group // n_groups, shape.n_q_heads * (group + 1) // n_groups)
            for step in range(queries.shape[1]):
                rows = queries[list(heads), step]
                kv_head = heads[0] // shape.group_size
                parts.append(collision_prob(_angles(rows, keys[kv_head]), _angles(rows, rows), n_bits))
        return np.concatenate(parts)


def _angles(queries: torch.Tensor, vectors: torch.Tensor) -> np.ndarray:
    norms = queries.norm(dim=1)[:, None] * vectors.norm(dim=1)
    return np.asarray(torch.arccos((queries @ vectors.T / norms.clamp_min(1e-300)).clamp(-1, 1)).numpy())
