"""Rows for a GPU: page-locked where CUDA allows it, ordinary memory with one notice where it does not."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from small import lines, small_model

from magicpig_cli.attention import session
from magicpig_cli.documents import Document
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Notice, Token
from magicpig_cli.store import kv
from magicpig_cli.store.kv import LayerStore
from magicpig_cli.store.memory import RowMemory

GPU = torch.device("cuda", 0)
LARGE = (2, 5000, 2, 128)  # more than 4 MB
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA would lock it")


@without_cuda
def test_a_refusal_by_cuda_leaves_ordinary_memory_and_says_why() -> None:
    memory = RowMemory(GPU)
    memory.allocate((2, 10, 2, 16))  # too small to be worth it
    assert memory.refusal is None
    rows = memory.allocate(LARGE)
    assert (rows.shape, rows.dtype, rows.device.type) == (LARGE, torch.bfloat16, "cpu")
    assert memory.refusal is not None
    assert "could not be page-locked (" in memory.refusal
    assert "CUDA" in memory.refusal
    assert "\n" not in memory.refusal
    assert RowMemory(torch.device("cpu")).refusal is None


class Runtime:
    """CUDA's part, as torch.cuda.cudart() hands it out, with a status that a test chooses."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.calls: list[tuple[str, int]] = []

    def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> int:  # noqa: N802
        self.calls.append(("register", address))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", address))
        return 0

    def cudaGetErrorString(self, status: int) -> str:  # noqa: N802
        return f"out of memory ({status})"


def test_what_was_locked_is_unlocked_when_its_store_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda gpu: runtime.calls.append(("wait", gpu.index)))
    memory = RowMemory(GPU)
    store = LayerStore(2, 128, 5000, memory)
    address = store.rows.ctypes.data
    assert runtime.calls == [("register", address)]
    store.reserve(6000)
    gc.collect()
    # The old rows only after the new ones, and after copies that may still run.
    assert runtime.calls[1:] == [("register", store.rows.ctypes.data), ("wait", 0), ("unregister", address)]
    assert memory.refusal is None


def test_a_failed_registration_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, forgotten = Runtime(2), []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr("magicpig_cli.store.memory._forget_error", forgotten.append)
    memory = RowMemory(GPU)
    for _ in range(3):
        memory.allocate(LARGE)
    assert len(runtime.calls) == len(forgotten) == 1
    assert memory.refusal is not None
    assert memory.refusal.endswith("(out of memory (2))")


@pytest.mark.parametrize("n", [1, 63, 64, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_travel_in_one_piece_and_arrive_as_they_were(n: int, dtype: torch.dtype) -> None:
    """The way of a GPU's keys and values, on the CPU."""
    generator = torch.Generator().manual_seed(n)
    keys, values = (torch.randn(3, n, 32, generator=generator).to(dtype) for _ in range(2))
    store = LayerStore(3, 32, n + 9)
    store.write(0, keys[:, :1], values[:, :1])
    rows = store._tensor[:, 2 : 2 + n]
    kv._fetch(rows, keys, values)
    assert torch.equal(rows[:, :, 0], keys.bfloat16())
    assert torch.equal(rows[:, :, 1], values.bfloat16())
    back_keys, back_values = torch.empty_like(keys), torch.empty_like(values)
    kv._send(rows, back_keys, back_values)
    assert torch.equal(back_keys, keys.bfloat16().to(dtype))
    assert torch.equal(back_values, values.bfloat16().to(dtype))
    store.n_tokens = n + 2
    store.send(2, back_keys.zero_(), back_values.zero_())
    assert torch.equal(back_keys, keys.bfloat16().to(dtype))


@without_cuda
def test_an_answer_is_the_same_without_locked_memory_and_one_notice_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(tmp_path, num_hidden_layers=2, head_dim=128, num_key_value_heads=4)
    documents = [Document(source="a.txt", text=lines(60), encoding="utf-8")]

    def answer(engine: Engine) -> tuple[list[int], list[str]]:
        events: list[Any] = list(engine.generate(AskRequest(documents, "Which?", max_tokens=4)))
        told = [event.text for event in events if isinstance(event, Notice)]
        return [event.id for event in events if isinstance(event, Token)], told

    settings = EngineSettings(model=str(model), device="cpu")
    expected, told = answer(Engine.load(settings))
    assert told == []
    monkeypatch.setattr(session, "RowMemory", lambda device: RowMemory(GPU))
    engine = Engine.load(settings)
    found, told = answer(engine)
    assert found == expected
    assert len(told) == 1
    assert "page-locked" in told[0]
    engine.close()
    assert answer(engine) == (expected, [])
