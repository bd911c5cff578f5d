"""What methods that read only some keys share: exact ends, a choice in between, attention over it.

Sinks and recent tokens are attended exactly by all of them, as `Lsh` does; a method says which
keys of the middle each query head reads, and with which weights. These layers exist to be compared
with: vectorised torch on the CPU, and honest counts of what was read.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from time import perf_counter

import torch

from magicpig_cli.attention.base import AttentionMethod, LayerAttention, LayerContext, Weighed
from magicpig_cli.attention.dense import dense_layer
from magicpig_cli.lsh.params import LayerShape


@dataclass(frozen=True, slots=True)
class Choice:
    """Keys that the query heads read, padded to the longest of them.

    Attributes
    ----------
    tokens : torch.Tensor
        int64, (n_q_heads, n_chosen).
    log_weights : torch.Tensor
        float32, (n_q_heads, n_chosen): added to the logits; 0 for a key that counts once, log(1/u) for
        a sampled one, -inf for padding, which counts as not read.
    """

    tokens: torch.Tensor
    log_weights: torch.Tensor

    @classmethod
    def of(cls, tokens: torch.Tensor) -> Choice:
        """Every token counts once."""
        return cls(tokens, torch.zeros(tokens.shape))

    @classmethod
    def where(cls, chosen: torch.Tensor, start: int, log_weights: torch.Tensor | None = None) -> Choice:
        """The keys that a mask marks.

        Parameters
        ----------
        chosen : torch.Tensor
            bool, (n_q_heads, n): of the tokens start, start + 1, ...
        start : int
        log_weights : torch.Tensor, optional
            (n_q_heads, n); 0 if absent.
        """
        longest = max(1, int(chosen.sum(dim=1).max()))
        marked, places = chosen.to(torch.uint8).topk(longest, dim=1)
        weights = torch.zeros(places.shape) if log_weights is None else log_weights.gather(1, places).float()
        return cls(places + start, weights.masked_fill(marked == 0, -math.inf))


@dataclass(frozen=True, slots=True)
class SelectingMethod(AttentionMethod):
    """Parameters that every method of this kind has.

    Attributes
    ----------
    dense_layers : tuple of int
        Layers that attend exactly; the same for all methods, so that comparisons are fair.
    n_sinks, n_recent : int
        Exact tokens at the start and at the end of the context.
    """

    dense_layers: tuple[int, ...] = (0,)
    n_sinks: int = 4
    n_recent: int = 64

    def layer(self, context: LayerContext) -> LayerAttention:
        return dense_layer(context) if context.layer in self.dense_layers else self.selecting(context)

    @abstractmethod
    def selecting(self, context: LayerContext) -> LayerAttention:
        """The attention of a layer that isn't dense."""


@dataclass(frozen=True, slots=True)
class BudgetedMethod(SelectingMethod):
    """A method that is told how much to read.

    Attributes
    ----------
    budget : float
        Share of the keys between sinks and recent tokens that a query head reads, above 0 to 1.
    """

    budget: float = 0.05


class SelectingLayer(LayerAttention):
    """One layer: exact at both ends, and over what `choose` chooses in between."""

    def __init__(self, method: SelectingMethod, context: LayerContext) -> None:
        self.context = context
        self._n_sinks, self._n_recent = method.n_sinks, method.n_recent
        self._read = Choice.of(torch.empty(context.shape.n_q_heads, 0, dtype=torch.int64))

    def prefilled(self, last_queries: torch.Tensor) -> None:
        """Nothing to build."""

    @abstractmethod
    def choose(self, query: torch.Tensor, start: int, stop: int) -> Choice:
        """Keys of the tokens start to stop - 1, which are at least one.

        Parameters
        ----------
        query : torch.Tensor
            float32, (n_q_heads, head_dim), on the CPU.
        start, stop : int
        """

    def middle(self) -> tuple[int, int]:
        """Tokens between the sinks and the recent ones, from and up to; may be none."""
        n = self.context.store.n_tokens
        start = min(self._n_sinks, n)
        return start, max(start, n - self._n_recent)

    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        context, stats = self.context, self.context.stats
        started = perf_counter()
        rows = query.float().cpu()
        start, stop = self.middle()
        ends = torch.cat([torch.arange(start), torch.arange(stop, context.store.n_tokens)])
        choice = Choice.of(ends.expand(len(rows), -1))
        if stop > start:
            chosen = self.choose(rows, start, stop)
            stats.keys_offered += (stop - start) * context.shape.n_q_heads
            stats.keys_touched += int(torch.isfinite(chosen.log_weights).sum())
            stats.rows_offered += (stop - start) * context.shape.n_kv_heads
            stats.rows_touched += self._rows(chosen, start, stop)
            choice = Choice(
                torch.cat([choice.tokens, chosen.tokens], dim=1),
                torch.cat([choice.log_weights, chosen.log_weights], dim=1),
            )
        self._read = choice
        output, lse = attend_chosen(rows, context, choice)
        stats.attend_ms += (perf_counter() - started) * 1e3
        return output.to(query.device, query.dtype), lse.to(query.device)

    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        context = self.context
        logits = chosen_logits(query.float().cpu(), context, self._read)
        weights = torch.exp(logits - lse.cpu()[:, None])
        read = torch.isfinite(self._read.log_weights)
        return [
            Weighed(tokens[kept].numpy(), weight[kept][None].numpy())
            for tokens, weight, kept in zip(self._read.tokens, weights, read, strict=True)
        ]

    def _rows(self, chosen: Choice, start: int, stop: int) -> int:
        """Keys that any head of their group reads."""
        shape = self.context.shape
        marks = torch.zeros(shape.n_kv_heads, stop - start, dtype=torch.int32)
        places = (chosen.tokens - start).reshape(shape.n_kv_heads, -1)
        read = torch.isfinite(chosen.log_weights).int().reshape(shape.n_kv_heads, -1)
        return int((marks.scatter_add(1, places, read) > 0).sum())


def attend_chosen(
    query: torch.Tensor, context: LayerContext, choice: Choice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one step, where each query head reads keys of its own.

    Parameters
    ----------
    query : torch.Tensor
        float32, (n_q_heads, head_dim), on the CPU.
    context : LayerContext
    choice : Choice

    Returns
    -------
    output : torch.Tensor
        float32, (n_q_heads, head_dim).
    lse : torch.Tensor
        float32, (n_q_heads,): of logits plus log weights.
    """
    values = context.store.read(0, context.store.n_tokens)[1]
    logits = chosen_logits(query, context, choice)
    lse = torch.logsumexp(logits, dim=1)
    weights = torch.exp(logits - lse[:, None])
    chosen = values[_kv_heads(context.shape), choice.tokens].float()
    return torch.einsum("hm,hmd->hd", weights, chosen), lse


def chosen_logits(query: torch.Tensor, context: LayerContext, choice: Choice) -> torch.Tensor:
    """Logits plus log weights of the chosen keys, float32, (n_q_heads, n_chosen); see `attend_chosen`."""
    keys = context.store.read(0, context.store.n_tokens)[0]
    logits = torch.einsum("hmd,hd->hm", keys[_kv_heads(context.shape), choice.tokens].float(), query)
    return capped(logits * context.scale, context.softcap) + choice.log_weights


def _kv_heads(shape: LayerShape) -> torch.Tensor:
    """The KV head of each query head, (n_q_heads, 1)."""
    return (torch.arange(shape.n_q_heads) // shape.group_size)[:, None]


def logits_of(
    queries: torch.Tensor, keys: torch.Tensor, shape: LayerShape, scale: float, softcap: float
) -> torch.Tensor:
    """Logits of every query against every key of its KV head.

    Parameters
    ----------
    queries : torch.Tensor
        float32, (n_q_heads, n_queries, head_dim).
    keys : torch.Tensor
        (n_kv_heads, n, head_dim), any float dtype.
    shape : LayerShape
    scale, softcap : float

    Returns
    -------
    torch.Tensor
        float32, (n_q_heads, n_queries, n).
    """
    rows = queries.reshape(shape.n_kv_heads, -1, shape.head_dim)
    logits = torch.bmm(rows, keys.float().transpose(1, 2))
    return capped(logits * scale, softcap).reshape(shape.n_q_heads, queries.shape[1], -1)


def capped(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """Soft-capped as Gemma-2 does, if `softcap` is above 0."""
    return torch.tanh(logits / softcap) * softcap if softcap > 0 else logits


def budgeted(budget: float, n_keys: int) -> int:
    """How many of `n_keys` (at least one) a share is: rounded up, at least one, at most all."""
    return min(n_keys, max(1, math.ceil(budget * n_keys - 1e-6)))


def step_generator(seed: int, context: LayerContext) -> torch.Generator:
    """Random numbers of one layer and step: the same wherever that step is computed again."""
    generator = torch.Generator()
    generator.manual_seed((seed * 1_000_003 + context.layer) * 1_000_003 + context.store.n_tokens)
    return generator
