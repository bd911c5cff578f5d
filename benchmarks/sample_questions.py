"""Ask the sample's planted questions with exact and with sampled attention, and print both side by side.

    python benchmarks/sample_questions.py [--model MODEL] [--attention dense lsh ...] [--json]

The document is read once, with the engine of `magicpig ask`, and kept as that keeps it, for all methods: what
reading gives does not depend on them. Every further question comes back to the end of the document.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magicpig_cli.documents import read_sources
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Finished, Token
from magicpig_cli.models.catalog import EMBEDDED

SAMPLES = Path(__file__).parents[1] / "samples"
# Answers of the embedded model are one sentence, or it repeats itself without end.
ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """What one method answered to one question; `sampled_share` is None where nothing is sampled."""

    question: str
    where: str
    method: str
    text: str
    right: bool
    sampled_share: float | None
    estimated_error: float | None
    decode_ms_per_token: float | None


def load_questions() -> list[dict[str, Any]]:
    """The planted questions of the sample."""
    questions: list[dict[str, Any]] = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))
    return questions


def ask_all(questions: Sequence[dict[str, Any]], method: str, model: str = EMBEDDED) -> list[Answer]:
    """Greedy answers of one method.

    Parameters
    ----------
    questions : sequence of dict
        Entries of samples/questions.json.
    method : str
        A name of `attention.registry.METHODS`.
    model : str
        As `--model` takes it.
    """
    documents = read_sources([str(SAMPLES / "keepers-book.md")], None)
    engine = Engine.load(EngineSettings(model=model, attention=method, cache=True))
    answers = []
    for planted in questions:
        text = ""
        for event in engine.generate(AskRequest(documents, planted["question"], max_tokens=ANSWER_TOKENS)):
            if isinstance(event, Token):
                text += event.text
            elif isinstance(event, Finished):
                finished = event
        text += finished.tail
        answers.append(
            Answer(
                question=planted["question"],
                where=planted["where"],
                method=method,
                text=text,
                right=is_right(text, planted["answer"]),
                sampled_share=finished.sampled_share,
                estimated_error=finished.estimated_error,
                decode_ms_per_token=finished.decode_ms_per_token,
            )
        )
    return answers


def is_right(text: str, accepted: Sequence[str]) -> bool:
    """Whether an accepted answer stands in the text."""
    return any(answer.lower() in text.lower() for answer in accepted)


def _table(questions: Sequence[dict[str, Any]], by_method: dict[str, list[Answer]]) -> str:
    lines = [
        "| where | question | " + " | ".join(by_method) + " |",
        "|---" * (len(by_method) + 2) + "|",
    ]
    for i, planted in enumerate(questions):
        of_question = [answers[i] for answers in by_method.values()]
        cells = [f"{'right' if a.right else 'WRONG'}: {' '.join(a.text.split())}" for a in of_question]
        lines.append(f"| {planted['where']} | {planted['question']} | " + " | ".join(cells) + " |")
    lines.append("| | all | " + " | ".join(_total(answers) for answers in by_method.values()) + " |")
    return "\n".join(lines)


def _total(answers: Sequence[Answer]) -> str:
    shares = [answer.sampled_share for answer in answers if answer.sampled_share is not None]
    share = f", {statistics.mean(shares):.1%} of keys sampled" if shares else ""
    return f"{sum(answer.right for answer in answers)} of {len(answers)}{share}"


def main() -> None:
    """Ask everything and print a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--attention", nargs="+", default=["dense", "lsh"], metavar="METHOD")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    arguments = parser.parse_args()
    questions = load_questions()
    by_method = {method: ask_all(questions, method, arguments.model) for method in arguments.attention}
    if arguments.json:
        print(json.dumps([asdict(a) for answers in by_method.values() for a in answers], indent=2))
    else:
        print(_table(questions, by_method))


if __name__ == "__main__":
    main()
