"""The method itself: is the sample what theory says, and is the estimate unbiased?

Seeds are fixed and tolerances are derived from the number of draws: each is five standard
errors, so a correct implementation fails by chance with a probability below 1e-6.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from magicpig_cli.lsh.estimator import collision_prob, sampling_prob
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.reference import float_to_bf16


def _keys_at(cosine: np.ndarray, query: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Vectors of random length at given cosines to the query, (n, head_dim)."""
    direction = query / np.linalg.norm(query)
    noise = random.normal(size=(len(cosine), len(query)))
    noise -= np.outer(noise @ direction, direction)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    unit = np.outer(cosine, direction) + np.sqrt(1 - cosine**2)[:, None] * noise
    return unit * random.uniform(0.5, 2.0, (len(cosine), 1))


def _inclusion(cosine: np.ndarray, params: LshParams) -> np.ndarray:
    """u of keys at given cosines to the only query."""
    collision = collision_prob(np.arccos(cosine)[None], np.zeros((1, 1)), params.n_bits)
    return sampling_prob(collision, params)


def _rows(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    return float_to_bf16(np.stack([keys, values], axis=1))[None]


@pytest.mark.parametrize("params", [LshParams(8, 75), LshParams(10, 150), LshParams(8, 240, 8)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_sampled_share_matches_theory_at_known_angles(params, head_dim):
    random = np.random.default_rng(11)
    cosines = np.array([-0.2, 0.0, 0.2, 0.4, 0.6, 0.8])
    per_angle, draws = 500, 60
    query = random.normal(size=head_dim)
    # Mirrored pairs keep the mean key at zero, so the angles are what they were made to be.
    half = _keys_at(np.repeat(cosines, per_angle), query, random)
    keys = np.concatenate([half, -half])
    rows = _rows(keys, np.zeros_like(keys))
    counts = np.zeros((draws, len(cosines)))
    for draw in range(draws):
        layer = LshLayer(replace(params, seed=draw), LayerShape(1, 1, head_dim))
        layer.build(rows, 0, len(keys))
        tokens = layer.sampled_tokens(query[None].astype(np.float32))[0]
        counts[draw] = np.bincount(tokens[tokens < len(half)] // per_angle, minlength=len(cosines))
    share = counts.mean(axis=0) / per_angle
    expected = _inclusion(cosines, params)
    # Keys of one draw share hyperplanes; the spread between draws is what the mean's error follows, and where
    # hardly a key is ever sampled, that of independent keys.
    spread = np.maximum(counts.std(axis=0, ddof=1), np.sqrt(expected * (1 - expected) * per_angle))
    tolerance = 5 * spread / per_angle / np.sqrt(draws)
    # Planes of a block are orthogonal, not independent, which moves u by a few per cent of itself at
    # most; that bias of the weights must stay far below the noise of a single draw.
    assert (np.abs(share - expected) <= tolerance + 0.03 * expected).all(), (share, expected, tolerance)


def test_the_mean_weight_of_a_key_is_one():
    random = np.random.default_rng(5)
    head_dim, n_keys, draws = 64, 800, 150
    query = random.normal(size=head_dim).astype(np.float32)
    half = _keys_at(random.uniform(0.1, 0.7, n_keys), query, random)
    keys = np.concatenate([half, -half])
    rows = _rows(keys, np.zeros_like(keys))
    cosine = half @ query / np.linalg.norm(half, axis=1) / np.linalg.norm(query)
    u = _inclusion(cosine, LshParams(8, 75))
    weights = np.zeros((draws, n_keys))
    for draw in range(draws):
        layer = LshLayer(LshParams(8, 75, seed=1000 + draw), LayerShape(1, 1, head_dim))
        layer.build(rows, 0, len(keys))
        tokens = layer.sampled_tokens(query[None])[0]
        tokens = tokens[tokens < n_keys]
        weights[draw, tokens] = 1.0 / u[tokens]
    per_draw = weights.mean(axis=1)
    assert abs(per_draw.mean() - 1.0) <= 5 * per_draw.std(ddof=1) / np.sqrt(draws) + 0.03


def test_the_error_falls_as_tables_are_added_and_the_estimate_follows_it():
    random = np.random.default_rng(7)
    head_dim, n_keys, draws = 64, 3000, 24
    keys = random.normal(size=(n_keys, head_dim)) + random.normal(size=head_dim)
    values = random.normal(size=(n_keys, head_dim)) + 0.5
    rows = _rows(keys, values)
    query = (1.5 * random.normal(size=(1, head_dim))).astype(np.float32)
    shape = LayerShape(1, 1, head_dim)
    exact = LshLayer(LshParams(), shape).attend(query, rows, [(0, n_keys)], 0.125).out.copy()
    errors, estimates = [], []
    for n_tables in (40, 160, 640):
        squares = np.zeros((draws, 2))
        for draw in range(draws):
            layer = LshLayer(LshParams(8, n_tables, seed=draw), shape)
            layer.build(rows, 0, n_keys)
            result = layer.attend(query, rows, [], 0.125)
            squares[draw] = ((result.out - exact) ** 2).sum() / (exact**2).sum(), result.squared_error[0]
        errors.append(np.sqrt(squares[:, 0].mean()))
        estimates.append(np.sqrt(squares[:, 1].mean()))
    assert errors[0] > 1.3 * errors[1] > 1.3**2 * errors[2]
    ratios = np.array(estimates) / np.array(errors)
    assert ((ratios > 0.5) & (ratios < 2.0)).all(), ratios


def test_a_fixed_seed_repeats_exactly_and_another_does_not():
    random = np.random.default_rng(3)
    rows = _rows(random.normal(size=(2000, 64)), random.normal(size=(2000, 64)))
    query = random.normal(size=(1, 64)).astype(np.float32)

    def outcome(seed: int) -> bytes:
        layer = LshLayer(LshParams(8, 75, seed=seed), LayerShape(1, 1, 64))
        layer.build(rows, 0, 2000)
        return layer.attend(query, rows, [], 0.125).out.tobytes()

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)
