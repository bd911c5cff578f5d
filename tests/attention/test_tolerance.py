"""A tolerance has more keys read where a step errs too much, and only there; what it cost is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from magicpig_cli.attention.base import LayerContext, StepStats
from magicpig_cli.attention.exact import attend_exactly
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.registry import WITH_TOLERANCE, MethodOptions, build_method
from magicpig_cli.attention.transfer import InPlace
from magicpig_cli.attention.vattention import VAttention
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.store.kv import LayerStore

SHAPES = [LayerShape(6, 3, 32), LayerShape(4, 4, 16), LayerShape(20, 2, 24)]
# One collision is the least: what errs too much is attended exactly. From eight there are many ways down.
PARAMS = LshParams(8, 60, 1)
OFTEN = LshParams(8, 240, 8)
N_TOKENS = 700
SCALE = 0.3


def context_of(shape: LayerShape) -> LayerContext:
    store = LayerStore(shape.n_kv_heads, shape.head_dim, N_TOKENS)
    generator = torch.Generator().manual_seed(1)
    size = (shape.n_kv_heads, N_TOKENS, shape.head_dim)
    store.write(0, *(torch.randn(size, generator=generator) for _ in range(2)))
    return LayerContext(1, 4, shape, SCALE, 0.0, store, StepStats(), torch.device("cpu"), InPlace())


class Step:
    """One step at a tolerance, over keys that are always the same."""

    def __init__(self, shape: LayerShape, tolerance: float | None, params: LshParams = PARAMS) -> None:
        self.context = context_of(shape)
        attention = Lsh(params, (), tolerance=tolerance).layer(self.context)
        attention.prefilled(torch.empty(shape.n_q_heads, 0, shape.head_dim))
        generator = torch.Generator().manual_seed(2)
        self.query = torch.randn(shape.n_q_heads, shape.head_dim, generator=generator)
        output, lse = attention.attend(self.query)
        self.output, self.lse = output.clone(), lse.clone()
        estimated = attention.estimated_error
        assert estimated is not None
        self.estimated = estimated.clone()
        self.weighed = attention.weights(self.query, lse)

    def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.context.store.read(0, N_TOKENS)
        return attend_exactly(self.query, keys.float(), values.float(), SCALE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_none_is_exact_within_a_huge_tolerance(shape: LayerShape) -> None:
    within, plain = Step(shape, 1e9), Step(shape, None)
    torch.testing.assert_close(within.output, plain.output, rtol=0, atol=0)
    torch.testing.assert_close(within.lse, plain.lse, rtol=0, atol=0)
    torch.testing.assert_close(within.estimated, plain.estimated, rtol=0, atol=0)
    stats, plain_stats = within.context.stats, plain.context.stats
    assert (stats.heads_judged, stats.heads_exact) == (shape.n_q_heads, 0)
    assert (plain_stats.heads_judged, plain_stats.heads_exact) == (0, 0)
    assert stats.keys_touched == plain_stats.keys_touched > 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_are_exact_within_a_tiny_tolerance(shape: LayerShape) -> None:
    within, plain = Step(shape, 1e-9), Step(shape, None)
    assert (plain.estimated > 0).all()
    expected, lse = within.exact()
    # float32 sums of 700 terms: 700 * 2^-24 relative, on values of order 1.
    torch.testing.assert_close(within.output, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(within.lse, lse, rtol=0, atol=1e-4)
    assert not within.estimated.any()
    stats = within.context.stats
    assert (stats.heads_judged, stats.heads_exact) == (shape.n_q_heads, shape.n_q_heads)
    # The sample was read, and then everything: both count.
    assert stats.keys_touched == stats.keys_offered + plain.context.stats.keys_touched


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_larger_sample_suffices_where_it_can(shape: LayerShape) -> None:
    plain = Step(shape, None, OFTEN)
    tolerance = 0.7 * float(plain.estimated.max())
    within = Step(shape, tolerance, OFTEN)
    assert (within.estimated <= tolerance).all()
    stats, offered = within.context.stats, within.context.stats.keys_offered
    assert stats.heads_resampled > 0
    assert stats.heads_exact == 0
    # More than the sample was read, but less than a second reading of everything.
    read_again = stats.keys_touched - plain.context.stats.keys_touched
    assert 0 < read_again < offered * stats.heads_resampled / shape.n_q_heads
    expected, _ = within.exact()
    true, before = ((step.output - expected).norm() for step in (within, plain))
    assert true < before
    again = Step(shape, tolerance, OFTEN)
    torch.testing.assert_close(again.output, within.output, rtol=0, atol=0)


@pytest.mark.parametrize("least", [1, 2, 3, 5])
def test_attending_again_is_attending_with_so_few_collisions(least: int) -> None:
    """The counts of one retrieval serve every M: the sample is that of tables made for it."""
    shape = SHAPES[2]
    context = context_of(shape)
    query = torch.randn(shape.n_q_heads, shape.head_dim, generator=torch.Generator().manual_seed(2)).numpy()
    exact = [(0, 4), (600, N_TOKENS)]
    many, few = LshLayer(OFTEN, shape), LshLayer(replace(OFTEN, min_collisions=least), shape)
    results = []
    for tables in (many, few):
        tables.build(context.store.rows, 4, 600)
        results.append(tables.attend(query, context.store.rows, exact, SCALE))
    for kv_head in range(shape.n_kv_heads):
        many.attend_again(kv_head, least, query, context.store.rows, exact, SCALE)
    again, expected = results
    np.testing.assert_array_equal(again.n_sampled, expected.n_sampled)
    np.testing.assert_array_equal(again.out, expected.out)
    np.testing.assert_array_equal(again.lse, expected.lse)
    np.testing.assert_array_equal(again.squared_error, expected.squared_error)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_groups_that_err_too_much_are_exact(shape: LayerShape) -> None:
    plain = Step(shape, None)
    worst = plain.estimated.reshape(shape.n_kv_heads, -1).amax(dim=1)
    tolerance = float(worst.sort().values[-2:].mean())  # between the worst and the next
    within = Step(shape, tolerance)
    exact = (worst > tolerance).repeat_interleave(shape.group_size)
    assert 0 < int(exact.sum()) < shape.n_q_heads
    torch.testing.assert_close(within.output[~exact], plain.output[~exact], rtol=0, atol=0)
    torch.testing.assert_close(within.output[exact], within.exact()[0][exact], rtol=0, atol=1e-4)
    assert (within.estimated <= tolerance).all()
    stats = within.context.stats
    assert stats.heads_exact == int(exact.sum())
    n_keys = stats.keys_offered // shape.n_q_heads
    assert stats.keys_touched == plain.context.stats.keys_touched + stats.heads_exact * n_keys


@pytest.mark.parametrize("params", [PARAMS, OFTEN], ids=["exactly", "resampled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_are_those_of_what_was_attended(shape: LayerShape, params: LshParams) -> None:
    """Whoever asks where a corrected step looked is told of the keys that were read in the end."""
    plain = Step(shape, None, params)
    worst = plain.estimated.reshape(shape.n_kv_heads, -1).amax(dim=1)
    within = Step(shape, float(worst.sort().values[-2:].mean()), params)
    values = within.context.store.read(0, N_TOKENS)[1].float().numpy()
    outputs = []
    for weighed in within.weighed:
        kv_head = sum(len(rows) for rows in outputs) // shape.group_size
        outputs.append(weighed.weights @ values[kv_head, weighed.tokens])
    sizes, before = ([len(weighed.tokens) for weighed in step.weighed] for step in (within, plain))
    assert min(sizes) < N_TOKENS
    if params is PARAMS:
        assert max(sizes) == N_TOKENS
    else:
        assert max(before) < max(sizes) < N_TOKENS
    # Interpolated log(u) in the kernel: see tests/lsh/test_layer.py.
    np.testing.assert_allclose(np.concatenate(outputs), within.output, atol=5e-3)


def test_methods_that_can_keep_to_a_tolerance_get_it() -> None:
    lsh = build_method("lsh", MethodOptions(5000, (0,), tolerance=0.1))
    assert isinstance(lsh, Lsh)
    assert lsh.tolerance == 0.1
    rival = build_method("vattention", MethodOptions(5000, (0,), tolerance=0.1))
    assert isinstance(rival, VAttention)
    assert rival.epsilon == 0.1
    assert WITH_TOLERANCE == ("lsh", "vattention")
    for name in ("dense", "quest", "lsh-published"):
        with pytest.raises(UsageError, match="takes no tolerance"):
            build_method(name, MethodOptions(5000, (0,), tolerance=0.1))
    with pytest.raises(UsageError, match="cannot keep to a tolerance"):
        build_method("vattention", MethodOptions(5000, (0,), budget=0.1, tolerance=0.1))
