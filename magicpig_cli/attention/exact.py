"""One query per head over given keys, exactly, in torch: for windows, static keys and device layers."""

from __future__ import annotations

import numpy as np
import torch

from magicpig_cli.attention.base import LayerContext, Weighed
from magicpig_cli.lsh.weights import key_weights


def attend_exactly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one step over all of the keys.

    Query heads of a KV group are rows of one product, so keys are read once per KV head.

    Parameters
    ----------
    query : torch.Tensor
        (n_q_heads, head_dim).
    keys, values : torch.Tensor
        (n_kv_heads, n, head_dim), any float dtype, moved to the query's device if elsewhere.
    scale, softcap : float

    Returns
    -------
    output : torch.Tensor
        (n_q_heads, head_dim), dtype of `query`.
    lse : torch.Tensor
        (n_q_heads,), float32.
    """
    n_kv_heads, _, head_dim = keys.shape
    rows = query.reshape(n_kv_heads, -1, head_dim)
    keys = keys.to(query.device, query.dtype)
    values = values.to(query.device, query.dtype)
    logits = torch.bmm(rows, keys.transpose(1, 2)).float() * scale
    if softcap > 0:
        logits = torch.tanh(logits / softcap) * softcap
    lse = torch.logsumexp(logits, dim=-1)
    output = torch.bmm(torch.exp(logits - lse[..., None]).to(values.dtype), values)
    return output.reshape(query.shape), lse.reshape(-1)


def weigh_exactly(
    query: torch.Tensor, lse: torch.Tensor, context: LayerContext, start: int, stop: int
) -> list[Weighed]:
    """The weights that the last step gave to tokens start to stop - 1, each of which it read with certainty.

    Parameters
    ----------
    query : torch.Tensor
        (n_q_heads, head_dim).
    lse : torch.Tensor
        (n_q_heads,).
    context : LayerContext
    start, stop : int
    """
    shape, tokens = context.shape, np.arange(start, stop)
    keys = context.store.read(start, stop)[0]
    rows = query.float().cpu().reshape(shape.n_kv_heads, -1, shape.head_dim).numpy()
    sums = lse.float().cpu().reshape(shape.n_kv_heads, -1).numpy()
    return [
        Weighed(tokens, key_weights(row, key.float().numpy(), total, context.scale, context.softcap))
        for row, key, total in zip(rows, keys, sums, strict=True)
    ]
