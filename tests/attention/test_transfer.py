"""The device's side of a step, on the CPU device through the same interface: a GPU need not be here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from magicpig_cli.attention.base import LayerContext, StepStats
from magicpig_cli.attention.dense import DeviceDense, HostDense
from magicpig_cli.attention.transfer import InPlace, Staged, transfer
from magicpig_cli.attention.window import DeviceWindow, SlidingWindow
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.store.kv import LayerStore, WindowStore

SHAPE = LayerShape(6, 2, 32)
CPU = torch.device("cpu")


def test_a_cpu_needs_no_copies() -> None:
    way = transfer(CPU, SHAPE)
    assert isinstance(way, InPlace)
    query = torch.randn(6, 32)
    assert np.shares_memory(way.to_host(query), query.numpy())
    out, lse = np.ones((6, 32), np.float32), np.ones(6, np.float32)
    back, back_lse = way.to_device(out, lse, query)
    assert np.shares_memory(back.numpy(), out)
    assert np.shares_memory(back_lse.numpy(), lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_staged_copies_keep_values_and_dtypes(dtype: torch.dtype) -> None:
    way = Staged(CPU, SHAPE)
    for seed in range(2):  # buffers are used again
        query = torch.randn(6, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
        there = way.to_host(query)
        assert there.dtype == np.float32
        assert there.flags.c_contiguous
        np.testing.assert_array_equal(there, query.float().numpy())
        out, lse = there * 2, there[:, 0].copy()
        back, back_lse = way.to_device(out, lse, query)
        assert (back.dtype, back_lse.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(back, (query.float() * 2).to(dtype))
        np.testing.assert_array_equal(back_lse.numpy(), lse)
        out[:] = 0  # the kernel's array is its own again
        assert back.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_a_step_needs_travels_together(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query that came along is not sent again; another is, even into the same buffers."""
    way = Staged(CPU, SHAPE)
    sent: list[int] = []
    send = way._send
    monkeypatch.setattr(way, "_send", lambda *parts: (sent.append(len(parts)), send(*parts)))
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        query, other = (torch.randn(6, 32, generator=generator).to(dtype) for _ in range(2))
        key, value = (torch.randn(2, 1, 32, generator=generator).to(dtype) for _ in range(2))
        sent.clear()
        host_key, host_value = way.carry(query, key, value)
        np.testing.assert_array_equal(way.to_host(query), query.float().numpy())
        assert sent == [3]
        torch.testing.assert_close(host_key, key.float(), rtol=0, atol=0)
        torch.testing.assert_close(host_value, value.float(), rtol=0, atol=0)
        np.testing.assert_array_equal(way.to_host(other), other.float().numpy())
        np.testing.assert_array_equal(way.to_host(query), query.float().numpy())
        assert sent == [3, 1, 1]


def test_keys_kept_on_a_device_follow_the_store() -> None:
    """Prefill, steps, growth beyond the capacity, coming back to a mark: as the host attends."""
    generator = torch.Generator().manual_seed(3)

    def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, n, 32, generator=generator), torch.randn(2, n, 32, generator=generator)

    store = LayerStore(2, 32, capacity=50)
    context = LayerContext(0, 1, SHAPE, 32**-0.5, 0.0, store, StepStats(), CPU, InPlace())
    device, host = DeviceDense(context), HostDense(context)

    def compare() -> None:
        query = torch.randn(6, 32, generator=generator)
        found, expected = device.attend(query), host.attend(query)
        torch.testing.assert_close(found[0], expected[0], atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(found[1], expected[1], atol=2e-3, rtol=2e-3)

    store.write(0, *rows(48))
    device.prefilled(torch.empty(0))
    host.prefilled(torch.empty(0))
    compare()
    # Two KV heads, keys and values, 32 numbers of two bytes, for all that the store has room for.
    assert device.device_kv_bytes == 2 * 2 * 32 * 2 * store.capacity
    assert host.device_kv_bytes == 0
    mark, stored = device.mark(), store.mark()
    for token in range(48, 60):
        store.write(token, *rows(1))
        compare()
    store.rewind(stored)
    device.rewind(mark)
    store.write(48, *rows(3))
    compare()


@pytest.mark.parametrize("first", [5, 16, 40, 100])
def test_a_window_kept_on_a_device_follows_the_store(first: int) -> None:
    """Shorter and longer than the window, over many of its lengths, further prefills, and back to a mark."""
    generator = torch.Generator().manual_seed(first)
    window = 16
    store = WindowStore(2, 32, window)
    context = LayerContext(0, 1, SHAPE, 32**-0.5, 0.0, store, StepStats(), CPU, InPlace())
    device, host = DeviceWindow(context, window), SlidingWindow(context, window)

    def write(n: int) -> None:
        keys, values = (torch.randn(2, n, 32, generator=generator) for _ in range(2))
        store.write(store.n_tokens, keys, values)

    def compare() -> None:
        query = torch.randn(6, 32, generator=generator)
        found, expected = device.attend(query), host.attend(query)
        torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-5)

    write(first)
    device.prefilled(torch.empty(0))
    compare()
    mark, stored = device.mark(), store.mark()
    for n in [1] * 50 + [7, 1, 33, 1, 1]:
        write(n)
        compare()
    store.rewind(stored)
    device.rewind(mark)
    compare()
    write(3)
    compare()
