"""Where transformers' models meet the seam: one function in their attention registry.

A model is called with `magicpig=<attender>` as an extra keyword and no cache. Its own modules
project and rotate q, k, v; the registered function hands them to the attender, which is a
`LayerPrefill` while reading and a `Session` while decoding. No line of model code is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magicpig_cli.attention.merge import apply_sink
from magicpig_cli.errors import UsageError

ATTENTION_NAME = "magicpig"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a layer attends, as its module declares it on every call."""

    scale: float
    softcap: float
    window: int | None


class Attender(Protocol):
    """Takes new keys and values of a layer and attends with the queries that came with them."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query (n_q_heads, n, head_dim), key and value (n_kv_heads, n, head_dim), n new tokens.

        Returns output (n_q_heads, n, head_dim) and log-sum-exp (n_q_heads, n).
        """


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    *,
    magicpig: Attender | None = None,
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    if magicpig is None:
        raise UsageError(
            f"the model's {type(module).__name__} is not handed what its layers are called with, so its "
            "attention cannot be replaced; choose another model (`magicpig models ls`)"
        )
    rule = LayerRule(float(scaling), float(softcap or 0.0), sliding_window)
    output, lse = magicpig.attend(int(module.layer_idx), query[0], key[0], value[0], rule)
    if s_aux is not None:
        output = apply_sink(output, lse, s_aux)
    return output.transpose(0, 1)[None], None


def register_attention() -> None:
    """Make `attn_implementation="magicpig"` known to transformers; may be called again."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attention)
