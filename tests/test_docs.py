"""Documentation that cannot drift: help texts are generated, and the README names only what exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from magicpig_cli.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SCRIPT = ROOT / "scripts" / "cli_reference.py"


def blocks(text: str) -> list[str]:
    """Fenced and indented code of a page."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)
    indented = re.findall(r"(?:^    [^\n]*\n)+", text, re.M)
    return fenced + indented


def command_lines(text: str) -> list[str]:
    """Every call of magicpig in the code of a page, up to a pipe, a redirection or a comment."""
    calls = [
        call
        for block in blocks(text)
        for line in block.splitlines()
        for call in re.findall(r"(?:^|\| |\$ )\s*(magicpig (?:ask|bench|models|--)[^|>#]*)", line)
    ]
    return [call.strip() for call in calls]


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words call, and the words left for it."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def option_names(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }


def all_commands(command: Any) -> list[Any]:
    return [command, *(c for child in getattr(command, "commands", {}).values() for c in all_commands(child))]


def test_command_reference_is_up_to_date():
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_command_reference_is_what_a_person_sees():
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    shown = subprocess.run(
        [sys.executable, "-m", "magicpig_cli", "ask", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert shown.returncode == 0, shown.stderr
    text = "\n".join(line.rstrip() for line in shown.stdout.splitlines()).strip()
    assert text in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_readme_has_commands_to_check():
    assert len(command_lines(README)) >= 8


@pytest.mark.parametrize(("page", "line"), [(p.name, c) for p in PAGES for c in command_lines(p.read_text())])
def test_command_in_documentation_exists(page, line):
    command, rest = find_command(shlex.split(line))
    assert not hasattr(command, "commands") or all(word.startswith("-") for word in rest), (
        f"{page}: no such command: {line}"
    )
    used = [word.split("=")[0] for word in rest if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)]
    unknown = set(used) - option_names(command)
    assert not unknown, f"{page}: {line}"


def test_every_option_in_the_readme_exists_and_every_option_of_ask_is_in_it():
    known = {name for command in all_commands(typer.main.get_command(app)) for name in option_names(command)}
    prose = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose))
    # Options of other programs that the README calls.
    assert named - known == set()
    ask, _ = find_command(["magicpig", "ask"])
    assert {name for name in option_names(ask) if name.startswith("--")} - named - {"--help"} == set()


def test_readme_and_ci_install_and_test_alike():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install '.[test]'" in README
    assert re.search(r"^pip install .*'\.\[test\]'$", ci, re.M)
    first = re.search(r"^magicpig ask .*$", README, re.M)
    assert first is not None
    source, question = shlex.split(first.group())[2:]
    assert (ROOT / source).is_file()
    assert question in (ROOT / "samples" / "questions.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_exit_statuses_of_the_readme_are_those_of_the_errors():
    from magicpig_cli import errors

    table = {int(status) for status in re.findall(r"^\| (\d+) \| [a-z]", README, re.M)}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    statuses = {c.exit_status for c in classes if issubclass(c, errors.MagicPigError)}
    assert table == statuses | {0, 130, 141}
