"""Tables that are built beside the reading: the same answers, and nothing left running."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from magicpig_cli.attention.builder import AtOnce, Beside, builder
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.session import Session
from magicpig_cli.attention.transfer import Staged
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.step import make_step
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.models.load import load_model

CPU = torch.device("cpu")
IDS = [3 + i * 7 % 250 for i in range(700)]


@pytest.fixture(name="loaded")
def loaded_model(model: Path) -> Any:
    return load_model(model, CPU).model


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions use what they would for a GPU: copies through buffers, tables in a thread of their own."""
    monkeypatch.setattr("magicpig_cli.attention.session.builder", lambda device: Beside())
    monkeypatch.setattr("magicpig_cli.attention.session.transfer", Staged)


def session_of(loaded: Any, capacity: int = 800) -> Session:
    return Session(Lsh(LshParams(6, 20), (0,)), len(decoder_layers(loaded)), capacity, CPU)


def read(loaded: Any, session: Session, ids: list[int]) -> torch.Tensor:
    events = prefill(loaded, session, ids, 256)
    while True:
        try:
            next(events)
        except StopIteration as end:
            logits: torch.Tensor = end.value
            return logits


@torch.inference_mode()
def logits_of(loaded: Any) -> torch.Tensor:
    """A document, a mark, a question, steps; back to the mark, another question, steps."""
    session = session_of(loaded)
    found = [read(loaded, session, IDS[:500])]
    mark = session.mark()
    for question in (IDS[500:540], IDS[100:190]):
        found.append(read(loaded, session, question))
        step = make_step(loaded, session)
        found += [step(token) for token in IDS[600:610]]
        session.rewind(mark)
    session.finish_tables()
    assert session.table_build_s > 0
    return torch.stack(found)


def test_a_cpu_builds_at_once() -> None:
    assert isinstance(builder(CPU), AtOnce)
    assert isinstance(builder(torch.device("cuda")), Beside)


def test_the_numbers_do_not_depend_on_who_builds(loaded: Any, request: pytest.FixtureRequest) -> None:
    expected = logits_of(loaded)
    request.getfixturevalue("like_a_gpu")
    found = logits_of(loaded)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@torch.inference_mode()
def test_the_next_layer_is_read_while_tables_are_built(
    loaded: Any, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build waits until the last layer has been read: a reading that waited for it would hang."""
    read_all = threading.Event()
    built_in: list[str] = []
    build = LshLayer.build

    def slow(tables: LshLayer, *arguments: Any) -> None:
        assert read_all.wait(60)
        built_in.append(threading.current_thread().name)
        build(tables, *arguments)

    monkeypatch.setattr(LshLayer, "build", slow)
    session = session_of(loaded)
    read(loaded, session, IDS[:300])
    assert built_in == []
    read_all.set()
    session.finish_tables()
    assert len(built_in) == 3
    assert all(name.startswith("tables") for name in built_in)


@torch.inference_mode()
def test_a_build_that_fails_is_told(loaded: Any, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once by whoever waits, and again by the step that lacks the tables."""

    def full(*arguments: Any) -> None:
        raise MemoryError("no room for tables")

    monkeypatch.setattr(LshLayer, "build", full)
    session = session_of(loaded)
    read(loaded, session, IDS[:300])
    with pytest.raises(MemoryError, match="no room"):
        session.finish_tables()
    session.finish_tables()
    with pytest.raises(MemoryError, match="no room"):
        make_step(loaded, session)(1)


def test_an_interrupted_reading_begins_no_more_tables(
    loaded: Any, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    built: list[int] = []
    build = LshLayer.build

    def slow(tables: LshLayer, *arguments: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        built.append(1)
        build(tables, *arguments)

    monkeypatch.setattr(LshLayer, "build", slow)
    session = session_of(loaded)
    with torch.inference_mode():
        events = prefill(loaded, session, IDS[:300], 256)
        for event in events:
            if event.layer == 3:
                break
        assert begun.wait(60)
        events.close()
        go_on.set()
        session.finish_tables()  # nothing is waited for any more
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("tables")]
        session._builder._thread.shutdown()  # type: ignore[attr-defined]
    assert len(threads) == 1
    assert built == [1]


def test_kernel_threads_are_as_many_as_the_readers() -> None:
    """numba counts per thread, so that a thread of one's own would take every core."""
    numbers: list[int] = []
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        beside = Beside()
        beside.submit(lambda: numbers.append(numba.get_num_threads()))
        beside.wait()
    finally:
        numba.set_num_threads(before)
    assert numbers == [1]


def test_builds_keep_their_order() -> None:
    for make in (AtOnce, Beside):
        order: list[int] = []
        building = make()

        def one(number: int, order: list[int] = order) -> Callable[[], None]:
            return lambda: order.append(number)

        for number in range(20):
            building.submit(one(number))
        building.wait()
        assert order == list(range(20))
