"""Room on the disk: what counts against the limit, what is given up for it, and what its end costs."""

from __future__ import annotations

import errno
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from readings import TEXT, ask, index_folder, request
from small import lines

from magicpig_cli.cli.cache import Entry, _changing, _entries, _meant
from magicpig_cli.engine import library as library_module
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.events import Indexed, PrefillProgress
from magicpig_cli.errors import MagicPigError, UsageError
from magicpig_cli.store.index_folder import LIMIT_VARIABLE, RESUME, IndexFolder, size_limit
from magicpig_cli.store.index_writer import IndexWriter

OTHER = lines(18, start=500)


def interrupt(engine: Engine, text: str, n_progress: int, stop: Callable[[Any], None] | None = None) -> int:
    """Read until so many chunks of layers are done, then end; gives how many were left to do."""
    events = engine.generate(request(text))
    seen = 0
    for event in events:
        seen += isinstance(event, PrefillProgress)
        if seen == n_progress:
            (stop or (lambda going_on: going_on.close()))(events)
            break
    engine.close()
    return seen


def of_another_version(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 999}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("hurt", [of_another_version, cut])
def test_what_serves_nobody_is_listed_counted_and_given_up_first(
    hurt: Callable[[Path], None],
    load: Callable[..., Engine],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = IndexFolder(cache)
    engine = load()
    size = ask(engine, TEXT).of(Indexed)[0].n_bytes
    engine.close()
    useful = index_folder(cache)
    engine = load()
    broken = Path(ask(engine, OTHER).of(Indexed)[0].path)  # used later than the useful one
    engine.close()
    hurt(broken / "index.json")
    interrupt(load(), lines(18, start=900), 9)
    (partial,) = folder.partials()
    hurt(partial.path / RESUME)

    listed = {entry.path: (entry.state, entry.n_bytes) for entry in _entries(folder)}
    assert {path: state for path, (state, _) in listed.items()} == {
        useful: "whole", broken: "damaged", partial.path: "damaged"}  # fmt: skip
    assert all(n_bytes > 0 for _, n_bytes in listed.values())

    monkeypatch.setenv(LIMIT_VARIABLE, str(int(2.5 * size)))
    run = ask(load(), lines(18, start=1300))
    assert not broken.exists()
    assert not partial.path.exists()
    assert useful.exists()
    assert sum("another version" in notice for notice in run.notices) == 2


def test_what_serves_nobody_counts_as_taken(load: Callable[..., Engine], cache: Path) -> None:
    engine = load()
    ask(engine, TEXT)
    engine.close()
    (head,), _ = IndexFolder(cache).heads()
    cut(index_folder(cache) / "index.json")
    (unusable,) = IndexFolder(cache).contents().by_use()
    assert unusable.n_bytes >= head.n_bytes
    assert size_limit(cache) > 0


def test_an_index_is_never_larger_than_all_may_be(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    size = ask(engine, TEXT).of(Indexed)[0].n_bytes
    engine.close()
    assert IndexFolder(cache).remove(index_folder(cache).name)
    for limit, is_kept in ((size - 1, False), (0, False), (size, True)):
        monkeypatch.setenv(LIMIT_VARIABLE, str(limit))
        engine = load()
        run = ask(engine, TEXT)
        engine.close()
        assert bool(run.of(Indexed)) == is_kept, limit
        assert sum("more than the limit" in notice for notice in run.notices) == (not is_kept)
        assert IndexFolder(cache).contents().n_bytes <= limit


def test_the_limit_is_told_with_where_it_comes_from(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "3GB")
    (told,) = [notice for notice in ask(load(), TEXT).notices if "up to" in notice]
    assert f"up to 3.00 GB ({LIMIT_VARIABLE}, " in told


def test_a_disk_that_is_full_at_an_interruption_leaves_the_note_before(
    load: Callable[..., Engine], cache: Path
) -> None:
    expected = ask(load(cache=False), TEXT)

    def closed_on_a_full_disk(events: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
        try:
            events.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    interrupt(load(), TEXT, 6)
    (partial,) = IndexFolder(cache).partials()
    before = {path.name for path in partial.path.glob("resume*")}
    interrupt(load(), TEXT, 3, closed_on_a_full_disk)  # within the layer, which is not written then
    assert {path.name for path in partial.path.glob("resume*")} == before
    run = ask(load(), TEXT)
    assert run.answer == expected.answer
    assert any("goes on" in notice for notice in run.notices)
    assert len(run.of(PrefillProgress)) < len(expected.of(PrefillProgress))


def test_a_folder_that_cannot_be_made_leaves_no_lock(cache: Path) -> None:
    folder = IndexFolder(cache)
    folder.create()
    folder.partial("key").write_text("a file in the folder's place")
    for _ in range(2):
        with pytest.raises(FileExistsError) as held:  # the error, kept, keeps what it came through
            IndexWriter.open(folder, "key")
    lock = folder.writing_lock("key")
    lock.acquire(timeout=0)
    lock.release()
    assert held.value.errno == errno.EEXIST


def test_an_index_that_is_out_of_reach_just_now_stays(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    first = ask(engine, TEXT)
    engine.close()

    def no_memory(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(library_module, "restore_layers", no_memory)
        engine = load()
        run = ask(engine, TEXT)
        engine.close()
    assert (run.answer, run.prompted.reused_tokens) == (first.answer, 0)
    assert any("cannot be used (Cannot allocate memory)" in notice for notice in run.notices)
    assert ask(load(), TEXT).prompted.reused_tokens > 0


def test_where_nothing_can_be_written_what_is_there_is_listed(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the place of the lock file: unlike rights, it stops the superuser too."""
    engine = load()
    ask(engine, TEXT)
    engine.close()
    key = index_folder(cache).name
    folder = IndexFolder(cache)
    (cache / ".locks" / "folder").unlink()
    (cache / ".locks" / "folder").mkdir()
    (listed,) = _entries(folder)
    assert (listed.key, listed.state, listed.in_use) == (key, "whole", False)
    assert folder.evict(0, keep="") == []
    with (
        pytest.raises(MagicPigError, match=r"nothing can be removed from .*: is a directory"),
        _changing(folder),
    ):
        folder.remove(key)
    assert (cache / key).exists()


def entry(key: str, *documents: str) -> Entry:
    return Entry(key, documents, {}, 1, 1, 0.0, "whole", False, Path(key))


def test_a_name_means_one_thing() -> None:
    plain, nested = entry("aaaa1111", "s.txt"), entry("aaaa2222", "notes/s.txt")
    both, again = entry("bbbb1111", "s.txt", "notes/t.txt"), entry("cccc1111", "notes/t.txt")
    entries = [plain, nested, both, again]
    assert _meant("s.txt", entries) == [plain, both], "the name in full, not whatever ends so"
    assert _meant("notes/s.txt", entries) == [nested]
    assert _meant("t.txt", entries) == [both, again], "one document, in two indexes"
    assert _meant("aaaa1", entries) == _meant("aaaa1111", entries) == [plain]
    for several in ("aaaa", "u.txt"):
        with pytest.raises(UsageError, match="may be any of"):
            _meant(several, [*entries, entry("dddd1111", "a/u.txt"), entry("eeee1111", "b/u.txt")])
    for nothing in ("", "aaa", "other.txt"):
        with pytest.raises(UsageError, match="nothing of the name"):
            _meant(nothing, entries)
