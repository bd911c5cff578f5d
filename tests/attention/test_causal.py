"""Prefill attention against a float64 softmax with an explicit mask."""

import pytest
import torch

from magicpig_cli.attention.causal import causal_attention
from magicpig_cli.attention.exact import attend_exactly
from magicpig_cli.attention.merge import apply_sink, merge_partials


def reference(query, keys, values, scale, softcap=0.0, window=None):
    """All in float64, logits of every pair."""
    group = query.shape[0] // keys.shape[0]
    k = keys.double().repeat_interleave(group, 0)
    v = values.double().repeat_interleave(group, 0)
    logits = query.double() @ k.transpose(1, 2) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    n, chunk = keys.shape[1], query.shape[1]
    position = torch.arange(n - chunk, n)[:, None]
    key = torch.arange(n)[None]
    hidden = (key > position) | (key <= position - (window or n))
    logits = logits.masked_fill(hidden, float("-inf"))
    return torch.softmax(logits, -1) @ v, torch.logsumexp(logits, -1)


def draw(heads, kv_heads, n, chunk, head_dim, seed=0):
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(heads, chunk, head_dim, generator=g) * 2
    keys = torch.randn(kv_heads, n, head_dim, generator=g)
    values = torch.randn(kv_heads, n, head_dim, generator=g)
    return query, keys, values


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize(("n", "chunk"), [(1, 1), (5, 5), (70, 1), (130, 33), (600, 512)])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_chunk_equals_reference(heads, kv_heads, n, chunk, head_dim):
    query, keys, values = draw(heads, kv_heads, n, chunk, head_dim)
    scale = head_dim**-0.5
    output, lse = causal_attention(query, keys, values, scale)
    expected, expected_lse = reference(query, keys, values, scale)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("window", [1, 3, 16, 64, 500])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_window_and_softcap(window, softcap):
    query, keys, values = draw(6, 2, 90, 37, 64, seed=1)
    output, lse = causal_attention(query, keys, values, 0.3, softcap, window)
    expected, expected_lse = reference(query, keys, values, 0.3, softcap, window)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-4)


def test_softcap_without_window_spans_more_rows_than_a_block():
    query, keys, values = draw(6, 2, 400, 300, 64, seed=2)
    output, _ = causal_attention(query, keys, values, 0.2, 8.0)
    expected, _ = reference(query, keys, values, 0.2, 8.0)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)


def test_merging_halves_equals_the_whole():
    query, keys, values = draw(4, 2, 50, 1, 64, seed=3)
    parts = [attend_exactly(query[:, 0], keys[:, s], values[:, s], 0.2) for s in (slice(0, 9), slice(9, 50))]
    output, lse = merge_partials(*parts)
    whole, whole_lse = attend_exactly(query[:, 0], keys, values, 0.2)
    torch.testing.assert_close(output, whole)
    torch.testing.assert_close(lse, whole_lse)


def test_merging_with_nothing_changes_nothing():
    output, lse = torch.randn(3, 8), torch.randn(3)
    nothing = torch.zeros(3, 8), torch.full((3,), float("-inf"))
    merged, merged_lse = merge_partials((output, lse), nothing)
    torch.testing.assert_close(merged, output)
    torch.testing.assert_close(merged_lse, lse)


def test_sink_is_one_more_key_without_a_value():
    query, keys, values = draw(4, 2, 20, 1, 64, seed=4)
    sink = torch.tensor([-2.0, 0.0, 1.0, 30.0])
    output, lse = attend_exactly(query[:, 0], keys, values, 0.2)
    got = apply_sink(output[:, None], lse[:, None], sink)[:, 0]
    logits = torch.einsum("hd,hnd->hn", query[:, 0], keys.repeat_interleave(2, 0)) * 0.2
    weights = torch.softmax(torch.cat([logits, sink[:, None]], 1), 1)[:, :-1]
    torch.testing.assert_close(got, torch.einsum("hn,hnd->hd", weights, values.repeat_interleave(2, 0)))
