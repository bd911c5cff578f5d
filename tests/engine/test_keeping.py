"""Readings that end before their end: interrupted, killed, on a full disk, beside another process."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from readings import TEXT, Run, ask, index_folder, request
from small import read_and_keep

from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.events import Indexed, PrefillProgress
from magicpig_cli.store.index_folder import IndexFolder


def stop_after(engine: Engine, n_progress: int, how: Callable[[Any], None]) -> int:
    """Read until so many chunks of layers are done, then stop; gives how many there were."""
    events = engine.generate(request(TEXT))
    seen = 0
    for event in events:
        seen += isinstance(event, PrefillProgress)
        if seen == n_progress:
            how(events)
            return seen
    return seen


def ctrl_c(events: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)


def closed(events: Any) -> None:
    events.close()


@pytest.mark.parametrize(("how", "moments"), [(ctrl_c, range(1, 17)), (closed, (1, 8, 14))])
def test_an_interrupted_reading_goes_on_where_it_was(
    how: Callable[[Any], None], moments: Sequence[int], load: Callable[..., Engine], cache: Path
) -> None:
    """At every chunk of every layer: the chunks of document and question that follow are just the rest."""
    anew = ask(load(cache=False), TEXT)
    n_chunks = len(anew.of(PrefillProgress))
    assert n_chunks - 4 == 4 * 4  # the question takes one chunk of each of four layers
    engine = load()
    for n in moments:
        stop_after(engine, n, how)
        engine.close()
        assert not [path for path in cache.iterdir() if not path.name.startswith(".")]
        run = ask(engine, TEXT)
        assert run.answer == anew.answer
        assert any("interrupted" in notice for notice in run.notices)
        # The layer in which it stopped is told of from its first chunk on.
        assert len(run.of(PrefillProgress)) == n_chunks - n // 4 * 4
        assert run.of(PrefillProgress)[0].fraction > n / n_chunks / 3
        engine.close()
        assert IndexFolder(cache).remove(index_folder(cache).name)


def test_interrupted_again_and_again(load: Callable[..., Engine]) -> None:
    anew = ask(load(cache=False), TEXT)
    for _ in range(4):
        stop_after(load(), 4, closed)
    run = ask(load(), TEXT)
    assert run.answer == anew.answer
    assert len(run.of(PrefillProgress)) <= 8


def test_a_damaged_interrupted_reading_begins_anew(load: Callable[..., Engine], cache: Path) -> None:
    anew = ask(load(cache=False), TEXT)
    engine = load()
    for hurt in ("resume.json", "resume-1.safetensors", "layer-0001.safetensors"):
        stop_after(engine, 13, closed)
        engine.close()
        (partial,) = IndexFolder(cache).partials()
        data = (partial.path / hurt).read_bytes()
        (partial.path / hurt).write_bytes(data[: len(data) // 2] + b"\0\0" + data[len(data) // 2 + 2 :])
        run = ask(engine, TEXT)
        assert run.answer == anew.answer
        assert any("begins anew" in notice for notice in run.notices), hurt
        engine.close()
        IndexFolder(cache).remove(index_folder(cache).name)


def test_a_disk_that_is_full(load: Callable[..., Engine], cache: Path) -> None:
    """The system refuses to write more than a few pages: one notice, the answer, and nothing left behind."""
    expected = ask(load(cache=False), TEXT).answer
    engine = load()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        run = ask(engine, TEXT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.answer == expected
    assert len([notice for notice in run.notices if "not kept" in notice]) == 1
    assert [path.name for path in cache.iterdir()] == [".locks"]
    assert ask(load(), TEXT).of(Indexed)


class Elsewhere:
    """Another process that reads `TEXT` as `book.txt`."""

    def __init__(
        self,
        processes: Any,
        model: Path,
        cache: Path,
        checkpoint_s: float = 10.0,
        hold_after: int | None = None,
    ) -> None:
        self.told, its = processes.Pipe()
        arguments = (str(model), str(cache.parent), TEXT, its, checkpoint_s, hold_after)
        self.process = processes.Process(target=read_and_keep, args=arguments)
        self.process.start()
        its.close()
        self.until("loaded")

    def until(self, *ends: Any) -> list[Any]:
        """All that it tells, up to one of these."""
        told: list[Any] = []
        while not told or told[-1] not in ends:
            assert self.told.poll(200)
            told.append(self.told.recv())
        return told

    def rest(self) -> list[Any]:
        """All that it still tells."""
        self.process.join(200)
        told = []
        while self.told.poll():
            try:
                told.append(self.told.recv())
            except EOFError:
                break
        return told


def test_a_killed_reading_goes_on_at_its_last_checkpoint(
    load: Callable[..., Engine], processes: Any, model: Path, cache: Path
) -> None:
    """Killed without a word at random moments: what was told done before the last chunk is not read again."""
    anew = ask(load(cache=False), TEXT)
    n_chunks = len(anew.of(PrefillProgress))
    engine = load()
    moments = random.Random(3)
    for n in moments.sample(range(5, 17), 3):
        # Held before its end, which it could reach otherwise before it is killed.
        other = Elsewhere(processes, model, cache, checkpoint_s=0.0, hold_after=16)
        other.until(n)
        assert [partial.is_going_on for partial in IndexFolder(cache).partials()] == [True]
        other.process.kill()
        other.process.join(60)
        (partial,) = IndexFolder(cache).partials()
        assert (partial.documents, partial.is_going_on) == (("book.txt",), False)
        run = ask(engine, TEXT)
        assert run.answer == anew.answer
        assert any("goes on at layer" in notice for notice in run.notices)
        # A checkpoint follows each chunk; the layer in which it stood is told of from its first chunk on.
        assert len(run.of(PrefillProgress)) <= n_chunks - (n - 1) // 4 * 4
        assert run.of(PrefillProgress)[0].fraction > (n - 1) / n_chunks / 3
        assert IndexFolder(cache).partials() == []
        engine.close()
        assert IndexFolder(cache).remove(index_folder(cache).name)


def test_a_checkpoint_is_seldom_where_it_takes_long(
    load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all of them together take at most the share of the time that they may."""
    clock = [0.0]
    monkeypatch.setattr("magicpig_cli.engine.keeping.monotonic", lambda: clock[0])
    noted = []

    def note(writer: Any, resume: Any) -> None:
        noted.append(clock[0])
        clock[0] += 0.7

    monkeypatch.setattr("magicpig_cli.store.index_writer.IndexWriter.note", note)
    for event in load().generate(request(TEXT)):
        if isinstance(event, PrefillProgress):
            clock[0] += 9.0
    # Due after ten seconds, then 70 seconds apart.
    assert noted[0] == 18.0
    assert len(noted) == 2
    assert noted[1] - noted[0] == pytest.approx(72.7, abs=9)


def test_who_comes_second_waits_and_finds_the_index(
    load: Callable[..., Engine], processes: Any, model: Path, cache: Path
) -> None:
    mine = load().generate(request(TEXT))
    for event in mine:
        if isinstance(event, PrefillProgress):
            break
    other = Elsewhere(processes, model, cache)
    notice = other.until("another magicpig is reading the same text; waiting for it (Ctrl-C ends the wait)")
    assert len(notice) == 1
    kept = Run(mine).of(Indexed)[0]
    assert other.rest() == [(0,)]
    assert index_folder(cache) == Path(kept.path)


def test_who_waits_goes_on_where_the_other_was_interrupted(
    load: Callable[..., Engine], processes: Any, model: Path, cache: Path
) -> None:
    mine = load().generate(request(TEXT))
    for n, event in enumerate(mine):
        if isinstance(event, PrefillProgress) and n > 8:
            break
    other = Elsewhere(processes, model, cache)
    other.until("another magicpig is reading the same text; waiting for it (Ctrl-C ends the wait)")
    mine.close()
    told = other.rest()
    assert any("goes on at layer" in part for part in told if isinstance(part, str))
    assert 0 < sum(isinstance(part, int) for part in told) < 16
    assert ask(load(), TEXT).prompted.index_path == str(index_folder(cache))
