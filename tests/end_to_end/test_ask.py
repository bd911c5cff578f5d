"""The real command with the embedded model: streams, statuses and signals as a script and a person meet them.

Texts are short, since every run loads the model; only interruptions read a long one.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from command import MAGICPIG, ROOT, environment, one_sentence, shell
from scripted import scripted_model
from terminal import Terminal
from warm import Warm, magicpig

import magicpig_cli.views

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())
TEXT = (
    "The lighthouse of Vardal was built in 1871. The crane in its harbour is green, and the code of its "
    "gate is 4471.\nThe keeper's name is Ingrid Solheim. She has a cat called Admiral.\n"
)
QUESTION = "What colour is the crane in the harbour?"
LONG = ROOT / "samples" / "keepers-book.md"
# Whatever tries the network fails at once, and whatever asks for colour is refused.
HOSTILE = {
    "FORCE_COLOR": "1",
    "TTY_COMPATIBLE": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def env(embedded_folder: Path) -> dict[str, str]:
    return environment(MAGICPIG_MODEL=str(embedded_folder), **HOSTILE)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that goes on for as long as it may, at some hundred words a second."""
    words = [f" word{i}" for i in range(500)]
    return scripted_model(tmp_path_factory.mktemp("talker"), words, endless=True)


@pytest.fixture(scope="module")
def as_json(env: dict[str, str]) -> dict[str, Any]:
    result = magicpig("ask", "-", QUESTION, "--json", "--quiet", stdin=TEXT.encode(), env=env)
    assert (result.status, result.err) == (0, "")
    value: dict[str, Any] = json.loads(result.out)
    return value


def test_json_is_as_its_schema_says(as_json: dict[str, Any]) -> None:
    jsonschema.validate(as_json, SCHEMA)
    assert "green" in as_json["answer"]
    assert as_json["finish_reason"] == "stop"
    assert as_json["documents"][0]["source"] == "standard input"
    assert 0 < as_json["tokens"]["document"] < as_json["tokens"]["prompt"]
    assert as_json["attention"]["method"] == "lsh"
    assert 0 < as_json["attention"]["sampled_share"] < 1
    timings = as_json["timings"]
    assert 0 < timings["cpu_attention_ms_per_token"] < timings["decode_ms_per_token"]
    assert as_json["memory"]["host_peak_bytes"] > as_json["memory"]["kv_bytes"] > 0


def test_a_pipe_gets_the_answer_and_nothing_else(
    book: Path, env: dict[str, str], as_json: dict[str, Any]
) -> None:
    result = shell(f"cat {book} | magicpig ask - {shlex.quote(QUESTION)} | cat", env=env)
    assert result.status == 0
    assert result.out == as_json["answer"] + "\n"
    assert [line.split()[0] for line in result.err.splitlines()] == [
        "loaded",
        "read",
        str(as_json["tokens"]["prompt"]),
    ]
    assert "\x1b" not in result.err


def test_a_terminal_keeps_the_answer_and_one_line(
    book: Path, env: dict[str, str], as_json: dict[str, Any]
) -> None:
    terminal = Terminal([*MAGICPIG, "ask", str(book), QUESTION], 120, 30, env)
    assert terminal.finish() == 0
    shown = terminal.everything.split("\n")
    assert "\n".join(shown[:-1]) == as_json["answer"]
    assert "sampled" in shown[-1]
    assert not terminal.cursor_hidden
    assert b"CPU attention" in terminal.raw


def test_a_cut_answer_says_so(book: Path, env: dict[str, str]) -> None:
    result = magicpig("ask", str(book), QUESTION, "-n", "4", "--attention", "dense", "--json", env=env)
    value = json.loads(result.out)
    assert (result.status, value["finish_reason"], value["tokens"]["generated"]) == (0, "length", 4)
    assert value["attention"] | {"dense_layers": []} == {
        "method": "dense",
        "n_bits": None,
        "n_tables": None,
        "min_collisions": None,
        "dense_layers": [],
        "sampled_share": None,
        "estimated_error": None,
        "tolerance": None,
        "exact_share": None,
        "resampled_share": None,
    }
    assert sum("--max-tokens" in line for line in result.err.splitlines()) == 1


def test_a_reader_that_has_enough(book: Path, env: dict[str, str]) -> None:
    result = shell(f"magicpig ask {book} '{QUESTION}' --quiet | head -c 3; exit ${{PIPESTATUS[0]}}", env=env)
    assert (result.out, result.err, result.status) == ("The", "", 141)


def test_a_reader_that_was_never_there(env: dict[str, str]) -> None:
    """It ends before the document is read."""
    result = shell(f"magicpig ask {LONG} '{QUESTION}' | true; exit ${{PIPESTATUS[0]}}", env=env)
    assert result.status == 141
    assert [line.split()[0] for line in result.err.splitlines()] in ([], ["loaded"])


def test_a_full_disk(book: Path, env: dict[str, str]) -> None:
    with open("/dev/full", "wb") as full:
        status, _, err = Warm("ask", str(book), QUESTION, "--quiet", stdout=full, env=env).communicate()
    assert status == 1
    assert one_sentence(err)
    assert "No space left on device" in err


def test_standard_error_gone(book: Path, env: dict[str, str], as_json: dict[str, Any]) -> None:
    result = shell(f"magicpig ask {book} '{QUESTION}' 2>&- <&-", env=env)
    assert (result.status, result.out) == (0, as_json["answer"] + "\n")


def test_a_document_that_is_too_long(tmp_path: Path, env: dict[str, str]) -> None:
    lines = (f"Filler sentence number {i} says nothing of note about the weather." for i in range(3000))
    text = "The secret word of this document is ANANAS-7734.\n\n" + "\n".join(lines)
    result = magicpig(
        "ask", "-", "What is the secret word?", "--json", "--quiet", stdin=text.encode(), env=env
    )
    value = json.loads(result.out)
    assert result.status == 3
    assert one_sentence(result.err)
    assert value["error"]["kind"] == "does_not_fit"
    assert "8,192" in value["error"]["message"]
    assert value["timings"]["prefill_s"] is None
    jsonschema.validate(value, SCHEMA)


def test_an_ascii_locale_without_a_home(embedded_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(
        "The inn of the village is called Café Ørnæs. It opens at six.\n", "utf-8"
    )
    done = subprocess.run(
        [
            *MAGICPIG,
            "ask",
            "book.txt",
            "What is the inn of the village called?",
            "-m",
            str(embedded_folder),
            "-q",
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONIOENCODING": "ascii",
        },
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "Café Ørnæs" in done.stdout.decode("utf-8")


def test_a_seed_repeats_on_any_number_of_threads(book: Path, env: dict[str, str]) -> None:
    options = ["--seed", "7", "--temperature", "0.9", "-n", "12", "--json", "-q"]
    drawn = []
    for threads in ("1", "2"):
        result = magicpig("ask", str(book), "Tell me of her.", *options, "--threads", threads, env=env)
        value = json.loads(result.out)
        assert value["seed"] == 7
        drawn.append(value["answer"])
    assert drawn[0] == drawn[1]


def wait_until_it_computed(pid: int, seconds: float) -> None:
    """Wait until a process has spent so much more of its own time, however busy the machine is."""
    used = psutil.Process(pid)
    end = sum(used.cpu_times()[:2]) + seconds
    while sum(used.cpu_times()[:2]) < end:
        assert used.status() != psutil.STATUS_ZOMBIE, "it ended before"
        time.sleep(0.02)


def test_ctrl_c_while_the_document_is_read(env: dict[str, str]) -> None:
    running = Warm("ask", str(LONG), QUESTION, env=env)
    running.until("loaded")
    wait_until_it_computed(running.pid, 1)
    running.send_signal(signal.SIGINT)
    # A line beginning with "read" would come first if it had read to the end.
    assert running.communicate() == (130, "", "magicpig: interrupted before the answer\n")


@pytest.mark.parametrize("after_s", [0.3, 1.5, 3.0])
def test_ctrl_c_while_libraries_and_model_are_loaded(env: dict[str, str], after_s: float) -> None:
    process = subprocess.Popen(
        [*MAGICPIG, "ask", str(LONG), QUESTION, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )
    wait_until_it_computed(process.pid, after_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in err
    # Before the command line is understood nobody knows of --json.
    assert json.loads(out)["finish_reason"] == "interrupted" if out else after_s < 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_answer_is_written(
    book: Path, talker: Path, env: dict[str, str], number: int, status: int
) -> None:
    running = Warm("ask", str(book), "Go on.", "-q", "-n", "8000", "-m", str(talker), env=env)
    first = running.stdout.read(1)
    running.send_signal(number)
    ended, rest, err = running.communicate()
    assert (ended, err) == (status, "")
    answer = first.decode() + rest
    n_words = len(answer.split())
    assert answer == "".join(f" word{i % 500}" for i in range(n_words)) + "\n"
    assert n_words < 8000


def test_a_second_ctrl_c_ends_at_once(env: dict[str, str]) -> None:
    """Inside a kernel, where the first one has to wait, too: tests/cli/test_exits.py."""
    running = Warm("ask", str(LONG), QUESTION, env=env)
    running.until("loaded")
    wait_until_it_computed(running.pid, 1)
    process = psutil.Process(running.pid)
    # Apart by more than what counts as one request; on a busy machine several may arrive as one.
    while process.status() != psutil.STATUS_ZOMBIE:
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
    status, out, err = running.communicate()
    assert (status, out) == (130, "")
    assert err in ("", "magicpig: interrupted before the answer\n")


def test_a_shell_chain_stops_after_ctrl_c(env: dict[str, str]) -> None:
    terminal = Terminal(["bash", "-c", f"{' '.join(MAGICPIG)} ask {LONG} 'What?' && echo yes"], 100, 30, env)
    terminal.wait_for("reading")
    terminal.process.sendintr()
    terminal.finish()
    assert "yes" not in terminal.text.replace("yesterday", "")
    assert "interrupted" in terminal.text
    assert not terminal.cursor_hidden


def test_library_chatter_needs_verbose(book: Path, env: dict[str, str], as_json: dict[str, Any]) -> None:
    """And then nothing is drawn, as libraries may write in between."""
    terminal = Terminal([*MAGICPIG, "ask", str(book), QUESTION, "--verbose"], 120, 30, env)
    assert terminal.finish() == 0
    assert f"\n{as_json['answer']}\n" in terminal.everything
    assert b"\x1b[?2026h" not in terminal.raw


def test_the_terminal_of_a_background_job_is_left_alone() -> None:
    """Standard error on a terminal that is not ours (no controlling one): drawn; never an error."""
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "views" / "play.py"), "It is green.", "0.01"],
        stdout=subprocess.PIPE,
        stderr=slave,
        stdin=subprocess.DEVNULL,
        env=environment(TERM="xterm"),
        start_new_session=True,
        check=False,
    )
    os.close(slave)
    os.close(master)
    assert (done.returncode, done.stdout) == (0, b"It is green.\n")
