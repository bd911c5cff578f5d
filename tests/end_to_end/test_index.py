"""The real command with what it keeps on disk: found again, shared by processes, killed at any moment."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command import ROOT, environment, one_sentence
from small import lines, read_and_keep, small_model
from warm import Warm, magicpig

import magicpig_cli.views
from magicpig_cli.store.index_folder import IndexFolder

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())
QUESTION = "Which pump ran longest?"
TEXT = lines(30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"), num_hidden_layers=8)


@pytest.fixture
def env(model: Path, tmp_path: Path) -> dict[str, str]:
    return environment(
        MAGICPIG_MODEL=str(model), MAGICPIG_CACHE=str(tmp_path / "cache"), MAGICPIG_NO_CACHE=None
    )


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> IndexFolder:
    return IndexFolder(tmp_path / "cache" / "indexes")


def ask(book: Path, env: dict[str, str], *options: str) -> dict[str, Any]:
    result = magicpig("ask", str(book), QUESTION, "-n", "6", "--json", "--quiet", *options, env=env)
    assert (result.status, result.err) == (0, "")
    value: dict[str, Any] = json.loads(result.out)
    jsonschema.validate(value, SCHEMA)
    return value


def test_read_once_ask_often(book: Path, env: dict[str, str], folder: IndexFolder) -> None:
    indexed = magicpig("index", str(book), env=env)
    assert indexed.status == 0
    path = Path(indexed.out.rstrip("\n"))
    assert path.parent == folder.root
    assert sum("up to" in line for line in indexed.err.splitlines()) == 1
    renamed = book.rename(book.with_name("another name.txt"))
    value = ask(renamed, env)
    assert value["cache"] == {
        "hit": True,
        "tokens_reused": value["cache"]["tokens_reused"],
        "path": str(path),
    }
    assert value["tokens"]["document"] <= value["cache"]["tokens_reused"] < value["tokens"]["prompt"]
    anew = ask(renamed, env, "--no-cache")
    assert anew["cache"] == {"hit": False, "tokens_reused": 0, "path": None}
    assert value["answer"] == anew["answer"]

    listed = magicpig("cache", "ls", "--json", env=env)
    (entry,) = json.loads(listed.out)
    assert (entry["key"], entry["documents"], entry["state"]) == (path.name, [str(book)], "whole")
    assert entry["tokens"] == value["cache"]["tokens_reused"]
    table = magicpig("cache", "ls", env=env).out.splitlines()
    assert len(table) == 2
    assert table[1].startswith(path.name[:8])
    assert magicpig("cache", "path", env=env).out == f"{folder.root}\n"
    unknown = magicpig("cache", "rm", "other.txt", env=env)
    assert (unknown.status, one_sentence(unknown.err)) == (2, True)
    in_use = folder.take(path.name)
    assert in_use is not None
    refused = magicpig("cache", "rm", "book.txt", env=env)
    assert (refused.status, path.exists()) == (1, True)
    in_use.release()
    assert magicpig("cache", "rm", "book.txt", env=env).status == 0
    assert not path.exists()
    assert magicpig("cache", "ls", env=env).out == ""


class Reading:
    """Another process that reads the text; `seconds` since it had loaded its model."""

    def __init__(self, processes: Any, model: Path, folder: IndexFolder) -> None:
        mine, its = processes.Pipe()
        arguments = (str(model), str(folder.root.parent), TEXT, its)
        self.process = processes.Process(target=read_and_keep, args=arguments)
        self.process.start()
        assert mine.poll(100)
        self.told = mine
        self._loaded = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._loaded


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_reading_that_cannot_be_kept_ends_at_once_and_tells_why_once(
    book: Path, env: dict[str, str], options: list[str]
) -> None:
    result = magicpig("index", str(book), *options, env=env | {"MAGICPIG_CACHE_LIMIT": "1KB"})
    assert (result.status, result.out) == (1, "")
    assert result.err.count("not kept") == 1
    sentence = result.err.splitlines()[-1]
    assert sentence.startswith("magicpig: no index is made: ")
    assert "more than the limit of 1 kB, which MAGICPIG_CACHE_LIMIT sets" in sentence
    assert not re.search(r"read [\d,]+ tokens", result.err)


def test_killed_at_any_moment_it_leaves_a_whole_index_or_none(
    model: Path, processes: Any, folder: IndexFolder
) -> None:
    reading = Reading(processes, model, folder)
    reading.process.join(100)
    took_s = reading.seconds
    (expected,) = folder.heads()[0]
    whole = {path.name: path.read_bytes() for path in (folder.root / expected.key).iterdir()}
    moments = random.Random(7)
    for kill in range(8):
        for head in folder.heads()[0]:
            assert folder.remove(head.key)
        reading = Reading(processes, model, folder)
        # The later ones near the end, when the index is synced and renamed.
        time.sleep(took_s * (moments.random() if kill < 4 else moments.uniform(0.8, 1.05)))
        reading.process.kill()
        reading.process.join()
        heads, damaged = folder.heads()
        assert not damaged
        for head in heads:
            now = {path.name: path.read_bytes() for path in (folder.root / head.key).iterdir()}
            assert {name: now[name] for name in whole if name != "index.json"} == {
                name: data for name, data in whole.items() if name != "index.json"
            }
    last = Reading(processes, model, folder)  # held, for its end of the pipe
    last.process.join(100)
    assert [head.key for head in folder.heads()[0]] == [expected.key]
    assert not [path for path in folder.root.iterdir() if path.name.startswith((".partial", ".removed"))]


def test_two_at_once(book: Path, env: dict[str, str], folder: IndexFolder) -> None:
    """Whoever comes second waits, and has the index of the other."""
    pair = [Warm("index", str(book), env=env) for _ in range(2)]
    results = [running.communicate() for running in pair]
    (head,), damaged = folder.heads()
    assert damaged == []
    for status, out, err in results:
        assert (out, status) == (f"{folder.root / head.key}\n", 0), err


def test_ctrl_c_while_it_reads(book: Path, env: dict[str, str], folder: IndexFolder) -> None:
    for _ in range(8):
        running = Warm("index", str(book), env=env)
        while not any(folder.root.glob(".partial-*/layer-0001*")) and not folder.heads()[0]:
            time.sleep(0.002)
        running.send_signal(signal.SIGINT)
        status, _, _ = running.communicate()
        if status != 0:
            break
        # It was done before the signal came, as this process stood still for a moment: again.
        for head in folder.heads()[0]:
            assert folder.remove(head.key)
    assert status == 130
    (entry,) = json.loads(magicpig("cache", "ls", "--json", env=env).out)
    assert (entry["state"], entry["documents"]) == ("interrupted", [str(book)])
    value = ask(book, env)
    assert any("goes on at layer" in notice for notice in value["notices"])
    assert value["cache"]["path"] is not None
    assert folder.partials() == []


@pytest.fixture(scope="module")
def real_env(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = tmp_path_factory.mktemp("cache")
    return environment(MAGICPIG_MODEL=str(embedded_folder), MAGICPIG_CACHE=str(cache), MAGICPIG_NO_CACHE=None)


def test_the_second_question_to_the_real_model(real_env: dict[str, str]) -> None:
    notes = ROOT / "samples" / "notes.md"
    first, second = (ask(notes, real_env) for _ in range(2))
    assert second["answer"] == first["answer"]
    assert (first["cache"]["hit"], second["cache"]["hit"]) == (False, True)
    assert second["cache"]["path"] == first["cache"]["path"]
    assert oct(os.stat(first["cache"]["path"]).st_mode)[-3:] == "700"
