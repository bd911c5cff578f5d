"""The inclusion probability, and the table that stands for its logarithm."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from magicpig_cli.lsh.estimator import LOG_U_ENTRIES, inclusion_prob, log_inclusion_table

SETTINGS = [(1, 2), (4, 30), (8, 75), (9, 120), (10, 150), (11, 300), (16, 300)]


@pytest.mark.parametrize(("n_bits", "n_tables"), SETTINGS)
def test_closed_form_is_the_binomial_tail(n_bits, n_tables):
    angles = np.linspace(0.05, np.pi - 0.05, 31)
    collide = (1 - angles / np.pi) ** n_bits
    tail = sum(
        comb(n_tables, k) * collide**k * (1 - collide) ** (n_tables - k) for k in range(2, n_tables + 1)
    )
    np.testing.assert_allclose(inclusion_prob(np.cos(angles), n_bits, n_tables), tail, rtol=1e-6, atol=1e-300)


@pytest.mark.parametrize(("n_bits", "n_tables"), SETTINGS)
def test_it_is_a_probability_and_grows_with_the_cosine(n_bits, n_tables):
    u = inclusion_prob(np.linspace(-1.5, 1.5, 2001), n_bits, n_tables)
    assert ((u >= 0) & (u <= 1 + 1e-12)).all()
    assert (np.diff(u) >= -1e-15).all()
    assert u[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(("n_bits", "n_tables"), SETTINGS)
def test_interpolated_logarithm_is_exact_to_a_thousandth(n_bits, n_tables):
    table = log_inclusion_table(n_bits, n_tables).astype(np.float64)
    # Cosines that attention meets; towards 1 the arc cosine has infinite slope, but there u is flat at 1.
    cosine = np.random.default_rng(0).uniform(-0.9, 0.999, 20_000)
    position = (cosine + 1) * (LOG_U_ENTRIES - 1) / 2
    entry = position.astype(int)
    looked_up = table[entry] + (position - entry) * (table[entry + 1] - table[entry])
    u = inclusion_prob(cosine, n_bits, n_tables)
    seen = u > 1e-6
    np.testing.assert_allclose(looked_up[seen], np.log(u[seen]), atol=1e-3)
