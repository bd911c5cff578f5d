"""The inclusion probability, and the table that stands for its logarithm."""

from __future__ import annotations

from math import comb, fsum

import numpy as np
import pytest

from magicpig_cli.lsh.estimator import (
    DESIGN_EFFECT,
    LOG_U_OCTAVES,
    LOG_U_PER_OCTAVE,
    UNIFORM_STRIDE,
    collision_prob,
    inclusion_prob,
    log_sampling_table,
    sampling_prob,
    squared_error,
)
from magicpig_cli.lsh.params import LshParams

# L and M.
TABLES = [
    (2, 2),
    (30, 2),
    (75, 2),
    (150, 2),
    (300, 2),
    (1000, 2),
    (30, 1),
    (150, 3),
    (78, 4),
    (240, 8),
    (16, 16),
]
TABLES += [(400, 16)]


@pytest.mark.parametrize(("n_tables", "least"), TABLES)
def test_it_is_the_binomial_tail(n_tables, least):
    collide = np.concatenate([np.logspace(-9, -0.01, 40), [1.0]])
    for p, u in zip(collide.tolist(), inclusion_prob(collide, n_tables, least), strict=True):
        hits = range(least, min(n_tables, 200) + 1)
        tail = fsum(comb(n_tables, k) * p**k * (1 - p) ** (n_tables - k) for k in hits)
        if n_tables * p < 60:
            assert u == pytest.approx(tail, rel=1e-9, abs=1e-290)
        else:  # terms over 200 matter, and u is 1
            assert u == pytest.approx(1.0, rel=1e-9)


def test_two_collisions_are_the_closed_form_of_the_paper():
    collide = np.logspace(-4, -0.01, 40)
    for n_tables in (75, 150, 300):
        paper = 1 - (1 - collide) ** n_tables - n_tables * collide * (1 - collide) ** (n_tables - 1)
        np.testing.assert_allclose(inclusion_prob(collide, n_tables), paper, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("n_tables", "least"), TABLES)
def test_it_is_a_probability_and_grows_with_the_collision_probability(n_tables, least):
    u = inclusion_prob(np.linspace(0.0, 1.0, 5001), n_tables, least)
    assert u[0] == pytest.approx(0.0, abs=1e-25)
    assert u[-1] == pytest.approx(1.0)
    assert (np.diff(u) >= -1e-12).all()


@pytest.mark.parametrize(("n_tables", "least"), TABLES)
def test_interpolated_logarithm_is_exact_to_a_thousandth(n_tables, least):
    params = LshParams(10, n_tables, least)
    table = log_sampling_table(n_tables, least).astype(np.float64)
    collide = np.exp2(np.random.default_rng(0).uniform(-30, 0, 20_000)).astype(np.float32)
    exponent = np.floor(np.log2(collide)).astype(int)
    # An octave's entries are linear in the mantissa, so the fraction is the mantissa's.
    position = (exponent + LOG_U_OCTAVES + (collide / np.exp2(exponent) - 1.0)) * LOG_U_PER_OCTAVE
    entry = position.astype(int)
    looked_up = table[entry] + (position - entry) * (table[entry + 1] - table[entry])
    # The logarithm bends most where it leaves its floor for M log(P): chords over an octave's 64th part of P
    # then miss it by at most M^2 / 8 / 64^2.
    tolerance = max(1e-4, least**2 / 8 / LOG_U_PER_OCTAVE**2)
    np.testing.assert_allclose(looked_up, np.log(sampling_prob(collide, params)), atol=tolerance)


@pytest.mark.parametrize("least", [1, 2, 8])
def test_every_key_has_the_chance_of_the_evenly_spread_ones(least):
    u = sampling_prob(np.array([0.0, 1e-12, 0.5, 1.0]), LshParams(10, 150, least))
    np.testing.assert_allclose(u, [1 / UNIFORM_STRIDE] * 2 + [1.0] * 2, rtol=1e-6)


def test_one_query_collides_with_the_power_of_the_agreement():
    angles = np.linspace(0, np.pi, 50)[None]
    expected = (1 - angles[0] / np.pi) ** 10
    np.testing.assert_allclose(collision_prob(angles, np.zeros((1, 1)), 10), expected, atol=1e-12)


def test_equal_queries_collide_as_one_and_opposite_ones_as_two():
    angles = np.linspace(0.1, 3.0, 50)
    one = (1 - angles / np.pi) ** 6
    same = collision_prob(np.stack([angles, angles]), np.zeros((2, 2)), 6)
    np.testing.assert_allclose(same, one, atol=1e-12)
    opposite = collision_prob(np.stack([angles, np.pi - angles]), np.array([[0.0, np.pi], [np.pi, 0.0]]), 6)
    np.testing.assert_allclose(opposite, one + (angles / np.pi) ** 6, atol=1e-12)


@pytest.mark.parametrize(("n_queries", "likeness", "bias"), [(2, 0.7, 0.0), (3, 0.7, 0.05), (4, 0.5, 0.05)])
def test_collision_probability_of_a_group_matches_random_hyperplanes(n_queries, likeness, bias):
    random = np.random.default_rng(n_queries)
    dim, n_bits, n_keys, n_tables = 32, 5, 60, 20_000
    base = random.normal(size=dim)
    queries = np.sqrt(likeness) * base + np.sqrt(1 - likeness) * random.normal(size=(n_queries, dim))
    keys = random.normal(size=(n_keys, dim)) + random.uniform(0, 1, (n_keys, 1)) * base

    def angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        norms = np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
        return np.arccos(np.clip(a @ b.T / norms, -1, 1))

    hits = np.zeros(n_keys)
    for _ in range(20):
        planes = random.normal(size=(dim, n_tables // 20 * n_bits))
        key_signs = (keys @ planes > 0).reshape(n_keys, -1, n_bits)
        query_signs = (queries @ planes > 0).reshape(n_queries, -1, n_bits)
        same = (key_signs[:, None] == query_signs[None]).all(axis=3)
        hits += same.any(axis=1).sum(axis=1)
    expected = collision_prob(angles(queries, keys), angles(queries, queries), n_bits)
    deviation = np.sqrt(expected * (1 - expected) / n_tables)
    # Five standard errors, and for three and more queries the few per cent that independence is off.
    assert (np.abs(hits / n_tables - expected) <= 5 * deviation + bias * expected).all()


def test_keys_that_are_sampled_for_certain_err_by_nothing():
    ones = np.ones(5)
    assert squared_error(ones, ones / 5, ones) == 0.0
    assert squared_error(np.empty(0), np.empty(0), np.empty(0)) == 0.0


def test_independent_inclusions_err_as_the_estimate_says_on_average():
    """Over many samples of independent keys the mean estimate is the true mean square, times the factor."""
    random = np.random.default_rng(3)
    u, shares = random.uniform(0.05, 0.9, 200), random.uniform(0.5, 1.5, 200) / 200
    squares = random.uniform(1, 4, 200)
    draws = random.random((4000, 200)) < u
    estimates = [squared_error(u[drawn], (shares / u)[drawn], squares[drawn]) for drawn in draws]
    true = ((1 - u) / u * shares**2 * squares).sum()
    tolerance = 5 * np.std(estimates) / np.sqrt(len(draws))
    assert np.mean(estimates) == pytest.approx(DESIGN_EFFECT * true, abs=tolerance)
