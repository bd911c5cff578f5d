"""`magicpig outline`, and `ask` about a part: what they print, and that nothing is chosen in silence."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from command import ROOT, environment, one_sentence
from warm import magicpig

import magicpig_cli.views
from magicpig_cli.cli.outline import as_object, table
from magicpig_cli.documents import read_sources
from magicpig_cli.engine.outline import outline

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())
NOTES = ROOT / "samples" / "notes.md"
SLIPWAY = "## 1. Slipway"


@pytest.fixture(scope="module")
def env(embedded_folder: Path) -> dict[str, str]:
    return environment(MAGICPIG_MODEL=str(embedded_folder))


@pytest.fixture
def long_book(tmp_path: Path) -> Path:
    chapters = [
        f"CHAPTER {number}\n\n" + "The weather was of no note that day.\n" * lines + "\n"
        for number, lines in ((1, 100), (2, 1500), (3, 200))
    ]
    path = tmp_path / "long.txt"
    path.write_text("A LONG BOOK\n\n" + "".join(chapters))
    return path


def slipway() -> str:
    text = NOTES.read_text()
    start = text.index(SLIPWAY)
    return text[start : text.index("\n## ", start) + 1]


def test_show_text_is_the_part_to_the_byte() -> None:
    result = magicpig("ask", str(NOTES), "--show-text", "--section", "slipway")
    assert (result.status, result.out) == (0, slipway())
    assert 'only section "1. Slipway" is read, lines 5 to 11' in result.err
    lines = NOTES.read_text().splitlines(keepends=True)
    result = magicpig("ask", str(NOTES), "--show-text", "--lines", "2:5", "-q")
    assert (result.status, result.out, result.err) == (0, "".join(lines[1:5]), "")
    result = magicpig("ask", "-", "--show-text", stdin=b"no line end")
    assert (result.status, result.out) == (0, "no line end")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--section", "Slipwaz 7"), "has no section"),
        (("--pages", "1-2"), "has no pages"),
        (("--lines", "9:4"), "first is after its last"),
        (("--lines", "1:2", "--section", "x"), "name different parts"),
    ],
)
def test_a_part_that_is_none_is_refused_before_a_model_is_loaded(arguments, says) -> None:
    result = magicpig("ask", str(NOTES), "Why?", *arguments, "-m", "no-such-model")
    assert (result.status, result.out) == (2, "")
    assert one_sentence(result.err)
    assert says in result.err


def test_asking_about_a_section(env: dict[str, str]) -> None:
    result = magicpig(
        "ask",
        str(NOTES),
        "Who repairs it?",
        "--section",
        "slipway",
        "--json",
        "-n",
        "2",
        "--no-cache",
        env=env,
    )
    assert result.status == 0
    value = json.loads(result.out)
    jsonschema.validate(value, SCHEMA)
    (document,) = value["documents"]
    assert document["part"]["label"] == 'section "1. Slipway"'
    assert (document["characters"], document["part"]["of_characters"]) == (
        len(slipway()),
        len(NOTES.read_text()),
    )
    assert any("only section" in notice for notice in value["notices"])
    assert "only section" in result.err


def test_outline_tells_what_fits(long_book: Path, embedded_folder: Path, env: dict[str, str]) -> None:
    result = magicpig("outline", str(long_book), "--json", env=env)
    assert (result.status, result.err) == (0, "")
    value = json.loads(result.out)
    (document,) = value["documents"]
    assert [(p["title"], p["kind"], p["fits"]) for p in document["parts"]] == [
        ("CHAPTER 1", "chapter", True),
        ("CHAPTER 2", "chapter", False),
        ("CHAPTER 3", "chapter", True),
    ]
    assert (value["fits"], document["fits"]) == (False, False)
    assert sum(p["tokens"] for p in document["parts"]) <= document["tokens"] == value["tokens"]
    assert value["room_tokens"] < value["model"]["context_tokens"] == 8192

    measured = outline(
        read_sources([str(long_book)], None),
        str(embedded_folder),
        offline=True,
        device_kind="cpu",
        progress=lambda phase, done, total: None,
        notice=lambda sentence: None,
    )
    assert as_object(measured) == value
    lines = "".join(table(measured)).splitlines()
    assert "3 sections, 2 of them fit" in lines[0]
    assert "the whole does not fit" in lines[-1]
    row = next(line for line in lines if line.endswith("CHAPTER 3")).split()
    assert row[:2] == ["3", f"{document['parts'][2]['tokens']:,}"]
    assert row[3] == "yes"


def test_a_refusal_names_the_sections_that_fit(long_book: Path, env: dict[str, str]) -> None:
    result = magicpig("ask", str(long_book), "What was of note?", env=env)
    assert (result.status, result.out) == (3, "")
    sentence = result.err.splitlines()[-1]
    assert 'these sections fit: "CHAPTER 1" (' in sentence
    assert '"CHAPTER 3" (' in sentence
    assert "CHAPTER 2" not in sentence
    assert f"magicpig outline {long_book}" in sentence
