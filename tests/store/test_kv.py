"""Rows are what was written, rounded to bf16, however the store grows or slides."""

import pytest
import torch

from magicpig_cli.store.kv import LayerStore, WindowStore


def pieces(sizes, heads=2, head_dim=64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(heads, n, head_dim, generator=g), torch.randn(heads, n, head_dim, generator=g))
        for n in sizes
    ]


@pytest.mark.parametrize("capacity", [1, 7, 5000])
def test_reads_back_what_was_written_across_growth(capacity):
    store = LayerStore(2, 64, capacity)
    written = pieces([1, 5, 1, 1500, 2])
    for keys, values in written:
        store.write(store.n_tokens, keys, values)
    keys, values = store.read(0, store.n_tokens)
    assert torch.equal(keys, torch.cat([k for k, _ in written], 1).bfloat16())
    assert torch.equal(values, torch.cat([v for _, v in written], 1).bfloat16())
    assert store.nbytes == 2 * 1509 * 2 * 64 * 2


def test_rows_are_the_same_memory_as_the_tensor():
    store = LayerStore(1, 64, 3000)  # large enough for the huge-page path
    ((keys, values),) = pieces([3000], heads=1)
    store.write(0, keys, values)
    bits = torch.from_numpy(store.rows.copy()).view(torch.bfloat16)
    assert torch.equal(bits[0, :3000, 0], keys[0].bfloat16())
    assert torch.equal(bits[0, :3000, 1], values[0].bfloat16())


def test_writing_at_an_earlier_token_replaces_the_rest():
    store = LayerStore(2, 64, 16)
    (first, second) = pieces([10, 3])
    store.write(0, *first)
    store.write(4, *second)
    assert store.n_tokens == 7
    keys, _ = store.read(0, 7)
    assert torch.equal(keys, torch.cat([first[0][:, :4], second[0]], 1).bfloat16())


@pytest.mark.parametrize("sizes", [[100], [3, 4, 40, 1, 1], [1] * 50, [16, 16, 17], [15, 1, 33]])
def test_a_window_store_keeps_the_last_tokens(sizes):
    window = 16
    store = WindowStore(2, 64, window)
    written = pieces(sizes)
    for keys, values in written:
        store.write(store.n_tokens, keys, values)
    n = sum(sizes)
    assert store.n_tokens == n
    first = max(0, n - window)
    assert store.first_token <= first
    keys, values = store.read(first, n)
    assert torch.equal(keys, torch.cat([k for k, _ in written], 1)[:, first:].bfloat16())
    assert torch.equal(values, torch.cat([v for _, v in written], 1)[:, first:].bfloat16())
    assert store.capacity == 2 * window
