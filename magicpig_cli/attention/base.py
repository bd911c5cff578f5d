"""The attention seam: what a decode-attention method must do, and nothing else.

Prefill is exact and the same for every method. When a layer's keys and values are in its
store, the method is told (`prefilled`); from then on every step first appends one key and
value to the store, then asks the method to `attend`. LSH sampling, dense attention and every
rival method are such objects, so a comparison uses the very path that `ask` uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from magicpig_cli.attention.kept_tables import KeepsTables
    from magicpig_cli.attention.transfer import Transfer
    from magicpig_cli.lsh.params import LayerShape
    from magicpig_cli.store.kv import LayerStore


@dataclass(slots=True)
class StepStats:
    """What the layers of one decode step did; the decode loop resets it before each step.

    Counts are (query head, key) pairs: `keys_offered` is how many there were in sampled
    layers, `keys_touched` how many the method read. Where query heads of a KV group read keys of their own,
    `rows_offered` and `rows_touched` count (KV head, key) pairs, a key that several heads read once; both are
    0 where the heads of a group read the same. `error_sum` adds the estimated squared
    relative L2 errors of head outputs, `error_count` how many were added. With a tolerance, `heads_judged`
    counts the outputs whose estimate was compared with it, `heads_resampled` those that were then attended
    with more of the keys, `heads_exact` those with all of them; what was read for that counts in
    `keys_touched`, beside the sample that it replaced.
    """

    retrieve_ms: float = 0.0
    attend_ms: float = 0.0
    keys_offered: int = 0
    keys_touched: int = 0
    rows_offered: int = 0
    rows_touched: int = 0
    error_sum: float = 0.0
    error_count: int = 0
    heads_judged: int = 0
    heads_resampled: int = 0
    heads_exact: int = 0

    def reset(self) -> None:
        for each in fields(self):
            setattr(self, each.name, each.default)

    def add(self, other: StepStats) -> None:
        """Count what another step did as well."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def attention_ms(self) -> float:
        return self.retrieve_ms + self.attend_ms

    @property
    def sampled_share(self) -> float | None:
        """Of the keys that were offered, how many were read; None where nothing was sampled."""
        return self.keys_touched / self.keys_offered if self.keys_offered else None

    @property
    def estimated_error(self) -> float | None:
        """Root mean square of the estimated relative errors."""
        return (self.error_sum / self.error_count) ** 0.5 if self.error_count else None

    @property
    def exact_share(self) -> float | None:
        """Of the outputs that a tolerance judged, how many were attended exactly."""
        return self.heads_exact / self.heads_judged if self.heads_judged else None

    @property
    def resampled_share(self) -> float | None:
        """Of the outputs that a tolerance judged, how many were attended again with more of the keys."""
        return self.heads_resampled / self.heads_judged if self.heads_judged else None


@dataclass(frozen=True, slots=True)
class Weighed:
    """Keys that one or more query heads attended to in a step, with the weights they had in the output.

    Attributes
    ----------
    tokens : numpy.ndarray
        int64, (n,): each token once.
    weights : numpy.ndarray
        float32, (n_heads, n): softmax weight, over the inclusion probability where a key was sampled. Of
        all that a head attended to, weights add up to 1.
    """

    tokens: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, slots=True)
class LayerContext:
    """All that a method may know of the layer it serves.

    Attributes
    ----------
    layer : int
        Index in the model.
    n_layers : int
        Layers of the model (PyramidKV spreads its budget over them).
    shape : LayerShape
    scale : float
        Multiplies q.k, usually 1/sqrt(head_dim).
    softcap : float
        Logits become softcap * tanh(logit / softcap); 0 means none (Gemma-2).
    store : LayerStore
        The layer's keys and values in host memory.
    stats : StepStats
    device : torch.device
        Where the model computes and queries come from.
    transfer : Transfer
        Between there and the kernels; the same for layers of one shape, which take turns.
    """

    layer: int
    n_layers: int
    shape: LayerShape
    scale: float
    softcap: float
    store: LayerStore
    stats: StepStats = field(repr=False)
    device: torch.device
    transfer: Transfer = field(repr=False)


class LayerAttention(ABC):
    """Decode attention of one layer. Built by a method's `layer`, one per layer and session."""

    @abstractmethod
    def prefilled(self, last_queries: torch.Tensor) -> None:
        """Tokens were prefilled: the store holds all of them, from 0 to `store.n_tokens`.

        Called after each exact prefill (the document, a later question), so it may find
        earlier tokens already known.

        Parameters
        ----------
        last_queries : torch.Tensor
            Queries of the last prompt tokens, (n_q_heads, window, head_dim), window <= 64;
            for methods that choose keys by an observation window (SnapKV).
        """

    def prepare(self) -> None:  # noqa: B027
        """Build what `prefilled` put off, before the first step: another exact prefill needs none of it.

        May be called in another thread than the rest, at any time after `prefilled`; whoever builds nothing
        here has nothing to guard.
        """

    @abstractmethod
    def attend(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with one query per head over the store, whose last row is this step's own key.

        Parameters
        ----------
        query : torch.Tensor
            (n_q_heads, head_dim), float32 or the compute dtype, on the compute device.

        Returns
        -------
        output : torch.Tensor
            (n_q_heads, head_dim), same dtype and device as `query`.
        lse : torch.Tensor
            Natural log of the sum of exponentiated logits, (n_q_heads,), float32.
        """

    @abstractmethod
    def weights(self, query: torch.Tensor, lse: torch.Tensor) -> list[Weighed]:
        """The weights that the last call of `attend` gave, computed again: for whoever asks where it looked.

        Parameters
        ----------
        query, lse : torch.Tensor
            What that call got and gave; the store has not changed since.

        Returns
        -------
        list of Weighed
            Every query head is in one of them.
        """

    @property
    def estimated_error(self) -> torch.Tensor | None:
        """Estimated relative L2 error of each head's last output, (n_q_heads,), float32 on the CPU.

        None for methods that cannot tell.
        """
        return None

    def mark(self) -> Any:
        """What `rewind` needs to come back to the tokens known now; methods without state need nothing."""
        return None

    def rewind(self, mark: Any) -> None:  # noqa: B027
        """Forget what was learned of tokens that came after `mark` was taken."""

    @property
    def keeper_of_tables(self) -> KeepsTables | None:
        """Whoever knows the tables, where they may be kept on a disk beside keys and values."""
        return None

    @property
    def table_bytes(self) -> int:
        """Host memory that the method keeps beside the keys and values."""
        return 0

    @property
    def device_kv_bytes(self) -> int:
        """Device memory of the keys and values that stay there, beside those of the store."""
        return 0


class AttentionMethod(ABC):
    """A method with its parameters: a frozen dataclass whose fields are the paper's, with defaults."""

    name: str

    @abstractmethod
    def layer(self, context: LayerContext) -> LayerAttention:
        """A fresh `LayerAttention` for one layer."""
