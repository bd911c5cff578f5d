"""Merging attention over disjoint sets of keys: each part brings its output and its log-sum-exp.

softmax over a union of key sets is the average of the parts' outputs, weighted by the
exponentials of their log-sum-exp (FlashAttention-2, arXiv 2307.08691, section 3.1).
"""

from __future__ import annotations

import torch

Partial = tuple[torch.Tensor, torch.Tensor]


def merge_partials(first: Partial, second: Partial) -> Partial:
    """Attention over the union of two disjoint key sets.

    Parameters
    ----------
    first, second : tuple of torch.Tensor
        Output (..., head_dim) and log-sum-exp (...,) float32. A part without any key has a
        log-sum-exp of -inf and counts for nothing; not both may be empty.

    Returns
    -------
    tuple of torch.Tensor
        Output in the dtype of the first, and log-sum-exp, float32.
    """
    (output_a, lse_a), (output_b, lse_b) = first, second
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a = torch.exp(lse_a - lse)[..., None]
    weight_b = torch.exp(lse_b - lse)[..., None]
    return (output_a * weight_a + output_b * weight_b).to(output_a.dtype), lse


def apply_sink(output: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Add a learned sink logit to the softmax's denominator (gpt-oss).

    Parameters
    ----------
    output : torch.Tensor
        (n_q_heads, n, head_dim).
    lse : torch.Tensor
        (n_q_heads, n), float32.
    sink : torch.Tensor
        One logit per query head, (n_q_heads,).
    """
    kept = torch.sigmoid(lse - sink.float()[:, None])
    return (output * kept[..., None]).to(output.dtype)
