"""What was read is found again, whole or not at all: small random models, real files, real faults."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from readings import QUESTION, TEXT, Run, ask, index_folder, request
from safetensors import safe_open
from small import lines, small_model

from magicpig_cli.cli.cache import _entries
from magicpig_cli.documents import read_sources
from magicpig_cli.engine.engine import AskRequest, Engine
from magicpig_cli.engine.events import Indexed, Memory, Prefilled, PrefillProgress, Step, Token
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.store.index_folder import LIMIT_VARIABLE, IndexFolder, size_limit


def test_the_second_run_reads_only_the_question(load: Callable[..., Engine], cache: Path) -> None:
    first, second = ask(load(), TEXT), ask(load(), TEXT)
    assert first.prompted.reused_tokens == 0
    kept = first.of(Indexed)[0]
    assert (Path(kept.path), kept.tokens) == (index_folder(cache), second.prompted.reused_tokens)
    assert second.answer == first.answer
    assert len(first.answer) == 6
    assert second.prompted.index_path == kept.path
    question_tokens = second.prompted.prompt_tokens - second.prompted.reused_tokens
    assert second.computed == question_tokens < 100
    assert all(event.tokens_done > kept.tokens for event in second.of(PrefillProgress))
    assert not second.of(Indexed)
    assert (len(first.notices), second.notices) == (1, [])  # where things are kept, and how much


def test_tables_are_built_behind_the_first_token(load: Callable[..., Engine]) -> None:
    """They are the first run's, and whoever waits for that token does not wait for them."""
    first, second = ask(load(), TEXT), ask(load(), TEXT)
    kinds = [type(event) for event in second.events]
    begun, built = kinds.index(Token), kinds.index(Step)
    tables = [(i, event.table_bytes) for i, event in enumerate(second.events) if isinstance(event, Memory)]
    assert [n_bytes > 0 for i, n_bytes in tables if i < begun] == [False]
    assert [n_bytes for i, n_bytes in tables if begun < i < built] == [first.of(Memory)[-1].table_bytes]
    assert second.of(Prefilled)[0].table_build_s < first.of(Prefilled)[0].table_build_s
    assert [step.sampled_share for step in second.of(Step)] == [step.sampled_share for step in first.of(Step)]
    # One token needs no step, so no tables.
    documents = request(TEXT).documents
    single = Run(load().generate(AskRequest(documents, QUESTION, max_tokens=1)))
    assert single.of(Memory)[-1].table_bytes == 0


def test_without_a_cache_nothing_is_kept(load: Callable[..., Engine], cache: Path) -> None:
    ask(load(cache=False), TEXT)
    assert not cache.exists()


def test_files_are_private_and_are_safetensors(load: Callable[..., Engine], cache: Path) -> None:
    ask(load(), TEXT)
    for path in [cache, *cache.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    layers = sorted(index_folder(cache).glob("*.safetensors"))
    assert len(layers) == 4
    with safe_open(layers[0], "pt") as file:
        shape = file.get_slice("rows").get_shape()
        assert (shape[0], *shape[2:]) == (2, 2, 32)
        assert file.get_tensor("observed").shape == (4, 64, 32)


@pytest.mark.parametrize(
    "changes",
    [{"n_bits": 4, "n_tables": 20}, {"attention": "dense"}, {"dense_layers": (1,)}, {"hash_seed": 3}],
)
def test_another_way_of_attending_uses_the_same_index(
    changes: dict[str, Any], load: Callable[..., Engine]
) -> None:
    ask(load(), TEXT)
    reused = ask(load(**changes), TEXT)
    anew = ask(load(cache=False, **changes), TEXT)
    assert reused.prompted.index_path is not None
    assert reused.answer == anew.answer


def test_another_dtype_or_other_weights_are_another_model(
    load: Callable[..., Engine], tmp_path: Path
) -> None:
    ask(load(), TEXT)
    assert ask(load(dtype="float32"), TEXT).prompted.reused_tokens == 0
    other = small_model(tmp_path / "other", seed=1)
    assert ask(load(model=str(other)), TEXT).prompted.reused_tokens == 0


def test_a_document_that_grew_is_read_on(load: Callable[..., Engine]) -> None:
    longer = TEXT + lines(9, 18)
    first = ask(load(), TEXT)
    grown = ask(load(), longer)
    kept = first.of(Indexed)[0]
    assert grown.prompted.reused_tokens == kept.tokens
    assert grown.computed == grown.prompted.prompt_tokens - kept.tokens
    assert grown.answer == ask(load(cache=False), longer).answer
    again = ask(load(), longer)
    assert again.prompted.reused_tokens == grown.of(Indexed)[0].tokens
    assert again.answer == grown.answer


def test_a_document_with_another_end_keeps_its_beginning(load: Callable[..., Engine]) -> None:
    ask(load(), TEXT)
    changed = TEXT[:-30] + "It stopped."
    run = ask(load(), changed)
    known = len(TEXT) - 30
    assert known <= run.prompted.reused_tokens <= known + 40  # the template's own tokens come on top
    assert run.answer == ask(load(cache=False), changed).answer


def test_a_part_of_what_was_read_is_known_too(load: Callable[..., Engine]) -> None:
    """All but its last 64 tokens, whose queries some methods observe."""
    ask(load(), TEXT + lines(9, 18))
    run = ask(load(), TEXT)
    prefix = run.of(Indexed)[0].tokens
    assert run.prompted.reused_tokens == prefix - 64
    assert run.answer == ask(load(cache=False), TEXT).answer


def test_several_texts_begin_with_what_was_read_of_the_first(
    load: Callable[..., Engine], tmp_path: Path
) -> None:
    """`ask a.txt b.txt` after `ask a.txt`, and then with a third one behind them."""
    names = []
    for name, text in (("a.txt", TEXT), ("b.txt", lines(5, 50)), ("c.txt", "The end.")):
        (tmp_path / name).write_text(text)
        names.append(str(tmp_path / name))
    kept = 0
    for n in (1, 2, 3):
        question = AskRequest(read_sources(names[:n], None), QUESTION, max_tokens=6)
        run = Run(load().generate(question))
        assert run.prompted.reused_tokens == kept
        assert run.computed == run.prompted.prompt_tokens - kept
        assert run.answer == Run(load(cache=False).generate(question)).answer
        kept = run.of(Indexed)[0].tokens


def test_layers_with_a_window(load: Callable[..., Engine], tmp_path: Path) -> None:
    windowed = str(small_model(tmp_path / "m", "mistral", sliding_window=100))
    first = ask(load(model=windowed), TEXT)
    second = ask(load(model=windowed), TEXT)
    assert second.prompted.reused_tokens == first.of(Indexed)[0].tokens
    assert second.answer == first.answer
    # A window knows only the end of what was read.
    assert ask(load(model=windowed), TEXT[:-30]).prompted.reused_tokens == 0
    longer = TEXT + lines(9, 18)
    grown = ask(load(model=windowed), longer)
    assert grown.prompted.reused_tokens == first.of(Indexed)[0].tokens
    assert grown.answer == ask(load(model=windowed, cache=False), longer).answer


def test_rows_stay_in_the_file_where_memory_is_short(
    load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """The same answer from a private mapping, to which the question and the answer are appended."""
    monkeypatch.setattr("magicpig_cli.engine.keeping._SPARE_FROM_TOKENS", 0)
    monkeypatch.setattr("magicpig_cli.engine.keeping._SPARE_TOKENS", 300)
    first = ask(load(), TEXT)
    before = {path: path.read_bytes() for path in index_folder(cache).iterdir()}
    monkeypatch.setattr("magicpig_cli.engine.restore._COPY_SHARE", 0.0)
    engine = load()
    second = ask(engine, TEXT)
    assert second.answer == first.answer
    assert engine._reading is not None
    stores = engine._reading.session.stores
    assert all(
        store is not None and store.capacity == second.prompted.reused_tokens + 300 for store in stores
    )
    assert before == {path: path.read_bytes() for path in index_folder(cache).iterdir()}
    # More than the spare rows hold: the store moves.
    long_question = "Which pump? " * 30
    assert (
        ask(engine, TEXT, question=long_question).answer
        == ask(load(cache=False), TEXT, question=long_question).answer
    )


# Where a file is hurt: its first bytes, its head, its middle, its end.
PLACES = (0.0, 0.003, 0.5, 0.97, 1.0)


def damages(data: bytes) -> Iterator[bytes]:
    for place in PLACES:
        at = min(int(place * len(data)), len(data) - 1)
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_every_damage_to_every_file_is_found_before_a_token(load: Callable[..., Engine], cache: Path) -> None:
    engine, text = load(), lines(6)
    first = ask(engine, text)
    whole = {path.name: path.read_bytes() for path in index_folder(cache).iterdir()}
    folder = index_folder(cache)
    assert len(whole) == 6
    for name, data in whole.items():
        if name.startswith("layer-000") and name[9] != "2":
            continue  # all layers are alike
        for damaged in damages(data):
            engine.close()
            for restored, contents in whole.items():
                (folder / restored).write_bytes(contents)
            (folder / name).write_bytes(damaged)
            run = ask(engine, text)
            assert run.answer == first.answer
            assert run.prompted.reused_tokens == 0, name
            assert len([notice for notice in run.notices if "damaged" in notice]) == 1, name
            assert run.of(Indexed), name  # kept anew


@pytest.mark.parametrize("name", ["index.json", "layers.json", "layer-0002.safetensors"])
def test_a_file_that_cannot_be_opened_costs_its_own_index_only(
    name: str, load: Callable[..., Engine], cache: Path
) -> None:
    """A folder in its place, which no rights of the user help against; so do faults of a disk."""
    own, other = lines(6), lines(9)[::-1]

    def asked(text: str) -> Run:
        engine = load()
        run = ask(engine, text)
        engine.close()  # else what it uses is not removed
        return run

    first = asked(own)
    broken = index_folder(cache)
    second = asked(other)
    (broken / name).unlink()
    (broken / name).mkdir()
    run = asked(other)
    assert run.answer == second.answer
    assert run.prompted.reused_tokens > 0
    assert not run.notices
    kept = {entry.path.name: entry.state for entry in _entries(IndexFolder(cache))}
    assert len(kept) == 2
    assert kept[broken.name] == ("damaged" if name == "index.json" else "whole")
    run = asked(own)
    assert (run.answer, run.prompted.reused_tokens) == (first.answer, 0)
    assert run.of(Indexed)  # kept anew, in its place
    assert asked(own).prompted.reused_tokens > 0
    (broken / "index.json").unlink()
    (broken / "index.json").mkdir()
    assert IndexFolder(cache).remove(broken.name)
    assert not broken.exists()


@pytest.mark.parametrize("missing", ["index.json", "layers.json", "layer-0002.safetensors"])
def test_a_lost_file_is_a_damage(missing: str, load: Callable[..., Engine], cache: Path) -> None:
    first = ask(load(), TEXT)
    (index_folder(cache) / missing).unlink()
    run = ask(load(), TEXT)
    assert (run.answer, run.prompted.reused_tokens) == (first.answer, 0)
    assert any("damaged" in notice for notice in run.notices)


def test_an_index_of_another_format_version_is_not_used(load: Callable[..., Engine], cache: Path) -> None:
    first = ask(load(), TEXT)
    path = index_folder(cache) / "index.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"format": 999}))
    run = ask(load(), TEXT)
    assert (run.answer, run.prompted.reused_tokens) == (first.answer, 0)


def test_the_longest_unused_goes_and_never_one_in_use(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"Report {i}.\n{TEXT}" for i in range(4)]
    sizes = [ask(load(), text).of(Indexed)[0].n_bytes for text in texts[:1]]
    monkeypatch.setenv(LIMIT_VARIABLE, str(int(2.5 * sizes[0])))
    holder, others = load(), load()
    in_use = ask(holder, texts[0]).prompted.index_path  # the oldest, and open
    kept = [ask(others, text).of(Indexed)[0].path for text in texts[1:3]]
    run = ask(others, texts[3])
    assert sorted(str(path) for path in cache.iterdir() if path.name[0] != ".") == sorted(
        [str(in_use), run.of(Indexed)[0].path]
    )
    assert any("removed" in notice for notice in run.notices)
    assert not Path(kept[0]).exists()


def test_what_is_larger_than_the_limit_is_not_kept(
    load: Callable[..., Engine], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "10kB")
    run = ask(load(), TEXT)
    assert len(run.answer) == 6
    assert not run.of(Indexed)
    (refusal,) = [notice for notice in run.notices if "not kept" in notice]
    # Both in units that leave a figure to see.
    assert re.search(r": it would take [1-9]\d* [kM]B, more than the limit of [1-9]\d* kB, which", refusal)
    assert refusal.endswith(f"{LIMIT_VARIABLE} sets")
    assert [path.name for path in cache.iterdir()] == [".locks"]


@pytest.mark.parametrize("text", ["much", "1XB", "nan", "-", "-1", "-5GB", "inf"])
def test_a_limit_that_is_no_size(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(UsageError, match=LIMIT_VARIABLE):
        size_limit(tmp_path)


@pytest.mark.parametrize(("text", "n_bytes"), [("20GB", 20e9), ("1.5 t", 1.5e12), ("300m", 3e8), ("7", 7)])
def test_a_limit(text: str, n_bytes: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    assert size_limit(tmp_path) == n_bytes


def test_reading_without_a_question(load: Callable[..., Engine]) -> None:
    documents = request(TEXT).documents
    read = Run(load().read(documents))
    assert not read.of(Token)
    assert read.of(Indexed)[0].tokens == read.of(Prefilled)[0].prompt_tokens
    assert ask(load(), TEXT).prompted.reused_tokens == read.of(Indexed)[0].tokens
    again = Run(load().read(documents))
    assert again.computed == 0


# Few and small enough that they take less than the keys and values do.
SMALL_TABLES = {"n_bits": 4, "n_tables": 20}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that tables were built up to, one entry for each building."""
    stops: list[int] = []
    build = LshLayer.build

    def counting(layer: LshLayer, rows: Any, start: int, stop: int) -> None:
        if stop > 100:  # less are built to compile the kernels
            stops.append(stop)
        build(layer, rows, start, stop)

    monkeypatch.setattr(LshLayer, "build", counting)
    return stops


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_tables_that_are_small_are_kept(
    share: float,
    load: Callable[..., Engine],
    cache: Path,
    built: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Used as they are, copied or mapped; another K or L, and a text that grew, build their own."""
    first = ask(load(**SMALL_TABLES), TEXT)
    assert (
        len(list(index_folder(cache).glob("tables-*.safetensors"))) == len(built) == 3
    )  # one layer is dense
    on_disk = sum(path.stat().st_size for path in index_folder(cache).glob("*.safetensors"))
    assert first.of(Indexed)[0].n_bytes == on_disk
    built.clear()
    monkeypatch.setattr("magicpig_cli.engine.restore._COPY_SHARE", share)
    second = ask(load(**SMALL_TABLES), TEXT)
    assert (second.answer, built) == (first.answer, [])
    assert second.of(Memory)[-1].table_bytes == first.of(Memory)[-1].table_bytes
    others = ask(load(n_bits=5, n_tables=20), TEXT)
    assert len(built) == 3
    assert others.answer == ask(load(n_bits=5, n_tables=20, cache=False), TEXT).answer
    longer = TEXT + lines(9, 18)
    assert ask(load(**SMALL_TABLES), longer).answer == ask(load(cache=False, **SMALL_TABLES), longer).answer


def test_large_tables_are_not_kept(load: Callable[..., Engine], cache: Path) -> None:
    ask(load(n_bits=12, n_tables=100), TEXT)
    assert list(index_folder(cache).glob("tables*")) == []


def test_damaged_tables_are_built_anew_and_nothing_else_is(
    load: Callable[..., Engine], cache: Path, built: list[int]
) -> None:
    first = ask(load(**SMALL_TABLES), TEXT)
    folder = index_folder(cache)
    whole = {path.name: path.read_bytes() for path in folder.glob("tables*")}
    assert len(whole) == 4
    engine = load(**SMALL_TABLES)
    for name in ("tables.json", "tables-0002.safetensors"):
        for damaged in [None, *damages(whole[name])]:
            engine.close()
            for restored, contents in whole.items():
                (folder / restored).write_bytes(contents)
            (folder / name).unlink()
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            built.clear()
            run = ask(engine, TEXT)
            assert run.answer == first.answer
            assert run.prompted.reused_tokens == first.of(Indexed)[0].tokens
            assert built
            if damaged is None and name == "tables.json":
                assert run.notices == []  # an index without tables is whole
                continue
            assert ["damaged" in notice for notice in run.notices] == [True], name
            assert list(folder.glob("tables*")) == []
            engine.close()
            assert ask(engine, TEXT).notices == []
