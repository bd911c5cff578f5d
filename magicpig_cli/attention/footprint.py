"""What the methods to compare with keep of each layer and need while they work, for the memory plan.

`lsh` and `dense` are planned by themselves (models.plan). Imports no torch; tests/models/test_plan.py holds
`stored` equal to what the methods say of themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from magicpig_cli.lsh.params import LayerShape

# Defaults of attention.selected.BudgetedMethod, quest.Quest, snapkv.SnapKV and dsa.Dsa, which import torch.
_BUDGET, _PAGE_TOKENS, _VOTING_QUERIES, _FITTING_QUERIES = 0.05, 16, 32, 16
# Of lsh_published.LshPublished; the codes of a key are 16-bit numbers.
_PUBLISHED_TABLES = 150


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes in host memory: `stored` for every layer that isn't dense, `scratch` for one layer at a time."""

    stored: int
    scratch: int


def rival_footprint(
    method: str, shape: LayerShape, n_keys: int, n_tables: int | None = None, budget: float | None = None
) -> Footprint:
    """What one layer of a method takes.

    Parameters
    ----------
    method : str
        A name of `attention.registry.METHODS`.
    shape : LayerShape
    n_keys : int
        Keys between sinks and recent tokens.
    n_tables : int or None
        L, of lsh-published.
    budget : float or None
        Share of the keys that is read.
    """
    keys = shape.n_kv_heads * n_keys * shape.head_dim
    logits = shape.n_q_heads * n_keys
    chosen = min(n_keys, max(1, math.ceil((_BUDGET if budget is None else budget) * n_keys - 1e-6)))
    widened = 4 * keys  # all keys of the layer in float32
    match method:
        case "quest":
            stored = 8 * shape.n_kv_heads * (n_keys // _PAGE_TOKENS) * shape.head_dim
            scratch = widened + stored
        case "snapkv" | "pyramidkv":
            stored = 8 * shape.n_q_heads * chosen
            scratch = widened + 8 * _VOTING_QUERIES * logits
        case "dsa":
            stored = keys + 4 * shape.n_kv_heads * n_keys
            # Features in float32, in float64, and these weighted.
            scratch = widened + 20 * _FITTING_QUERIES * logits
        case "lsh-published":
            stored = 2 * shape.n_kv_heads * (n_tables or _PUBLISHED_TABLES) * n_keys
            scratch = max(stored, 2 * widened + 44 * logits)
        case "oracle-topk":
            stored, scratch = 0, widened + 8 * logits
        case "oracle-sampling" | "vattention":
            stored, scratch = 0, widened + 40 * logits
        case _:
            return Footprint(0, 0)
    # Chosen rows of keys and of values, as they are and in float32.
    return Footprint(stored, scratch + 12 * shape.n_q_heads * chosen * shape.head_dim)
