"""`--cite` as people meet it: the place of a fact in a Markdown text, a PDF, several files and a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command import environment, one_sentence
from fpdf import FPDF
from warm import magicpig

import magicpig_cli.views

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())
FACT = "The colour of the harbour crane is green."
QUESTION = "What is the colour of the harbour crane?"
BEFORE = (
    "The village lies at the end of a long road. Most houses stand empty in winter. "
    "The baker opens at six and closes at noon."
)
BEHIND = "The ferry comes on Mondays. It brings flour, letters and sometimes a guest. Nobody stays for long."
NOTES = (
    f"# The village\n\n{BEFORE}\n\n## The harbour\n\n{BEHIND} {FACT} The tide is high at four.\n\n{BEHIND}\n"
)


def pdf(*pages: str) -> bytes:
    document = FPDF()
    document.set_font("helvetica", size=12)
    for page in pages:
        document.add_page()
        document.multi_cell(150, 7, page)
    return bytes(document.output())


@pytest.fixture(scope="module")
def env(embedded_folder: Path) -> dict[str, str]:
    return environment(MAGICPIG_MODEL=str(embedded_folder))


def asked(*arguments: str, env: dict[str, str], stdin: bytes | None = None) -> dict[str, Any]:
    result = magicpig("ask", *arguments, QUESTION, "--cite", "--json", "-q", "-n", "24", env=env, stdin=stdin)
    assert (result.status, result.err) == (0, "")
    value: dict[str, Any] = json.loads(result.out)
    jsonschema.validate(value, SCHEMA)
    assert "green" in value["answer"]
    return value


def place(value: dict[str, Any]) -> dict[str, Any]:
    """The citation that holds the fact."""
    found: list[dict[str, Any]] = [c for c in value["citations"] if FACT in c["quotation"]]
    assert len(found) == 1
    return found[0]


def test_a_pipe_gets_the_answer_and_people_the_places(tmp_path: Path, env: dict[str, str]) -> None:
    """Second question from the index: nothing is read again, and the places are the same."""
    notes = tmp_path / "notes.md"
    notes.write_text(NOTES)
    kept = env | {"MAGICPIG_CACHE": str(tmp_path / "cache")}
    kept.pop("MAGICPIG_NO_CACHE")
    arguments = ("ask", str(notes), QUESTION, "--cite", "-n", "24")
    first, second = magicpig(*arguments, env=kept), magicpig(*arguments, env=kept)
    plain = magicpig("ask", str(notes), QUESTION, "-n", "24", env=kept)
    assert first.out == second.out == plain.out
    assert "from the index" in second.err
    cited = [
        [line for line in r.err.splitlines() if line[:3] in ("1. ", "2. ", "3. ")] for r in (first, second)
    ]
    assert cited[0] == cited[1]
    assert any(f"{notes}:7 (The harbour), " in line and FACT in line for line in cited[0])
    assert "most attended to" not in plain.err


def test_standard_input_has_lines(env: dict[str, str]) -> None:
    cited = place(asked("-", env=env, stdin=NOTES.encode()))
    assert (cited["source"], cited["first_line"], cited["first_page"]) == ("standard input", 7, None)
    assert NOTES[cited["start"] : cited["end"]] in cited["quotation"]


def test_a_pdf_has_pages(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(pdf(BEFORE, f"{BEHIND}\n{FACT}", BEHIND))
    assert place(asked(str(path), env=env))["first_page"] == 2
    cited = place(asked(str(path), "--pages", "2-3", env=env))
    assert (cited["first_page"], cited["last_page"]) == (2, 2)


def test_one_of_several_files(tmp_path: Path, env: dict[str, str]) -> None:
    for name, text in (("a.txt", BEFORE), ("b.txt", f"{FACT}\n"), ("c.txt", BEHIND)):
        (tmp_path / name).write_text(text)
    value = asked(*(str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")), env=env)
    assert place(value)["source"] == str(tmp_path / "b.txt")


@pytest.mark.parametrize("command", [("ask", "x.txt", "Why?"), ("chat", "x.txt")])
def test_places_that_nobody_would_see_are_refused(command: tuple[str, ...]) -> None:
    result = magicpig(*command, "--cite", "--quiet")
    assert (result.status, result.out) == (2, "")
    assert one_sentence(result.err)
    assert "--quiet" in result.err
