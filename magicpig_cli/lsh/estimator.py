"""The probability that a key is sampled, the table in which kernels look up its logarithm, and the error.

The query heads that share a KV head sample together: a key that one of them finds is read
once and serves all. So the event whose probability counts is that a key falls, in at least M
tables (two in the paper), into the bucket of any of the group's queries; or that it is among the few that
every step reads wherever they lie.
"""

from __future__ import annotations

from functools import cache
from math import lgamma

import numpy as np

from magicpig_cli.lsh.params import LshParams

# The table of log(u) has this many entries per factor of two of the collision probability, from
# 2^-LOG_U_OCTAVES to 1. Interpolated linearly, log(u), at its steepest M log(P), is exact to M times
# 3.1e-5 (tests/lsh/test_estimator.py).
LOG_U_PER_OCTAVE = 64
LOG_U_OCTAVES = 40
# The mean square of true errors over what independent inclusions would give, and a margin for how much the
# estimate itself scatters: see `squared_error`. The round number nearest above what keeps 95 % of true errors
# within twice the estimate on keys of a novel; docs/accuracy.md has that and its check on another text.
DESIGN_EFFECT = 2.0
# Beside what the tables find, a step reads one key in so many, wherever it lies. Heads whose keys are all far
# from the query would have no sample otherwise, and so no notion of their error; and no weight grows larger.
UNIFORM_STRIDE = 256
# Mixes codes into the place where these begin: 2^64 over the golden ratio spreads numbers over all 64 bits.
UNIFORM_MIXER = 0x9E3779B97F4A7C15
_SMALLEST_COLLISION = 1e-30
# Of the binomial tail where u is below a half.
_TAIL_TERMS = 64


def collision_prob(angles: np.ndarray, query_angles: np.ndarray, n_bits: int) -> np.ndarray:
    """The chance that in one table a key shares its code with at least one query of the group.

    One query collides with probability p^K, p = 1 - angle/pi (MagicPIG, arXiv 2410.16179, section
    4.2). For several, the chance that query g is the first to collide is
    p_g^K prod_{j<g} (1 - P(j collides | g collides)); per hyperplane, key and queries j and g lie
    on one side with probability 1 - (angle_j + angle_g + angle_jg) / (2 pi) (three vectors have three
    pairs, and each hyperplane that parts them parts two of these). For one or two queries this is
    exact; for more, earlier queries are taken as independent given g.

    Parameters
    ----------
    angles : numpy.ndarray
        Radians between each query and each centred key, (n_queries, n_keys).
    query_angles : numpy.ndarray
        Radians between the queries, (n_queries, n_queries).
    n_bits : int
        K.

    Returns
    -------
    numpy.ndarray
        float64, (n_keys,).
    """
    agree = np.maximum(1.0 - np.asarray(angles, np.float64) / np.pi, 1e-12)
    total = np.zeros(agree.shape[1])
    for g in range(len(agree)):
        first = agree[g] ** n_bits
        for j in range(g):
            together = 1.0 - (angles[j] + angles[g] + query_angles[j, g]) / (2 * np.pi)
            first = first * (1.0 - np.clip(together / agree[g], 0.0, 1.0) ** n_bits)
        total += first
    return np.clip(total, 0.0, 1.0)


def angles_between(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Radians between each query and each vector, float64, (n_queries, n_vectors)."""
    queries, vectors = np.asarray(queries, np.float64), np.asarray(vectors, np.float64)
    norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    angles: np.ndarray = np.arccos(np.clip(queries @ vectors.T / np.maximum(norms, 1e-300), -1.0, 1.0))
    return angles


def inclusion_prob(collision: np.ndarray, n_tables: int, min_collisions: int = 2) -> np.ndarray:
    """u: the chance of a collision in at least M of L tables.

    The tail of the binomial distribution; with M = 2, u = 1 - (1-P)^L - L P (1-P)^(L-1) (MagicPIG, arXiv
    2410.16179, section 4.2). A larger M with more tables makes the step from "never sampled" to "always
    sampled" steeper, at the same number of bits.

    Parameters
    ----------
    collision : numpy.ndarray
        P: the chance of a collision in one table.
    n_tables : int
        L.
    min_collisions : int
        M.

    Returns
    -------
    numpy.ndarray
        float64, shape of `collision`.
    """
    collide = np.clip(np.asarray(collision, np.float64), _SMALLEST_COLLISION, 1.0 - 1e-16)
    hit, miss = np.log(collide), np.log1p(-collide)

    def chance(hits: range) -> np.ndarray:
        total = np.zeros_like(collide)
        for k in hits:
            ways = lgamma(n_tables + 1) - lgamma(k + 1) - lgamma(n_tables - k + 1)
            total += np.exp(ways + k * hit + (n_tables - k) * miss)
        return total

    fewer = chance(range(min(min_collisions, n_tables + 1)))
    # The complement cancels where u is small. There the tail's own terms fall fast: this many leave out less
    # than 1e-12 of their sum.
    enough = chance(range(min_collisions, min(n_tables, min_collisions + _TAIL_TERMS) + 1))
    return np.clip(np.where(fewer > 0.5, enough, 1.0 - fewer), 0.0, 1.0)


def sampling_prob(collision: np.ndarray, params: LshParams) -> np.ndarray:
    """The chance that a key is sampled: by its collisions, or as one of those read wherever they lie.

    Parameters
    ----------
    collision : numpy.ndarray
        P: the chance of a collision in one table.
    params : LshParams

    Returns
    -------
    numpy.ndarray
        float64, shape of `collision`, at least 1 / UNIFORM_STRIDE.
    """
    u = inclusion_prob(collision, params.n_tables, params.min_collisions)
    return np.asarray(u + (1.0 - u) / UNIFORM_STRIDE)


def squared_error(u: np.ndarray, weights: np.ndarray, squares: np.ndarray) -> float:
    """Estimated squared L2 error of an output, from the sample alone.

    To first order the self-normalised output errs by sum_i (I_i/u_i - 1) p_i (v_i - out), I_i telling
    whether key i is in the sample and p_i being its attention weight (ratio estimator: Saerndal, Swensson,
    Wretman, Model Assisted Survey Sampling, section 5.6). Were the I_i independent, its mean square would be
    the sum over all keys of (1-u_i)/u_i p_i^2 |v_i - out|^2, which the sample estimates without bias
    (Horvitz and Thompson), as w_i = p_i/u_i, by

        sum_sampled (1-u_i) w_i^2 |v_i - out|^2.

    They are not: keys that are alike collide in the same tables, and their values are alike too. The ratio of
    the two mean squares is the design effect of survey sampling (Kish, Survey Sampling, section 8.2). Beside
    that, a heavy key with a small u that was missed is missed in the sum as well, and of a sum of few terms
    that happens often. Both are in the factor `DESIGN_EFFECT`, the one constant that is measured.

    Parameters
    ----------
    u : numpy.ndarray
        Inclusion probabilities of the sampled keys, (n,).
    weights : numpy.ndarray
        w, their weights in the output, (n,).
    squares : numpy.ndarray
        |v - out|^2, (n,).

    Returns
    -------
    float
        0 for an empty sample.
    """
    return float(DESIGN_EFFECT * ((1.0 - u) * weights**2 * squares).sum())


@cache
def log_sampling_table(n_tables: int, min_collisions: int) -> np.ndarray:
    """The logarithm of `sampling_prob` over the collision probability, float32, for kernels.

    Every layer of a model looks in the same one, so it is made once; nobody may write to it.

    Entry i belongs to the float32 whose bit pattern is that of 2^-LOG_U_OCTAVES plus i steps of
    2^23 / LOG_U_PER_OCTAVE: linear within an octave, so that a kernel finds it by shifting bits.
    """
    octave, step = np.divmod(np.arange(LOG_U_OCTAVES * LOG_U_PER_OCTAVE + 2), LOG_U_PER_OCTAVE)
    collision = np.exp2(octave - float(LOG_U_OCTAVES)) * (1.0 + step / LOG_U_PER_OCTAVE)
    params = LshParams(n_tables=n_tables, min_collisions=min_collisions)
    return np.log(sampling_prob(np.minimum(collision, 1.0), params)).astype(np.float32)
