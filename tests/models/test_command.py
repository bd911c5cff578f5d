"""`magicpig models` as scripts and people use it: results on standard output, all else on the other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from command import MAGICPIG, environment, magicpig, one_sentence, shell
from tiny import tiny_model, write_gguf

NAME = "smollm2-135m"
FIELDS = {
    "name": str, "hub_id": str, "parameters": int, "weight_bytes": int, "context_tokens": int,
    "gated": bool, "licence": str, "on_disk": bool, "path": (str, type(None)),
}  # fmt: skip


@pytest.fixture
def empty(tmp_path) -> dict[str, str]:
    """An environment in which nothing is on this disk."""
    return environment(MAGICPIG_CACHE=str(tmp_path / "cache"), HF_HUB_CACHE=str(tmp_path / "hub"))


def test_ls_lists_every_model_with_its_size_and_whether_it_is_here(empty, embedded_folder):
    result = magicpig("models", "ls", env=empty)
    assert (result.status, result.err) == (0, "")
    head, *lines = result.out.splitlines()
    assert head.split()[0] == "NAME"
    assert all(line.split()[-1] == "no" for line in lines)
    known = environment(MAGICPIG_CACHE=str(embedded_folder.parents[1]))
    (line,) = (line for line in magicpig("models", "ls", env=known).out.splitlines() if line.startswith(NAME))
    assert line.split()[-1] == "yes"
    assert "269 MB" in line
    assert "8,192" in line


def test_ls_json_keeps_its_fields(empty, embedded_folder):
    rows = json.loads(magicpig("models", "ls", "--json", env=empty).out)
    assert {row["name"] for row in rows} >= {NAME, "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b"}
    for row in rows:
        assert set(row) == set(FIELDS)
        assert all(isinstance(row[field], kind) for field, kind in FIELDS.items())
    known = environment(MAGICPIG_CACHE=str(embedded_folder.parents[1]))
    (row,) = (r for r in json.loads(magicpig("models", "ls", "--json", env=known).out) if r["name"] == NAME)
    assert (row["on_disk"], row["path"]) == (True, str(embedded_folder))


def test_path_and_pull_print_the_folder_and_nothing_else(embedded_folder):
    known = environment(MAGICPIG_CACHE=str(embedded_folder.parents[1]))
    for command in ("path", "pull"):
        result = magicpig("models", command, NAME, env=known)
        assert (result.status, result.out, result.err) == (0, f"{embedded_folder}\n", "")


def test_path_of_a_model_that_is_not_here_tells_how_to_fetch_it(empty):
    result = magicpig("models", "path", NAME, env=empty)
    assert (result.status, result.out) == (1, "")
    assert one_sentence(result.err)
    assert f"magicpig models pull {NAME}" in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pull", "lama-3.2-1b"], "did you mean llama-3.2-1b"),
        (["pull", "./nowhere.gguf"], "no model folder or .gguf file ./nowhere.gguf"),
        (["path"], "missing argument"),
        ([], "missing command"),
        (["remove"], "remove"),
    ],
)
def test_wrong_calls_are_refused_in_one_sentence(arguments, says, empty):
    result = magicpig("models", *arguments, env=empty)
    assert (result.status, result.out) == (2, "")
    assert one_sentence(result.err)
    assert says in result.err


def test_pull_unpacks_a_gguf_file_and_says_so(empty, tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    first = magicpig("models", "pull", str(path), env=empty)
    assert first.status == 0
    assert os.path.isdir(first.out.strip())
    assert "m.gguf was unpacked once" in first.err
    assert magicpig("models", "pull", str(path), env=empty).err == ""
    quiet = {**empty, "MAGICPIG_CACHE": str(tmp_path / "other")}
    assert magicpig("models", "pull", str(path), "--quiet", env=quiet).err == ""


def test_a_reader_that_leaves_early_is_no_error(empty):
    result = shell("magicpig models ls | true; echo ${PIPESTATUS[0]}", env=empty)
    assert result.out.strip() in ("0", "141")
    assert result.err == ""


def test_an_interrupted_pull_ends_at_once_with_130(empty):
    with socket.socket() as silent:  # an index that accepts, and sends nothing for two minutes
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        index = {
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "NO_PROXY": "127.0.0.1",
            "PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple",
            "PIP_DEFAULT_TIMEOUT": "300",
        }  # fmt: skip
        process = subprocess.Popen(
            [*MAGICPIG, "models", "pull", NAME],
            env={**empty, **index, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("fetching: 93 MB")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_terminal_progress_is_one_line_that_goes_away(empty, tmp_path):
    import pexpect
    import pyte

    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    command, *arguments = [*MAGICPIG, "models", "pull", str(path)]
    child = pexpect.spawn(
        command, arguments, env={**empty, "TERM": "xterm"}, dimensions=(24, 400), timeout=120
    )
    child.expect(pexpect.EOF)
    child.close()
    raw = child.before.decode()
    assert child.exitstatus == 0
    assert "unpacking: 0 kB of" in raw
    screen = pyte.Screen(400, 24)
    pyte.Stream(screen).feed(raw)
    shown = [line.rstrip() for line in screen.display if line.strip()]
    assert len(shown) == 2
    assert shown[0].startswith("magicpig: m.gguf was unpacked once")
    assert shown[1].startswith(str(tmp_path / "cache"))
