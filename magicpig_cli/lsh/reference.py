"""The same mathematics in plain numpy and float64, with no thought of speed: what the kernels must equal.

Only tests and the evaluation use it. Each function is the twin of a kernel and works on the
same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magicpig_cli.lsh.estimator import (
    UNIFORM_MIXER,
    UNIFORM_STRIDE,
    angles_between,
    collision_prob,
    sampling_prob,
    squared_error,
)
from magicpig_cli.lsh.hashing import HashPlan
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.lsh.weights import widened


def bf16_to_float(words: np.ndarray) -> np.ndarray:
    """float64 values of uint16 bf16 bit patterns, any shape."""
    return widened(words).astype(np.float64)


def float_to_bf16(values: np.ndarray) -> np.ndarray:
    """uint16 bf16 bit patterns nearest to finite `values` (ties to even), any shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def hyperplanes(plan: HashPlan, kv_head: int) -> np.ndarray:
    """Normals of all hyperplanes of one KV head, (n_tables, n_bits, padded_dim), unscaled, float64."""
    dim = plan.padded_dim
    transform = np.ones((1, 1))
    while transform.shape[0] < dim:
        transform = np.block([[transform, transform], [transform, -transform]])
    signs = plan.signs[kv_head].astype(np.float64)
    shared = transform @ np.diag(signs[1]) @ transform @ np.diag(signs[0])
    blocks = np.stack([transform @ np.diag(flips) @ shared for flips in signs[2:]], axis=1)
    planes = blocks.reshape(-1, dim)[: plan.n_tables * plan.n_bits]
    return planes.reshape(plan.n_tables, plan.n_bits, dim)


def hash_codes(vectors: np.ndarray, plan: HashPlan, kv_head: int) -> np.ndarray:
    """Codes of vectors (n, head_dim), which are hashed as they are; uint16, (n_tables, n)."""
    planes = hyperplanes(plan, kv_head)[:, :, : vectors.shape[1]]
    positive = (
        (vectors.astype(np.float64) @ planes.reshape(-1, vectors.shape[1]).T > 0.0)
        .reshape(-1, plan.n_tables, plan.n_bits)
        .transpose(1, 0, 2)
    )
    return (positive << np.arange(plan.n_bits)).sum(axis=2).astype(np.uint16)


def collide_often(key_codes: np.ndarray, query_codes: np.ndarray, min_collisions: int) -> np.ndarray:
    """Keys that share their code with a query of the group in at least M tables: ascending indices.

    Parameters
    ----------
    key_codes, query_codes : numpy.ndarray
        (n_tables, n_keys) and (n_tables, n_queries).
    min_collisions : int
        M.
    """
    collided = (key_codes[:, :, None] == query_codes[:, None, :]).any(axis=2)
    return np.flatnonzero(collided.sum(axis=0) >= min_collisions)


def uniform_keys(query_codes: np.ndarray, n_keys: int) -> np.ndarray:
    """Every UNIFORM_STRIDE-th key, from a place that the first query's codes decide: ascending indices.

    Parameters
    ----------
    query_codes : numpy.ndarray
        (n_tables, n_queries).
    n_keys : int
    """
    mixed = 0
    for code in query_codes[:, 0].tolist():
        mixed = (mixed ^ code) * UNIFORM_MIXER % 2**64
    return np.arange((mixed >> 32) % UNIFORM_STRIDE, n_keys, UNIFORM_STRIDE)


def attend_sampled(
    query: np.ndarray,
    rows: np.ndarray,
    exact: Sequence[tuple[int, int]],
    samples: Sequence[np.ndarray],
    mean: np.ndarray,
    params: LshParams,
    scale: float,
    softcap: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Self-normalised importance sampling over a given sample (MagicPIG, arXiv 2410.16179, section 4.2).

    Parameters
    ----------
    query : numpy.ndarray
        (n_q_heads, head_dim).
    rows : numpy.ndarray
        uint16, (n_kv_heads, capacity, 2, head_dim).
    exact : sequence of (start, stop)
    samples : sequence of numpy.ndarray
        Sampled tokens per group of query heads; groups are equal parts of the query heads.
    mean : numpy.ndarray
        (n_kv_heads, head_dim): m_c.
    params : LshParams
    scale, softcap : float

    Returns
    -------
    out : (n_q_heads, head_dim); lse : (n_q_heads,); squared_error : (n_q_heads,)
    """
    n_q_heads, head_dim = query.shape
    per_kv_head = n_q_heads // rows.shape[0]
    out, lse, error = np.zeros((n_q_heads, head_dim)), np.full(n_q_heads, -np.inf), np.zeros(n_q_heads)
    certain = [token for start, stop in exact for token in range(start, stop)]
    for group, sample in enumerate(samples):
        heads = range(n_q_heads * group // len(samples), n_q_heads * (group + 1) // len(samples))
        tokens = np.array([*certain, *sample], dtype=np.int64)
        if not tokens.size:
            continue
        kv_head = heads[0] // per_kv_head
        keys, values = (bf16_to_float(rows[kv_head, tokens, part]) for part in (0, 1))
        queries = query[heads[0] : heads[-1] + 1].astype(np.float64)
        angles = angles_between(queries, keys - mean[kv_head].astype(np.float64))
        collision = collision_prob(angles, angles_between(queries, queries), params.n_bits)
        u = sampling_prob(collision, params)
        u[: len(certain)] = 1.0
        for head, q in zip(heads, queries, strict=True):
            logits = keys @ q * scale
            if softcap > 0:
                logits = softcap * np.tanh(logits / softcap)
            logits = logits - np.log(u)
            lse[head] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
            weights = np.exp(logits - lse[head])
            out[head] = weights @ values
            distances = ((values - out[head]) ** 2).sum(axis=1)
            error[head] = squared_error(u, weights, distances) / (out[head] ** 2).sum()
    return out, lse, error
