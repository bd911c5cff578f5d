"""`--help` of every command, and what the shell offers after TAB: as a person at a terminal meets them."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command import MAGICPIG, ROOT, environment, magicpig, shell
from terminal import Terminal

from magicpig_cli.cli.app import app


def commands(command: Any = None, context: Any = None, name: str = "magicpig") -> Iterator[Any]:
    """Contexts of all commands, groups before their members."""
    command = command or typer.main.get_command(app)
    context = command.make_context(name, [], parent=context, resilient_parsing=True, terminal_width=80)
    yield context
    for child_name, child in getattr(command, "commands", {}).items():
        yield from commands(child, context, child_name)


CONTEXTS = {context.command_path: context for context in commands()}


@pytest.mark.parametrize("path", CONTEXTS)
def test_every_help_has_a_purpose_and_an_example_that_parses(path: str) -> None:
    text = CONTEXTS[path].command.get_help(CONTEXTS[path])
    assert text.startswith(f"Usage: {path} ")
    assert "..." not in re.sub(r"\[?[A-Z]+(?:\[,[A-Z]+)?\.\.\.", "", text), "cut short"
    assert "Examples:" in text
    assert not re.search(r"[{}<]", text.split("Examples:")[0]), "typer's own notation"
    examples = text.split("Examples:")[1].splitlines()
    assert any(path.removesuffix(" ") in line for line in examples)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_options_stand_under_headings() -> None:
    text = CONTEXTS["magicpig ask"].command.get_help(CONTEXTS["magicpig ask"])
    headings = re.findall(r"^([A-Z][a-z ]+):$", text, re.M)
    assert headings == ["Model and machine", "Document", "Attention", "Answer", "Other options"]
    assert text.index("Attention:") < text.index("--bits") < text.index("Answer:") < text.index("--top-p")


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_help_fits_the_terminal(columns: int) -> None:
    for command in ([], ["ask"]):
        result = magicpig(*command, "--help", env=environment(COLUMNS=str(columns)))
        assert result.status == 0
        assert "\x1b" not in result.out
        prose = result.out.split("Examples:")[0]
        assert max(map(len, prose.splitlines())) <= columns


def test_help_whose_reader_left_is_silent() -> None:
    result = shell("magicpig ask --help | true")
    assert (result.status, result.err) == (141, "")
    assert shell("magicpig --help >&-").err == ""
    full = shell("magicpig --help > /dev/full")
    assert (full.status, "Traceback" in full.err) == (1, False)


def test_help_and_refusals_answer_in_a_quarter_of_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("The crane is green.\n")

    def seconds(*command: str) -> float:
        """Of the processor: what else runs on this machine doesn't count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, env=environment(), check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    torch = seconds("-c", "import torch")
    assert seconds("-m", "magicpig_cli", "--help") < torch / 4
    assert (
        seconds("-m", "magicpig_cli", "ask", str(tmp_path / "book.txt"), "What?", "--bits", "0") < torch / 4
    )


@pytest.fixture(scope="module")
def path_with_magicpig(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which `magicpig` is the command, as after an installation."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "magicpig"
    script.write_text(f'#!/bin/sh\nexec {" ".join(MAGICPIG)} "$@"\n')
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


COMPLETE = """
eval "$(magicpig --show-completion)"
offered() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _magicpig_completion magicpig; echo "${COMPREPLY[*]}"; }
offered magicpig mo
offered magicpig ask book.txt --attention l
offered magicpig ask --dtype b
offered magicpig chat -m llama-3.1
offered magicpig models pull sm
offered magicpig eval --methods dense,qu
offered magicpig eval --tasks niah,m
offered magicpig cache rm ""
"""  # noqa: E501 - a line of shell


def test_the_shell_offers_what_options_take(path_with_magicpig: str, tmp_path: Path) -> None:
    env = environment(PATH=path_with_magicpig, MAGICPIG_CACHE=str(tmp_path), SHELL="/bin/bash")
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.stderr == ""
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["models"],
        ["lsh", "lsh-published"],
        ["bfloat16"],
        ["llama-3.1-8b"],
        ["smollm2-135m"],
        ["dense,quest"],
        ["niah,multikey", "niah,multivalue", "niah,multiquery"],
        [],
    ]


def test_tab_in_a_real_shell(path_with_magicpig: str, tmp_path: Path) -> None:
    (tmp_path / "booklet.txt").write_text("The crane is green.\n")
    env = environment(PATH=path_with_magicpig, PS1="$ ", SHELL="/bin/bash")
    terminal = Terminal(["bash", "--norc", "-i"], 100, 20, env)
    terminal.wait_for("$")
    terminal.process.sendline(f'cd {tmp_path}; eval "$(magicpig --show-completion)"; clear; echo ready')
    terminal.wait_for("ready\n$")
    terminal.process.send("magicpig as\tbookl\t--attention qu\t")
    terminal.wait_for("magicpig ask booklet.txt --attention quest")
    terminal.process.terminate(force=True)


def test_usage_imports_nothing_heavy(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("The crane is green.\n")
    script = (
        "import sys; from magicpig_cli.cli.app import main\n"
        "try: main()\n"
        "finally: print([m for m in ('torch', 'transformers', 'numba', 'numpy') if m in sys.modules])"
    )
    for arguments in (["--help"], ["ask", "--help"], ["ask", str(book), "What?", "--bits", "0"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            env=environment(),
            cwd=ROOT,
            check=False,
        )
        assert done.stdout.decode().endswith("[]\n")
