"""Keys, values and queries to measure on: generated with the statistics of real ones, or real ones extended.

Independent Gaussian keys would make sampling look cheaper than it is. Real keys (SmolLM2-135M
reading 3,000 tokens of a novel, layers 0 and 16 left out) have a mean as long as their
deviation from it, variance in 40 % of their dimensions, neighbours that resemble each other, and
cosines to the queries with a standard deviation of 0.14 where independent vectors would have
0.125; the queries of a group have a cosine of 0.7 to each other. The generator reproduces those
figures; benchmarks/key_statistics.py measures them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.lsh.reference import float_to_bf16
from magicpig_cli.store.memory import RowMemory


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """What the generator aims at; the defaults are the measured medians at head_dim 64.

    Attributes
    ----------
    mean_over_deviation : float
        |m_c| over the mean |k - m_c|.
    participation : float
        Participation ratio of the keys' covariance, as a share of head_dim.
    cosine_std, logit_std : float
        Of cos(q, k - m_c) and of q.k/sqrt(d) over the keys of a head.
    query_likeness : float
        Mean cosine between the queries of a group.
    topic_share, phrase_share : float
        Variance that stays for 256 tokens, and for 4: neighbours correlate by 0.6, tokens 64 apart by 0.24.
    norm_std : float
        Of |k - m_c| over its mean.
    """

    mean_over_deviation: float = 1.07
    participation: float = 0.4
    cosine_std: float = 0.139
    logit_std: float = 2.8
    query_likeness: float = 0.7
    topic_share: float = 0.24
    phrase_share: float = 0.45
    norm_std: float = 0.11

    @classmethod
    def of(cls, head_dim: int) -> KeyStatistics:
        """At head_dim 128 the cosine deviates by 0.123, which samples the published 2.5 % at K=10, L=150."""
        return cls() if head_dim <= 64 else cls(cosine_std=0.123 * (128 / head_dim) ** 0.5)


@dataclass(frozen=True, slots=True)
class KeySet:
    """One layer's keys and values in the store's form, and queries of several steps.

    Attributes
    ----------
    rows : numpy.ndarray
        uint16 bf16 bit patterns, (n_kv_heads, n_keys, 2, head_dim).
    queries : numpy.ndarray
        float32, (n_steps, n_q_heads, head_dim).
    source : str
        "generator" or "model".
    description : str
    """

    rows: np.ndarray
    queries: np.ndarray
    source: str
    description: str


_TOPIC_TOKENS, _PHRASE_TOKENS = 256, 4


def generate_keys(shape: LayerShape, n_keys: int, n_steps: int, seed: int) -> KeySet:
    """Keys and queries with the statistics of real ones.

    Parameters
    ----------
    shape : LayerShape
    n_keys, n_steps : int
    seed : int
    """
    random = np.random.default_rng(seed)
    aim = KeyStatistics.of(shape.head_dim)
    dim = shape.head_dim
    key_spectrum = _spectrum(dim, aim.participation * dim)
    query_spectrum = _aligned_spectrum(key_spectrum, aim.cosine_std)
    rows = RowMemory().allocate((shape.n_kv_heads, n_keys, 2, dim)).view(torch.uint16).numpy()
    queries = np.empty((n_steps, shape.n_q_heads, dim), np.float32)
    for head in range(shape.n_kv_heads):
        basis = np.linalg.qr(random.normal(size=(dim, dim)))[0].astype(np.float32)
        mean = random.normal(size=dim)
        mean *= aim.mean_over_deviation * np.sqrt(dim) / np.linalg.norm(mean)
        keys = _texture(random, n_keys, dim, aim) * np.sqrt(key_spectrum).astype(np.float32) @ basis
        norms = 1.0 + aim.norm_std * random.standard_normal((n_keys, 1), np.float32)
        keys *= norms * np.sqrt(dim) / np.linalg.norm(keys, axis=1, keepdims=True)
        rows[head, :, 0] = float_to_bf16(keys + mean.astype(np.float32))
        rows[head, :, 1] = float_to_bf16(random.standard_normal((n_keys, dim), np.float32) + 0.4)
        group = slice(head * shape.group_size, (head + 1) * shape.group_size)
        draws = np.sqrt(1.0 - aim.query_likeness) * random.normal(size=(n_steps, shape.group_size, dim))
        draws += np.sqrt(aim.query_likeness) * random.normal(size=(n_steps, 1, dim))
        draws *= np.sqrt(query_spectrum)
        draws /= np.linalg.norm(draws, axis=2, keepdims=True)
        # |q| |k - m| cos / sqrt(d) deviates by logit_std, and |k - m| is sqrt(d).
        queries[:, group] = (draws @ basis) * (aim.logit_std / aim.cosine_std)
    description = (
        f"generated with the statistics of real keys: cosine deviates by {aim.cosine_std:.3f}, "
        f"logits by {aim.logit_std}, seed {seed}"
    )
    return KeySet(rows, queries, "generator", description)


def extend_rows(rows: np.ndarray, n_keys: int, seed: int) -> np.ndarray:
    """Real rows, drawn again and again in stretches of 64 tokens and moved a little, up to `n_keys`.

    Stretches keep the likeness of neighbours; the movement, a tenth of each dimension's deviation, keeps
    copies from hashing alike. The share that LSH samples stays what it is on the real rows.

    Parameters
    ----------
    rows : numpy.ndarray
        uint16 bf16 bit patterns, (n_kv_heads, n_real, 2, head_dim).
    n_keys : int
        At least n_real.
    seed : int

    Returns
    -------
    numpy.ndarray
        uint16, (n_kv_heads, n_keys, 2, head_dim); starts with the real rows.
    """
    random = np.random.default_rng(seed)
    n_heads, n_real, _, dim = rows.shape
    extended = np.empty((n_heads, n_keys, 2, dim), np.uint16)
    extended[:, :n_real] = rows
    stretch = min(64, n_real)
    starts = random.integers(0, n_real - stretch + 1, -(-(n_keys - n_real) // stretch))
    picked = (starts[:, None] + np.arange(stretch)).reshape(-1)[: n_keys - n_real]
    for head in range(n_heads):
        real = (rows[head].astype(np.uint32) << np.uint32(16)).view(np.float32)
        deviation = 0.1 * real.std(axis=0, dtype=np.float32)
        moved = random.standard_normal((len(picked), 2, dim), np.float32)
        moved *= deviation
        moved += real[picked]
        extended[head, n_real:] = float_to_bf16(moved)
    return extended


def _texture(random: np.random.Generator, n_keys: int, dim: int, aim: KeyStatistics) -> np.ndarray:
    """White in its dimensions, correlated between neighbouring tokens; float32, (n_keys, dim)."""
    noise = random.standard_normal((n_keys, dim), np.float32)
    noise *= np.sqrt(1.0 - aim.topic_share - aim.phrase_share)
    for share, tokens in ((aim.topic_share, _TOPIC_TOKENS), (aim.phrase_share, _PHRASE_TOKENS)):
        held = random.standard_normal((-(-n_keys // tokens), dim), np.float32) * np.sqrt(share)
        noise += np.repeat(held, tokens, axis=0)[:n_keys]
    return noise


def _spectrum(dim: int, participation: float) -> np.ndarray:
    """Variances r^i with sum `dim` and the participation ratio (sum)^2 / sum of squares asked for."""
    low, high = 1e-6, 1.0
    for _ in range(60):
        ratio = (low + high) / 2
        powers = ratio ** np.arange(dim)
        low, high = (ratio, high) if powers.sum() ** 2 / (powers**2).sum() < participation else (low, ratio)
    return np.asarray(powers * dim / powers.sum())


def _aligned_spectrum(keys: np.ndarray, cosine_std: float) -> np.ndarray:
    """Variances keys^p of the queries, p chosen so that cosines deviate by `cosine_std`.

    For independent directions the variance of the cosine is sum(keys * queries) / (sum keys * sum queries).
    """
    low, high = 0.0, 4.0
    for _ in range(60):
        power = (low + high) / 2
        queries = keys**power
        variance = (keys * queries).sum() / keys.sum() / queries.sum()
        low, high = (power, high) if variance < cosine_std**2 else (low, power)
    return queries
