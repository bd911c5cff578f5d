"""Inner products with NF4 weights: by a load for each weight, and looked up in registers."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from command import ROOT

from magicpig_cli.models import nf4
from magicpig_cli.models.nf4 import NF4_BLOCK, NF4_CODE


def random_rows(n_out: int, n_in: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as `gemv.dot` has them, and their weights in float64."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (n_out, n_in // NF4_BLOCK, 2, NF4_BLOCK // 2), np.uint8)
    codes[0, 0] = np.arange(NF4_BLOCK, dtype=np.uint8).reshape(2, -1) % 16  # each of them
    scales = random.uniform(0.01, 2, (n_out, n_in // NF4_BLOCK)).astype(np.float32)
    pairs = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(n_out, -1)
    weights = NF4_CODE.astype(np.float64)[codes.reshape(n_out, -1, NF4_BLOCK)] * scales[:, :, None]
    return np.concatenate([pairs, scales.view(np.uint8)], axis=1), weights.reshape(n_out, n_in)


@pytest.mark.parametrize("n_in", [64, 128, 192, 576, 1536])
def test_products_are_those_of_the_weights(n_in: int) -> None:
    """Sums of n float32 products: their errors add up to less than n units of the sum of magnitudes."""
    rows, weights = random_rows(9, n_in, n_in)
    x = np.random.default_rng(1).normal(size=n_in).astype(np.float32)
    limit = n_in * np.finfo(np.float32).eps * (np.abs(weights) @ np.abs(x))
    for dot in (nf4._dot_by_loads, nf4.dot_nf4):
        found = np.array([dot(row, x) for row in rows])
        assert (np.abs(found - weights @ x) <= limit).all()


def test_one_weight_at_a_time_has_its_own_value() -> None:
    rows, weights = random_rows(1, 128, 5)
    for place in range(128):
        x = np.zeros(128, np.float32)
        x[place] = 1
        assert nf4.dot_nf4(rows[0], x) == np.float32(weights[0, place])


def test_a_cpu_without_the_instruction_is_served_by_loads() -> None:
    """Asked for in the way that numba offers: code for any CPU of this kind."""
    code = "from magicpig_cli.models import nf4; print(nf4.dot_nf4 is nf4._dot_by_loads)"
    env = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
