"""The weights that a step gave to the keys it attended to, for whoever asks where an answer comes from.

The kernels keep sums, not weights. Here those of the few keys that a step read are computed again,
in plain array operations; nothing of it runs unless it is asked for.
"""

from __future__ import annotations

import numpy as np

from magicpig_cli.lsh.estimator import angles_between, collision_prob, sampling_prob
from magicpig_cli.lsh.params import LshParams


def widened(words: np.ndarray) -> np.ndarray:
    """float32 values of uint16 bf16 bit patterns, any shape."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def key_weights(
    query: np.ndarray,
    keys: np.ndarray,
    lse: np.ndarray,
    scale: float,
    softcap: float = 0.0,
    log_u: np.ndarray | None = None,
) -> np.ndarray:
    """Weights of keys in the outputs of the query heads of one KV head.

    Parameters
    ----------
    query : numpy.ndarray
        float32, (n_heads, head_dim).
    keys : numpy.ndarray
        float32, (n, head_dim).
    lse : numpy.ndarray
        float32, (n_heads,): log of the (estimated) sum of exponentiated logits.
    scale, softcap : float
    log_u : numpy.ndarray, optional
        (n,): log of the inclusion probabilities; 0 where none is given.

    Returns
    -------
    numpy.ndarray
        float32, (n_heads, n): e^(s - log u - lse), the terms of the estimator (MagicPIG, arXiv 2410.16179,
        section 4.2).
    """
    logits = query @ keys.T * np.float32(scale)
    if softcap > 0:
        logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
    if log_u is not None:
        logits -= log_u
    weights: np.ndarray = np.exp(logits - lse[:, None], dtype=np.float32)
    return weights


def log_inclusion(query: np.ndarray, keys: np.ndarray, mean: np.ndarray, params: LshParams) -> np.ndarray:
    """log(u) of keys for query heads that sample together; the kernel of that name in plain numpy.

    Parameters
    ----------
    query : numpy.ndarray
        float32, (n_heads, head_dim).
    keys : numpy.ndarray
        float32, (n, head_dim).
    mean : numpy.ndarray
        float32, (head_dim,): m_c.
    params : LshParams

    Returns
    -------
    numpy.ndarray
        float64, (n,).
    """
    collision = collision_prob(
        angles_between(query, keys - mean), angles_between(query, query), params.n_bits
    )
    return np.log(sampling_prob(collision, params))
