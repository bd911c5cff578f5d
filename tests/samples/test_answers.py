"""A real model on the whole sample: sampled attention finds what exact attention finds.

The document is read once; every question continues from its end (benchmarks/sample_questions.py).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sample_questions.py"
MAX_SHARE = 0.10


@pytest.fixture(scope="module")
def script():
    """The benchmark as a module: the test asks with the very code whose figures are published."""
    spec = importlib.util.spec_from_file_location("sample_questions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers(script):
    """Answers to every planted question: {method: [Answer]}."""
    questions = script.load_questions()
    return {method: script.ask_all(questions, method) for method in ("dense", "lsh")}


def test_exact_attention_answers_nearly_all(answers):
    wrong = [(a.question, a.text) for a in answers["dense"] if not a.right]
    assert len(wrong) <= len(answers["dense"]) // 10, wrong


def test_sampled_attention_answers_what_exact_attention_answers(answers):
    """At least nine of ten; a sample can miss, but not often."""
    pairs = list(zip(answers["dense"], answers["lsh"], strict=True))
    found = [(exact, sampled) for exact, sampled in pairs if exact.right]
    missed = [(sampled.question, sampled.text) for _, sampled in found if not sampled.right]
    assert len(found) >= 12
    assert len(missed) <= len(found) // 10, missed


def test_facts_of_every_part_are_found(answers):
    for where in ("start", "middle", "end"):
        assert sum(a.right for a in answers["lsh"] if a.where == where) >= 3


def test_a_small_share_of_keys_is_read(answers):
    shares = [a.sampled_share for a in answers["lsh"]]
    assert all(0 < share <= MAX_SHARE for share in shares), shares
    assert all(0 < a.estimated_error < 1 for a in answers["lsh"])
