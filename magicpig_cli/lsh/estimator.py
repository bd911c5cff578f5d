"""The probability that a key is sampled, and the table in which kernels look up its logarithm."""

from __future__ import annotations

import numpy as np

# Entries over the cosine from -1 to 1. Interpolated linearly, log(u) is then exact to 1e-3 where
# u > 1e-6 (tests/lsh/test_estimator.py), which is below the rounding of a bf16 logit.
LOG_U_ENTRIES = 4097
# A key with a smaller probability will not be seen; the floor keeps its logarithm finite.
_SMALLEST_U = 1e-30


def inclusion_prob(cosine: np.ndarray, n_bits: int, n_tables: int) -> np.ndarray:
    """u: the chance that a key shares its code with the query in at least two tables.

    With p = 1 - angle/pi and P = p^K: u = 1 - (1-P)^L - L P (1-P)^(L-1)
    (MagicPIG, arXiv 2410.16179, section 4.2).

    Parameters
    ----------
    cosine : numpy.ndarray
        Cosine of the angle between query and centred key.
    n_bits, n_tables : int
        K and L.

    Returns
    -------
    numpy.ndarray
        float64, shape of `cosine`.
    """
    agree = 1.0 - np.arccos(np.clip(np.asarray(cosine, np.float64), -1.0, 1.0)) / np.pi
    collide = agree**n_bits
    miss = np.log1p(-np.minimum(collide, 1.0 - 1e-16))
    exact = -np.expm1(n_tables * miss) - n_tables * collide * np.exp((n_tables - 1) * miss)
    # The closed form cancels where P is tiny; its series does not.
    pairs = n_tables * (n_tables - 1) / 2.0
    series = pairs * collide**2 * (1.0 - 2.0 / 3.0 * (n_tables - 2) * collide)
    return np.where(n_tables * collide < 1e-4, series, exact)


def log_inclusion_table(n_bits: int, n_tables: int) -> np.ndarray:
    """log(u) at `LOG_U_ENTRIES` equidistant cosines from -1 to 1, float32."""
    cosine = np.linspace(-1.0, 1.0, LOG_U_ENTRIES)
    return np.log(np.maximum(inclusion_prob(cosine, n_bits, n_tables), _SMALLEST_U)).astype(np.float32)
