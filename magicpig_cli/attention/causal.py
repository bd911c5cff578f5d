"""Exact causal attention of a chunk of queries over everything before it: the prefill's attention.

Query heads that share a KV head become rows of one matrix, so keys and values are never
repeated. A chunk is split into its history (no mask needed) and itself (a small causal
mask); the two partial results are merged by their log-sum-exp.
"""

from __future__ import annotations

import torch

from magicpig_cli.attention.merge import merge_partials

# Rows of logits that the soft-capped path holds at once; 256 rows of 100k keys are 100 MB in float32.
_SOFTCAP_ROWS = 256


def causal_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the last `chunk` positions, each over itself and all (or `window`) positions up to it.

    Parameters
    ----------
    query : torch.Tensor
        (n_q_heads, chunk, head_dim); its last row stands at the last key.
    keys, values : torch.Tensor
        (n_kv_heads, n, head_dim), n >= chunk, same dtype and device as `query`.
    scale : float
        Multiplies q.k.
    softcap : float
        Logits become softcap * tanh(logit / softcap) when greater than 0.
    window : int or None
        Sliding attention: a position sees at most `window` keys, itself included.

    Returns
    -------
    output : torch.Tensor
        (n_q_heads, chunk, head_dim), dtype of `query`.
    lse : torch.Tensor
        Natural log-sum-exp of the logits, (n_q_heads, chunk), float32.
    """
    n_q_heads, chunk, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    group = n_q_heads // n_kv_heads
    rows = query.reshape(n_kv_heads, group * chunk, head_dim)
    start = n - chunk
    if window is not None:
        first = max(0, start - window + 1)
        mask = _window_mask(chunk, n - first, window, query.device).repeat(group, 1)
        output, lse = _partial(rows, keys[:, first:], values[:, first:], mask, scale, softcap)
    else:
        mask = _window_mask(chunk, chunk, chunk, query.device).repeat(group, 1)
        output, lse = _partial(rows, keys[:, start:], values[:, start:], mask, scale, softcap)
        if start:
            history = _partial(rows, keys[:, :start], values[:, :start], None, scale, softcap)
            output, lse = merge_partials(history, (output, lse))
    return output.reshape(n_q_heads, chunk, head_dim), lse.reshape(n_q_heads, chunk)


def _window_mask(chunk: int, n: int, window: int, device: torch.device) -> torch.Tensor:
    """True where query i of the last `chunk` positions may see key j of the last `n`, (chunk, n)."""
    position = torch.arange(n - chunk, n, device=device)[:, None]
    key = torch.arange(n, device=device)[None, :]
    return (key <= position) & (key > position - window)


def _partial(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    if softcap > 0:
        return _softcapped_partial(rows, keys, values, mask, scale, softcap)
    q, k, v = rows[None], keys[None], values[None]
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=rows.dtype, device=rows.device)
        bias.masked_fill_(~mask, float("-inf"))
    aten = torch.ops.aten
    if rows.device.type == "cpu":
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=bias, scale=scale
        )
    elif bias is None and rows.dtype != torch.float32:
        output, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False, scale=scale)[:2]
    elif bias is None:  # the flash kernel of a GPU takes 16-bit numbers only
        output, lse = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, False, scale=scale
        )[:2]
    else:
        # The memory-efficient kernel wants the mask's rows aligned to 16 bytes.
        aligned = -(-bias.shape[-1] // 16) * 16
        padded = bias.new_zeros(bias.shape[0], aligned)
        padded[:, : bias.shape[-1]] = bias
        expanded = padded[None, None, :, : bias.shape[-1]].expand(1, q.shape[1], -1, -1)
        output, lse = aten._scaled_dot_product_efficient_attention(
            q, k, v, expanded, True, 0.0, False, scale=scale
        )[:2]
    return output[0], lse[0, :, : rows.shape[1]].float()


def _softcapped_partial(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """No fused kernel caps logits, so this holds `_SOFTCAP_ROWS` rows of them at a time."""
    output = torch.empty_like(rows)
    lse = torch.empty(rows.shape[:2], dtype=torch.float32, device=rows.device)
    for start in range(0, rows.shape[1], _SOFTCAP_ROWS):
        part = slice(start, start + _SOFTCAP_ROWS)
        logits = torch.bmm(rows[:, part], keys.transpose(1, 2)).float().mul_(scale)
        logits = logits.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            logits.masked_fill_(~mask[part], float("-inf"))
        lse[:, part] = torch.logsumexp(logits, dim=-1)
        weights = torch.exp_(logits.sub_(lse[:, part, None]))
        output[:, part] = torch.bmm(weights.to(values.dtype), values)
    return output, lse
