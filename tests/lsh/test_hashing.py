"""Hash codes: what the kernel computes, and that its hyperplanes behave like random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magicpig_cli.lsh.hashing import draw_plan, hadamard
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.reference import hyperplanes


@pytest.mark.parametrize("dim", [8, 16, 64, 128, 256])
def test_hadamard_is_the_sylvester_matrix(dim):
    matrix = np.ones((1, 1))
    while matrix.shape[0] < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    tile = np.random.default_rng(0).normal(size=(dim, 5)).astype(np.float32)
    expected = matrix @ tile
    hadamard(tile)
    np.testing.assert_allclose(tile, expected, atol=1e-3)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_bits=st.integers(1, 16),
    n_tables=st.integers(2, 60),
    head_dim=st.sampled_from([1, 5, 64, 80, 96, 128]),
)
@settings(max_examples=40, deadline=None)
def test_planes_are_many_enough_of_equal_length_and_repeat_with_the_seed(seed, n_bits, n_tables, head_dim):
    params, shape = LshParams(n_bits, n_tables, seed=seed), LayerShape(2, 1, head_dim)
    plan = draw_plan(params, shape)
    planes = hyperplanes(plan, 0)
    assert planes.shape == (n_tables, n_bits, plan.padded_dim)
    lengths = np.linalg.norm(planes, axis=2)
    np.testing.assert_allclose(lengths, lengths[0, 0])
    np.testing.assert_array_equal(plan.signs, draw_plan(params, shape).signs)


def test_the_bits_of_a_table_come_from_different_blocks():
    # Planes of one block are orthogonal; a table that held two of them would collide too rarely.
    plan = draw_plan(LshParams(10, 150), LayerShape(1, 1, 64))
    planes = hyperplanes(plan, 0) / np.linalg.norm(hyperplanes(plan, 0)[0, 0])
    for table in planes:
        products = np.abs(table @ table.T)[np.triu_indices(10, 1)]
        # Of independent planes a product is about normal with deviation 1/8; exact zeros betray a block.
        assert (products > 1e-9).mean() > 0.8


def test_other_seeds_and_heads_give_other_planes():
    shape = LayerShape(2, 2, 64)
    plan, other = draw_plan(LshParams(seed=1), shape), draw_plan(LshParams(seed=2), shape)
    assert (plan.signs[0] != plan.signs[1]).any()
    assert (plan.signs != other.signs).any()
