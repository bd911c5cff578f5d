"""Tasks are what RULER says they are, fill the context and not more, and are scored as RULER does."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from small import small_model

from magicpig_cli.bench.text import reading_text
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.errors import UsageError
from magicpig_cli.evaluate.problems import Prompter
from magicpig_cli.evaluate.tasks import TASKS, Haystack, Problem

HAYSTACK = Haystack.of(reading_text(60_000))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = small_model(tmp_path_factory.mktemp("small") / "model", max_position_embeddings=16384)
    return Engine.load(EngineSettings(model=str(folder), offline=True))


def made(task: str, size: int = 40, number: int = 0) -> Problem:
    return TASKS[task](Random(f"{task} {number}"), HAYSTACK, size, number)


def test_the_command_offers_every_task() -> None:
    from magicpig_cli.cli.evaluate import TASKS as OFFERED

    assert (*TASKS, "error", "kl") == OFFERED


def test_recall_counts_found_strings() -> None:
    problem = Problem("", "", "", ("Alpha", "beta", "gamma"), 1)
    assert problem.score("ALPHA and gammas") == pytest.approx(2 / 3)
    assert problem.score("none") == 0.0
    assert Problem("", "", "", ("a1", "b2"), 1, any_of_them=True).score("it is b2") == 1.0


@pytest.mark.parametrize(
    ("task", "keys", "answers"),
    [("niah", 1, 1), ("multikey", 4, 1), ("multivalue", 1, 4), ("multiquery", 4, 4)],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_needles(task: str, keys: int, answers: int, number: int) -> None:
    problem = made(task, number=number)
    needles = re.findall(r"One of the special magic (\w+)s for ([\w-]+) is: ([\w-]+)\.", problem.document)
    assert len({key for _, key, _ in needles}) == keys
    assert len(needles) == max(keys, answers)
    asked = [value for _, key, value in needles if key in problem.question]
    assert sorted(asked) == sorted(problem.answers)
    assert len(problem.answers) == answers
    kinds = {
        "number": r"\d{7}",
        "word": r"[a-z]+-[a-z]+",
        "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    }
    kind = ("number", "word", "uuid")[number] if task == "niah" else "number"
    assert all(re.fullmatch(kinds[kind], value) for value in problem.answers)
    assert not any(value in problem.question + problem.answer_start for value in problem.answers)


def test_variable_tracking_follows_the_chain() -> None:
    problem = made("vt")
    assigned = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", problem.document))
    value = re.findall(r"value (\d+)", problem.question)[0]

    def resolved(name: str) -> str:
        return resolved(assigned[name]) if assigned[name] in assigned else assigned[name]

    assert sorted(name for name in assigned if resolved(name) == value) == sorted(problem.answers)
    assert len(problem.answers) == 5
    places = [problem.document.index(f"VAR {name} =") for name in problem.answers]
    assert places == sorted(places)


def test_common_words_are_the_most_common() -> None:
    problem = made("cwe")
    entries = re.findall(r"\d+\. (\S+)", problem.document.split("Below is")[2])
    counts = Counter(entries).most_common()
    assert {word for word, _ in counts[:10]} == set(problem.answers)
    assert {count for _, count in counts[:10]} == {30}
    assert {count for _, count in counts[10:]} == {3}
    assert len(counts) == 50


def test_frequent_words_are_the_most_frequent_but_for_the_noise() -> None:
    problem = made("fwe", size=500)
    counts = Counter(problem.document.split("\n")[1].split()).most_common()
    assert counts[0][0] == "..."
    assert [word for word, _ in counts[1:4]] == list(problem.answers)
    assert counts[1][1] == pytest.approx(counts[0][1] / 4, abs=1)


def test_the_answer_of_qa_stands_in_one_passage() -> None:
    problem = made("qa")
    subject = re.findall(r"(?:the|The) ([A-Z]\w+ [A-Z]\w+)", problem.question)[0]
    passages = [p for p in problem.document.split("\n\n") if problem.answers[0] in p]
    assert len(passages) == 1
    assert subject in passages[0]
    assert problem.any_of_them


@pytest.mark.parametrize("task", TASKS)
def test_a_problem_fills_the_context(engine: Engine, task: str) -> None:
    ctx = 12_000 if task == "cwe" else 3_000  # one token per byte
    prompter = Prompter(engine, HAYSTACK, ctx, 0)
    prompted = prompter.problem(task, 3)
    used = len(prompted.token_ids) + prompted.problem.max_tokens
    assert ctx - 900 < used <= ctx
    assert prompter.problem(task, 3) == prompted
    assert prompter.problem(task, 4) != prompted
    text = engine.loaded.tokenizer.decode(list(prompted.token_ids))
    assert text.endswith(prompted.problem.answer_start)
    assert prompted.problem.question in text


def test_a_context_too_small_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"the task cwe needs [\d,]+ tokens, but --ctx is 1,000"):
        Prompter(engine, HAYSTACK, 1000, 0).problem("cwe", 0)


def test_a_text_too_short_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="give a longer one with --text"):
        Haystack.of("Only this. And that.")
    with pytest.raises(UsageError, match="the text has 40 tokens"):
        Prompter(engine, HAYSTACK, 3000, 0).excerpt("x" * 40, 0, 300)


def test_excerpts_start_as_a_prompt_does(engine: Engine) -> None:
    prompter = Prompter(engine, HAYSTACK, 3000, 0)
    ids: Any = prompter.excerpt("abc " * 2000, 0, 300)
    assert len(ids) == 300
    assert engine.loaded.tokenizer.decode(list(ids)).startswith("<|im_start|>user\n")
