"""`magicpig chat` in pipes and on a terminal; a small random model, as what counts is the order of things."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from command import MAGICPIG, environment, one_sentence
from small import lines, small_model
from terminal import Terminal
from warm import magicpig

from magicpig_cli.cli import prompting
from magicpig_cli.errors import UsageError

TEXT = lines(20)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(MAGICPIG_MODEL=str(small_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With a model whose answers last until they are stopped."""
    folder = small_model(tmp_path_factory.mktemp("endless"), endless=True)
    return environment(MAGICPIG_MODEL=str(folder))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def test_questions_in_answers_out(book: Path, env: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.md"
    script = f"Which pump?\n\nHow long?\r\n/stats\n/save {saved}\n/save {saved}\n/reset\nWhich pump?\n"
    script = f"/save /dev/full\n/save a\0b\n/save {book}/x.md\n{script}"
    result = magicpig("chat", str(book), "-n", "20", stdin=script.encode(), env=env)
    first, second, third = (answer.strip("\n") for answer in result.out.split("\n\n"))
    assert first == third != second
    assert result.out.endswith("\n")
    assert not result.out.endswith("\n\n")
    assert result.status == 2  # the second /save
    assert result.err.count("exists already") == 2
    assert result.err.count("cannot be written") == 2
    assert "2 questions" in result.err
    reads = [line for line in result.err.splitlines() if line.startswith("read ")]
    assert len(reads) == 4  # the document, then a question at a time
    assert "of them" not in reads[0]
    assert all("of them from memory" in line for line in reads[1:])
    text = saved.read_text("utf-8")
    assert text.startswith(f"# Questions about {book}\n")
    assert "> Which pump?\n\n" in text
    assert "> How long?\n\n" in text


def test_a_question_that_cannot_be_answered_does_not_end_the_chat(book: Path, env: dict[str, str]) -> None:
    script = f"{'Which pump? ' * 700}\nWhich pump?\n/quit\nNot asked.\n"
    result = magicpig("chat", str(book), "-n", "5", "-q", stdin=script.encode(), env=env)
    assert result.status == 3
    assert one_sentence(result.err)
    assert result.out.count("\n") == 1


def test_what_is_no_text_ends_it(book: Path, env: dict[str, str]) -> None:
    result = magicpig("chat", str(book), "-q", stdin=b"caf\xe9?\n", env=env)
    assert (result.status, result.out) == (2, "")
    assert "line 1" in result.err


def test_a_stream_without_line_ends_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero", encoding="utf-8") as zeros:
        monkeypatch.setattr(sys, "stdin", zeros)
        monkeypatch.setattr(prompting, "LONGEST_LINE_BYTES", 1 << 20)
        with pytest.raises(UsageError, match=r"line 1 of standard input holds more than 1 MiB"):
            prompting.Lines().next()


def test_standard_input_is_no_document_of_a_chat(env: dict[str, str]) -> None:
    result = magicpig("chat", "-", stdin=b"text", env=env)
    assert (result.status, one_sentence(result.err)) == (2, True)


def test_on_a_terminal(book: Path, endless: dict[str, str]) -> None:
    """Line editing, history, Ctrl-C in an answer and at the prompt, commands, Ctrl-D."""
    terminal = Terminal([*MAGICPIG, "chat", str(book), "-n", "7000", "--temperature", "5"], 100, 40, endless)
    terminal.wait_for("leaves.\n>")
    terminal.process.send("Whichx\b pump?\r")
    terminal.wait_for(lambda: b"ms/token" in terminal.raw)  # the panels: it answers
    terminal.process.sendintr()
    terminal.wait_for(lambda: "interrupted after" in terminal.text and terminal.lines[-1].startswith(">"))
    terminal.process.send("dropped")
    terminal.process.sendintr()
    terminal.process.send("/stats\r")
    terminal.wait_for("1 question")
    terminal.process.send("\x1b[A\r")  # the line before: /stats again
    terminal.wait_for(lambda: terminal.everything.count("1 question,") == 2)
    terminal.process.sendeof()
    assert terminal.finish() == 0
    assert not terminal.cursor_hidden
    assert "Traceback" not in terminal.everything


def test_stopped_in_an_answer_and_ended_at_the_prompt(book: Path, endless: dict[str, str]) -> None:
    """Ctrl-Z and `fg`; SIGTERM while the line editor has the terminal in hand."""
    terminal = Terminal(["bash", "--norc", "-i"], 100, 40, endless | {"PS1": "$ "})
    terminal.wait_for("$")
    terminal.process.sendline(f"{' '.join(MAGICPIG)} chat {book} -n 7000 --temperature 5")
    terminal.wait_for("leaves.\n>")
    terminal.process.send("Which pump?\r")
    terminal.wait_for(lambda: "ms/token" in terminal.text)
    terminal.process.send("\x1a")
    terminal.wait_for("Stopped")
    assert not terminal.cursor_hidden
    assert "ms/token" not in terminal.text
    terminal.process.sendline("fg")
    terminal.wait_for(lambda: "ms/token" in terminal.text)
    terminal.process.sendintr()
    terminal.wait_for("interrupted after")
    terminal.wait_for(lambda: terminal.lines[-1].startswith(">"))
    (chat,) = psutil.Process(terminal.process.pid).children()
    os.kill(chat.pid, signal.SIGTERM)
    terminal.wait_for(lambda: terminal.lines[-1].startswith("$"))
    terminal.process.sendline("echo status=$?")
    terminal.wait_for("status=143")
    terminal.process.terminate(force=True)
