"""Ctrl-C and other signals while a model is fetched: the real command, with a hub that stops halfway."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import MAGICPIG, environment
from hub_server import running_hub
from small import small_model
from terminal import Terminal

NAME = "people/small"
ARRIVED = 100_000


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose hub sends the beginning of the weights and no more."""
    with running_hub() as hub:
        hub.models[NAME] = small_model(tmp_path / "model")
        hub.stop_after = ARRIVED
        yield environment(
            HF_ENDPOINT=hub.url,
            HF_HUB_CACHE=str(tmp_path / "hub"),
            MAGICPIG_CACHE=str(tmp_path / "cache"),
            HF_TOKEN=None,
            HF_HUB_OFFLINE=None,
            NO_PROXY="127.0.0.1",
        )


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("The crane in the harbour of Vardal is green.\n")
    return path


def downloads(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_ctrl_c_on_a_terminal(book: Path, env: dict[str, str]) -> None:
    terminal = Terminal([*MAGICPIG, "ask", str(book), "What colour?", "-m", NAME], 80, 24, env)
    terminal.wait_for(lambda: "fetching" in terminal.text and " kB of " in terminal.text)
    children = downloads(terminal.process.pid)
    assert children
    terminal.process.sendintr()
    assert terminal.finish() == 130  # the hub would stand still for ten minutes
    assert terminal.text == "magicpig: interrupted before the answer"
    assert not terminal.cursor_hidden
    assert psutil.wait_procs(children, 60)[1] == []


def test_a_signal_in_a_pipe_leaves_one_object(book: Path, env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*MAGICPIG, "ask", str(book), "What colour?", "-m", NAME, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"fetching")
    children = downloads(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (143, b"magicpig: interrupted before the answer\n")
    value = json.loads(out)
    assert (value["finish_reason"], value["answer"], value["model"]) == ("interrupted", None, None)
    assert psutil.wait_procs(children, 60)[1] == []
