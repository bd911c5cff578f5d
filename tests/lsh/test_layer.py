"""The kernels against the float64 reference, at ordinary and odd shapes."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.reference import attend_sampled, bf16_to_float, collide_often, hash_codes, uniform_keys

SHAPES = [
    pytest.param(LayerShape(9, 3, 64), 900, LshParams(8, 75), id="smollm2"),
    pytest.param(LayerShape(8, 2, 128), 700, LshParams(10, 150), id="gqa4-d128"),
    pytest.param(LayerShape(8, 1, 96), 300, LshParams(4, 30), id="gqa8-d96"),
    pytest.param(LayerShape(3, 3, 80), 500, LshParams(8, 75), id="no-gqa-d80"),
    pytest.param(LayerShape(4, 2, 256), 333, LshParams(6, 40), id="d256"),
    pytest.param(LayerShape(20, 1, 64), 400, LshParams(8, 75), id="group-larger-than-a-bundle"),
    pytest.param(LayerShape(2, 1, 64), 200, LshParams(16, 300), id="most-bits"),
    pytest.param(LayerShape(2, 1, 64), 200, LshParams(1, 2), id="fewest-tables"),
    pytest.param(LayerShape(2, 1, 64), 2, LshParams(8, 75), id="two-keys"),
    pytest.param(LayerShape(9, 3, 64), 900, LshParams(8, 240, 8), id="eight-collisions"),
    pytest.param(LayerShape(8, 2, 128), 700, LshParams(10, 150, 3), id="three-collisions"),
    pytest.param(LayerShape(2, 1, 64), 300, LshParams(3, 300, 16), id="most-collisions"),
    pytest.param(LayerShape(1, 1, 64), 301, LshParams(2, 255, 16), id="one-head-in-eight-splits"),
    pytest.param(LayerShape(4, 1, 64), 300, LshParams(4, 12, 1), id="one-collision"),
]


def _ranges(n_tokens: int) -> tuple[int, int]:
    """The tables' range: sinks before it, a recent window behind it where there is room."""
    start = min(4, n_tokens - 1)
    return start, max(start + 1, n_tokens - 64)


@pytest.mark.parametrize(("shape", "n_tokens", "params"), SHAPES)
def test_the_sample_is_the_keys_that_collide_often_enough(shape, n_tokens, params, make_layer):
    rows, query = make_layer(shape, n_tokens)
    start, stop = _ranges(n_tokens)
    layer = LshLayer(params, shape)
    layer.build(rows, start, stop)
    for group, tokens in enumerate(layer.sampled_tokens(query)):
        heads = slice(
            shape.n_q_heads * group // layer.n_groups, shape.n_q_heads * (group + 1) // layer.n_groups
        )
        kv_head = heads.start // shape.group_size
        centred = bf16_to_float(rows[kv_head, start:stop, 0]) - layer.mean[kv_head]
        key_codes = hash_codes(centred, layer.plan, kv_head)
        query_codes = hash_codes(query[heads], layer.plan, kv_head)
        # float32 may round a projection across zero: at most a key in a thousand then differs.
        found = collide_often(key_codes, query_codes, params.min_collisions)
        expected = np.union1d(found, uniform_keys(query_codes, stop - start)) + start
        assert len(np.setxor1d(tokens, expected)) <= 1 + n_tokens // 1000


@pytest.mark.parametrize(("shape", "n_tokens", "params"), SHAPES)
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_attention_equals_the_reference_on_the_same_sample(shape, n_tokens, params, softcap, make_layer):
    rows, query = make_layer(shape, n_tokens)
    start, stop = _ranges(n_tokens)
    exact = [(0, start), (stop, n_tokens)]
    layer = LshLayer(params, shape)
    layer.build(rows, start, stop)
    scale = shape.head_dim**-0.5
    result = layer.attend(query, rows, exact, scale, softcap)
    samples = layer.sampled_tokens(query)
    out, lse, error = attend_sampled(query, rows, exact, samples, layer.mean, params, scale, softcap)
    sizes = np.repeat([len(tokens) for tokens in samples], shape.n_q_heads // len(samples))
    if shape.n_q_heads % len(samples) == 0:
        assert result.n_sampled.tolist() == sizes.tolist()
    # The interpolated log(u) errs by at most M times 3.1e-5 (test_estimator); float32 angles move u, towards
    # cosine 1 most: by K * L * 1e-7 / sqrt(1 - cosine), below 1e-3 here.
    np.testing.assert_allclose(result.lse, lse, atol=2e-3)
    np.testing.assert_allclose(result.out, out, atol=3e-3 * max(1.0, np.abs(out).max()))
    # Light terms of the error estimate are subsampled (tile._HEAVY); heavy ones are all there.
    np.testing.assert_allclose(np.sqrt(result.squared_error), np.sqrt(error), rtol=0.35, atol=5e-3)


@pytest.mark.parametrize(("shape", "n_tokens", "params"), SHAPES)
def test_exact_ranges_alone_are_dense_attention(shape, n_tokens, params, make_layer):
    rows, query = make_layer(shape, n_tokens)
    scale = shape.head_dim**-0.5
    result = LshLayer(params, shape).attend(query, rows, [(0, n_tokens)], scale)
    nothing = [np.empty(0, np.int64)] * shape.n_kv_heads
    mean = np.zeros((shape.n_kv_heads, shape.head_dim))
    out, lse, _ = attend_sampled(query, rows, [(0, n_tokens)], nothing, mean, LshParams(), scale)
    # float32 sums of up to 900 terms: 900 * 2^-24 relative, on values of order 1.
    np.testing.assert_allclose(result.out, out, atol=1e-5)
    np.testing.assert_allclose(result.lse, lse, atol=1e-5)
    assert not result.squared_error.any()


def test_certain_inclusion_equals_dense_attention(make_layer):
    # One bit and 64 tables: a key at 80 degrees misses twice with a chance below 1e-14.
    shape = LayerShape(6, 2, 64)
    rows, query = make_layer(shape, 1500)
    layer = LshLayer(LshParams(1, 64), shape)
    layer.build(rows, 4, 1436)
    scale = 64**-0.5
    sampled = layer.attend(query, rows, [(0, 4), (1436, 1500)], scale)
    assert (sampled.n_sampled == 1432).all()
    out, lse = sampled.out.copy(), sampled.lse.copy()
    dense = LshLayer(LshParams(), shape).attend(query, rows, [(0, 1500)], scale)
    np.testing.assert_allclose(out, dense.out, atol=1e-5)
    np.testing.assert_allclose(lse, dense.lse, atol=1e-5)


def test_no_key_at_all_counts_for_nothing():
    shape = LayerShape(4, 2, 64)
    rows = np.zeros((2, 8, 2, 64), np.uint16)
    result = LshLayer(LshParams(), shape).attend(np.ones((4, 64), np.float32), rows, [(0, 0)], 0.125)
    assert not result.out.any()
    assert np.isneginf(result.lse).all()


def test_keys_inserted_later_are_found_as_if_built_at_once(make_layer):
    shape, params = LayerShape(4, 2, 64), LshParams(6, 40)
    rows, query = make_layer(shape, 1200)
    grown, whole = LshLayer(params, shape), LshLayer(params, shape)
    grown.build(rows, 4, 500)
    for start in range(500, 1200, 70):
        grown.insert(rows, start, min(1200, start + 70))
    # The centre stays where the first build put it; give the other the same.
    whole.build(rows, 4, 500)
    whole.insert(rows, 500, 1200)
    for a, b in zip(grown.sampled_tokens(query), whole.sampled_tokens(query), strict=True):
        np.testing.assert_array_equal(a, b)
    result, other = grown.attend(query, rows, [(0, 4)], 0.125), whole.attend(query, rows, [(0, 4)], 0.125)
    np.testing.assert_array_equal(result.out, other.out)
    assert sum(len(tokens) for tokens in grown.sampled_tokens(query)) > 0


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare")
def test_any_number_of_threads_gives_the_same_bits(make_layer):
    shape = LayerShape(9, 3, 64)
    rows, query = make_layer(shape, 1500)
    layer = LshLayer(LshParams(8, 75, seed=5), shape)
    before = numba.get_num_threads()
    outcomes = []
    try:
        for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(threads)
            layer.build(rows, 4, 1436)
            result = layer.attend(query, rows, [(0, 4), (1436, 1500)], 0.125)
            outcomes.append((result.out.tobytes(), result.lse.tobytes(), result.n_sampled.tobytes()))
    finally:
        numba.set_num_threads(before)
    assert len(set(outcomes)) == 1


def test_more_keys_than_a_block_holds():
    shape, params = LayerShape(1, 1, 64), LshParams(10, 20)
    random = np.random.default_rng(1)
    n = 66_000
    rows = np.zeros((1, n, 2, 64), np.uint16)
    rows[0, :, 0] = random.integers(0x3E00, 0x3F80, (n, 64)) | (random.integers(0, 2, (n, 64)) << 15)
    layer = LshLayer(params, shape)
    layer.build(rows, 0, n)
    for token in (0, 65_534, 65_535, n - 1):
        query = (bf16_to_float(rows[0, token : token + 1, 0]) - layer.mean[0]).astype(np.float32)
        assert token in layer.sampled_tokens(query)[0]
    assert layer.nbytes == 2 * 20 * n + 2 * 2 * 20 * 1025


def test_building_from_nothing_and_inserting_out_of_order_are_errors(make_layer):
    shape = LayerShape(2, 1, 64)
    rows, _ = make_layer(shape, 20)
    layer = LshLayer(LshParams(), shape)
    with pytest.raises(ValueError, match="no keys"):
        layer.build(rows, 5, 5)
    with pytest.raises(ValueError, match="cannot be added"):
        layer.insert(rows, 0, 5)
