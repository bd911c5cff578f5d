"""The yardsticks do the work that they stand for: the sums of rows, and exact attention."""

from __future__ import annotations

import numpy as np
import pytest

from magicpig_cli.bench.kernel import GatherFloor, fastest_dense
from magicpig_cli.bench.keys import KeySet, extend_rows, generate_keys
from magicpig_cli.bench.yardsticks import DENSE_FORMS, DenseContender, read_everything
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.reference import bf16_to_float

SHAPE = LayerShape(8, 2, 64)
N_KEYS = 3000


@pytest.fixture(scope="module")
def keys() -> KeySet:
    return generate_keys(SHAPE, N_KEYS, 2, 0)


def exact(keys: KeySet, step: int) -> np.ndarray:
    """Attention of one step in float64."""
    rows, query = bf16_to_float(keys.rows), keys.queries[step].astype(np.float64)
    outs = []
    for head in range(SHAPE.n_q_heads):
        kv = rows[head // SHAPE.group_size]
        logits = kv[:, 0] @ query[head] / SHAPE.head_dim**0.5
        weights = np.exp(logits - logits.max())
        outs.append(weights @ kv[:, 1] / weights.sum())
    return np.stack(outs)


@pytest.mark.parametrize("form", DENSE_FORMS)
def test_every_form_of_dense_attention_is_exact(keys: KeySet, form: str) -> None:
    dense = DenseContender(keys.rows, SHAPE.head_dim**-0.5, form)
    truth = exact(keys, 1)
    error = np.linalg.norm(dense(keys.queries[1]) - truth) / np.linalg.norm(truth)
    assert error < (0.02 if form.endswith("bfloat16") else 1e-5)


def test_the_fastest_form_attends_to_all_keys(keys: KeySet) -> None:
    dense = fastest_dense(keys, SHAPE.head_dim**-0.5)
    assert dense.form in DENSE_FORMS
    truth = exact(keys, 0)
    assert np.linalg.norm(dense(keys.queries[0]) - truth) / np.linalg.norm(truth) < 0.02


def test_the_gather_floor_reads_what_the_step_reads(keys: KeySet) -> None:
    layer = LshLayer(LshParams(8, 60), SHAPE)
    ranges = [(0, 4), (N_KEYS - 64, N_KEYS)]
    layer.build(keys.rows, 4, N_KEYS - 64)
    floor = GatherFloor(layer, keys.queries[0], keys.rows, ranges)
    floor()
    words = keys.rows.reshape(2, N_KEYS, -1).view(np.uint64)
    samples = layer.sampled_tokens(keys.queries[0])
    per_kv_head = len(samples) // SHAPE.n_kv_heads
    expected, n_rows = 0, 0
    certain = [*range(4), *range(N_KEYS - 64, N_KEYS)]
    for head in range(SHAPE.n_kv_heads):
        own = set(np.concatenate(samples[head * per_kv_head : (head + 1) * per_kv_head]).tolist())
        tokens = sorted(own | set(certain))
        expected += int(words[head, tokens].sum(dtype=np.uint64))
        n_rows += len(tokens)
    assert floor._sums.sum(dtype=np.uint64) == np.uint64(expected % 2**64)
    assert floor.n_bytes == n_rows * 2 * SHAPE.head_dim * 2
    assert 100 < n_rows < 2 * N_KEYS


def test_reading_everything_reads_everything(keys: KeySet) -> None:
    words = keys.rows.reshape(-1).view(np.uint64)
    sums = np.zeros(7, np.uint64)
    read_everything(words, 7, sums)
    assert sums.sum(dtype=np.uint64) == words.sum(dtype=np.uint64)


def test_extended_rows_are_sampled_as_much_as_the_real_ones(keys: KeySet) -> None:
    longer = extend_rows(keys.rows, 4 * N_KEYS, 1)
    assert np.array_equal(longer[:, :N_KEYS], keys.rows)
    shares = []
    for rows in (keys.rows, longer):
        layer = LshLayer(LshParams(8, 60), SHAPE)
        layer.build(rows, 0, rows.shape[1])
        sampled = [len(tokens) for query in keys.queries for tokens in layer.sampled_tokens(query)]
        shares.append(np.mean(sampled) / rows.shape[1])
    assert shares[1] == pytest.approx(shares[0], rel=0.2)
