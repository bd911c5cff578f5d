"""The planted facts of the sample: each stands once in the text, where questions.json says, and is found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
TEXT = (SAMPLES / "keepers-book.md").read_text(encoding="utf-8")
QUESTIONS = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["answer"][0])
def test_fact_stands_once_where_it_is_said_to(question):
    fact = question["fact"]
    assert TEXT.count(fact) == 1
    place = TEXT.index(fact) / len(TEXT)
    assert place == pytest.approx(question["fraction"], abs=0.001)
    assert question["where"] == ("start" if place < 1 / 3 else "middle" if place < 2 / 3 else "end")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["answer"][0])
def test_the_answer_cannot_be_taken_from_anywhere_else(question):
    told = [m for answer in question["answer"] for m in re.findall(rf"\b{re.escape(answer)}\b", TEXT, re.I)]
    assert len(told) == 1
    assert any(answer in question["fact"] for answer in question["answer"])
    assert not any(answer.lower() in question["question"].lower() for answer in question["answer"])


def test_facts_are_spread_over_the_text():
    assert len(QUESTIONS) >= 12
    for where in ("start", "middle", "end"):
        assert sum(question["where"] == where for question in QUESTIONS) >= 4
    assert len({question["question"] for question in QUESTIONS}) == len(QUESTIONS)


def test_nothing_in_the_sample_is_an_unfinished_line():
    assert not re.search(r"TODO|lorem|\s$|  ", TEXT.rstrip("\n"), re.I)
    assert TEXT.isascii(), "the plain sample reads the same in every encoding"
