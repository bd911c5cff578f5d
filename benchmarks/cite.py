"""Whether `--cite` finds the place of a planted fact: among how many, by way of weighing attention.

    python benchmarks/cite.py [--set short|tasks|needles|sample] [--attention METHOD] [--model MODEL] [--json]

Without --set all four: `short` are texts of some 400 tokens, `tasks` problems of `magicpig eval`, `needles`
facts in Python's language reference, `sample` the questions of samples/questions.json. Each document is read
once; every way sees the same decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import torch

from magicpig_cli.attention.base import Weighed
from magicpig_cli.attention.registry import MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.bench.text import reading_text
from magicpig_cli.documents import Document, read_sources
from magicpig_cli.engine.citing import Citing, watched
from magicpig_cli.engine.decode import decode
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.engine.events import Finished, Passage, Token
from magicpig_cli.engine.passages import find_passages
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.prompt import Prompt, PromptBuilder
from magicpig_cli.engine.reasoning import answer_text
from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.engine.step import make_step
from magicpig_cli.evaluate.problems import Prompter
from magicpig_cli.evaluate.tasks import Haystack
from magicpig_cli.evaluate.words import distinct_pairs
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.profiles import dense_layers

SAMPLES = Path(__file__).parents[1] / "samples"
SHORT_TEXTS = Path(__file__).with_name("short_texts.json")
ANSWER_TOKENS = 32
# A question, the fact that answers it, and its value: k is a pair of words, v the value.
FORMS = (
    ("What is the special magic number for {k}?", "One of the special magic numbers for {k} is: {v}."),
    ("What is the code of the {k} vault?", "Nobody may forget that the code of the {k} vault is {v}."),
    ("In which year was the {k} tower built?", "The {k} tower was built in {v}, before the war."),
    ("Who keeps the {k} lighthouse?", "The {k} lighthouse stands alone. It is kept by {p}."),
    ("Who built the {k} bridge?", "The {k} bridge crosses the river twice. It was built by {p}."),
    ("What is the name of the {k} ship's captain?", "The captain of the {k} ship is called {p}."),
)
NAMES = ("Ada Lund", "Bruno Farrow", "Clara Giles", "Dario Corso", "Edith Keller", "Felix Brandt")
NEEDLE_DOCUMENTS, NEEDLE_SENTENCES = 4, 70
# Tasks of `magicpig eval` that one place answers, problems of each, and tokens of prompt and answer.
TASKS, PROBLEMS, TASK_TOKENS = ("niah", "multikey", "qa"), 2, 1_500
HAYSTACK_CHARACTERS = 400_000


@dataclass(frozen=True, slots=True)
class Planted:
    """A document and its facts: question, the fact as it stands in the text, accepted answers."""

    document: Document
    facts: tuple[tuple[str, str, tuple[str, ...]], ...]


def sample() -> list[Planted]:
    """The sample of the repository."""
    (document,) = read_sources([str(SAMPLES / "keepers-book.md")], None)
    questions = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))
    return [Planted(document, tuple((q["question"], q["fact"], tuple(q["answer"])) for q in questions))]


def short() -> list[Planted]:
    """Short texts, in which much is attended to whatever is asked; the first is one of the repository."""
    made = []
    for one in json.loads(SHORT_TEXTS.read_text(encoding="utf-8")):
        text = one.get("text") or (SAMPLES / one["name"]).read_text(encoding="utf-8")
        facts = tuple((q["question"], q["fact"], tuple(q["answer"])) for q in one["questions"])
        made.append(Planted(Document(one["name"], text, "utf-8"), facts))
    return made


def tasks(engine: Engine, seed: int = 0) -> list[Planted]:
    """Problems of `magicpig eval`, asked as `ask` would; the fact is the sentence or line with the answer."""
    haystack = Haystack.of(reading_text(HAYSTACK_CHARACTERS))
    prompter = Prompter(engine, haystack, TASK_TOKENS, seed)
    made = []
    for task in TASKS:
        for number in range(PROBLEMS):
            problem = prompter.problem(task, number).problem
            text, answer = problem.document, problem.answers[0]
            at = text.index(answer)
            before = "\n" if task == "qa" else "One of the special"
            start = text.rindex(before, 0, at) + (1 if task == "qa" else 0)
            fact = text[start : at + len(answer) + 1]
            document = Document(f"{task} {number}", text, "utf-8")
            made.append(Planted(document, ((problem.question, fact, problem.answers),)))
    return made


def needles(seed: int = 0) -> list[Planted]:
    """Documents of our own making, other than the sample in text, form and length."""
    haystack = Haystack.of(reading_text(HAYSTACK_CHARACTERS))
    made = []
    for number in range(NEEDLE_DOCUMENTS):
        random = Random(f"{seed} {number}")
        sentences = haystack.passage(random, NEEDLE_SENTENCES)
        facts = []
        keys = distinct_pairs(random, len(FORMS))
        places = sorted(random.sample(range(len(sentences)), len(FORMS)), reverse=True)
        for (question, fact), key, place in zip(random.sample(FORMS, len(FORMS)), keys, places, strict=True):
            value = str(random.randint(1000, 1999))
            name = random.choice(NAMES)
            filled = {"k": key.replace("-", " "), "v": value, "p": name}
            sentences.insert(place, fact.format(**filled))
            answer = name if "{p}" in fact else value
            facts.append((question.format(**filled), fact.format(**filled), (answer,)))
        text = "\n\n".join(" ".join(sentences[i : i + 6]) for i in range(0, len(sentences), 6))
        made.append(Planted(Document(f"needles {number}", text, "utf-8"), tuple(facts)))
    return made


class Recorder:
    """Keeps all weights of a decoding (an `attention.session.Watcher`), and hands them on to a `Citing`."""

    def __init__(self, citing: Citing, prompt: Prompt) -> None:
        self._citing = citing
        self._stop = prompt.prefix_tokens
        self._start = self._stop - prompt.document_tokens
        self.steps: list[dict[int, np.ndarray]] = []
        """For each step, layer to weights of the document's tokens, float16, (n_q_heads, n)."""
        self.citing_s = 0.0

    def wants(self, layer: int) -> bool:
        return True

    def attended(self, layer: int, weighed: list[Weighed]) -> None:
        if not self.steps or layer in self.steps[-1]:
            self.steps.append({})
        rows = []
        for part in weighed:
            inside = (part.tokens >= self._start) & (part.tokens < self._stop)
            row = np.zeros((len(part.weights), self._stop - self._start), np.float16)
            row[:, part.tokens[inside] - self._start] = part.weights[:, inside]
            rows.append(row)
        self.steps[-1][layer] = np.concatenate(rows)
        if self._citing.wants(layer):
            started = perf_counter()
            self._citing.attended(layer, weighed)
            self.citing_s += perf_counter() - started


Rule = Callable[[np.ndarray], np.ndarray]


def _contrast(weights: np.ndarray) -> np.ndarray:
    """What a head gives a token beyond its mean over the steps: a head that always looks there gives none."""
    return np.maximum(weights - weights.mean(axis=0), 0.0)


# From weights of one layer, (steps, n_q_heads, n), to scores of tokens, (n,). In use are the peaks, squared
# (`engine.citing`), from which the smallest weights are left out.
RULES: dict[str, Rule] = {
    "sum of weights": lambda w: w.sum(axis=(0, 1)),
    "squares": lambda w: (w**2).sum(axis=(0, 1)),
    "cubes": lambda w: (w**3).sum(axis=(0, 1)),
    "beyond the mean over steps, squared": lambda w: (_contrast(w) ** 2).sum(axis=(0, 1)),
    "highest over steps, squared": lambda w: (w.max(axis=0) ** 2).sum(axis=0),
    "highest minus mean, squared": lambda w: ((w.max(axis=0) - w.mean(axis=0)) ** 2).sum(axis=0),
    "highest minus mean, cubed": lambda w: ((w.max(axis=0) - w.mean(axis=0)) ** 3).sum(axis=0),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question: whether its answer was right; by rule, the rank of the fact's place, 0 if not cited."""

    question: str
    answer: str
    right: bool
    ranks: dict[str, int]
    cite_ms_per_step: float


@torch.inference_mode()
def ask_all(engine: Engine, planted: Planted, attention: str) -> list[Outcome]:
    """Read a document once and ask all of its questions."""
    model, tokenizer, chunk = engine.loaded.model, engine.loaded.tokenizer, engine.settings.chunk_tokens
    prompts = PromptBuilder(tokenizer, engine.model_id, engine.loaded.context_tokens)
    documents = [planted.document]
    prefix = prompts.prefix(documents, None)
    exact = dense_layers(engine.n_layers)
    method = build_method(attention, MethodOptions(prefix.prefix_tokens, exact))
    session = Session(method, engine.n_layers, prefix.prefix_tokens + 256, engine.device)
    for _ in prefill(model, session, prefix.token_ids, chunk):
        pass
    mark = session.mark()
    starts = prompts.token_starts(planted.document)
    outcomes = []
    for question, fact, accepted in planted.facts:
        session.rewind(mark)
        prompt = prompts.build(documents, question, None)
        reading = prefill(model, session, prompt.token_ids[prefix.prefix_tokens :], chunk)
        logits = _returned(reading)
        citing = Citing(prompts, documents, prompt, method)
        recorder, answer = Recorder(citing, prompt), ""
        step, text = make_step(model, session), answer_text(tokenizer, prompt.reasoning_open)
        with watched(session, recorder):
            for event in decode(
                logits, step, session.stats, Sampler(), text, engine.loaded.stop_ids, ANSWER_TOKENS, 0.0
            ):
                answer += event.text if isinstance(event, Token) else ""
                answer += event.tail if isinstance(event, Finished) else ""
        at = planted.document.text.index(fact)
        place = (at, at + len(fact))
        found = {"in use": citing.cited(3).passages}
        sampled = [layer for layer in recorder.steps[0] if layer not in exact or attention == "dense"]
        for name, rule in RULES.items():
            scores = np.zeros(prompt.document_tokens)
            for layer in sampled:
                scores += rule(np.stack([s[layer] for s in recorder.steps]).astype(np.float32))
            found[name] = find_passages(documents, [starts], [scores], 3)
        outcomes.append(
            Outcome(
                question,
                answer,
                any(a.lower() in answer.lower() for a in accepted),
                {name: _rank(passages, place) for name, passages in found.items()},
                1e3 * recorder.citing_s / len(recorder.steps),
            )
        )
        print(f"{outcomes[-1].ranks['in use']} {question} {answer!r}", file=sys.stderr)
    return outcomes


def _returned(reading: object) -> torch.Tensor:
    while True:
        try:
            next(reading)  # type: ignore[call-overload]
        except StopIteration as done:
            logits: torch.Tensor = done.value
            return logits


def _rank(passages: Sequence[Passage], place: tuple[int, int]) -> int:
    ranks = (i for i, p in enumerate(passages, 1) if p.start < place[1] and p.end > place[0])
    return next(ranks, 0)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """By rule, how often the fact's place was cited: of all questions, and of those answered rightly."""
    right = [outcome for outcome in outcomes if outcome.right]
    hits = {}
    for name in outcomes[0].ranks:
        everywhere, answered = ([o.ranks[name] for o in some] for some in (outcomes, right))
        hits[name] = {
            "at_1": sum(rank == 1 for rank in everywhere),
            "at_3": sum(rank > 0 for rank in everywhere),
            "right_at_1": sum(rank == 1 for rank in answered),
            "right_at_3": sum(rank > 0 for rank in answered),
        }
    return {
        "questions": len(outcomes),
        "right": len(right),
        "cite_ms_per_step": float(np.median([outcome.cite_ms_per_step for outcome in outcomes])),
        "hits": hits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=("short", "tasks", "needles", "sample"), action="append")
    parser.add_argument("--attention", default="lsh")
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings = EngineSettings(model=arguments.model, attention=arguments.attention, threads=arguments.threads)
    engine = Engine.load(settings)
    makers = {"short": short, "tasks": lambda: tasks(engine), "needles": needles, "sample": sample}
    for name in arguments.set or makers:
        outcomes = [o for one in makers[name]() for o in ask_all(engine, one, arguments.attention)]
        result = summary(outcomes)
        if arguments.json:
            print(json.dumps({"set": name} | result), flush=True)
            continue
        print(f"{name}: {result['questions']} questions, {result['right']} answered rightly")
        print(f"{'':36} {'of all:':>7} first, of three; rightly answered: first, of three")
        for rule, hit in result["hits"].items():
            counts = (hit["at_1"], hit["at_3"], hit["right_at_1"], hit["right_at_3"])
            print(f"{rule:36} " + " ".join(f"{count:7}" for count in counts), flush=True)


if __name__ == "__main__":
    main()
