"""Models that think before they answer: standard output gets the answer alone."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from scripted import OPENED, scripted_model
from warm import magicpig

import magicpig_cli.views

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("The crane in the harbour is green.\n")
    return path


def test_an_end_of_reasoning_that_the_template_began(book: Path, tmp_path: Path) -> None:
    model = str(scripted_model(tmp_path / "model", ["a", "</think>", "b"], OPENED))
    result = magicpig("ask", str(book), "Which?", "-m", model)
    assert (result.status, result.out) == (0, "b\n")
    result = magicpig("ask", str(book), "Which?", "-m", model, "--json", "-q")
    value = json.loads(result.out)
    jsonschema.validate(value, SCHEMA)
    assert (value["answer"], value["reasoning"], value["finish_reason"]) == ("b", "a", "stop")


def test_thoughts_that_take_all_of_the_tokens_are_no_answer(book: Path, tmp_path: Path) -> None:
    model = scripted_model(tmp_path / "model", ["a", " long", " way", "</think>", "b"], OPENED)
    result = magicpig("ask", str(book), "Which?", "-m", str(model), "-n", "3")
    assert (result.status, result.out) == (0, "\n")
    assert "magicpig: the model was still reasoning after 3 tokens; raise --max-tokens (-n)\n" in result.err
