"""Ask the sample's planted questions with exact and with sampled attention, and print both side by side.

    python benchmarks/sample_questions.py [--model MODEL] [--attention dense lsh ...] [--json]

The document is prefilled once. Each question then continues from a copy of its keys and values, and a
method's tables are built afresh after the question, exactly as one `magicpig ask` for that question would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.registry import MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.documents import Document, read_sources
from magicpig_cli.engine.decode import decode
from magicpig_cli.engine.events import Finished, Token
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.prompt import PromptBuilder
from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.engine.step import make_step
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.load import choose_device, load_model
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.sources import resolve
from magicpig_cli.store.kv import LayerStore

SAMPLES = Path(__file__).parents[1] / "samples"
# Answers of the embedded model are one sentence; 40 tokens leave room for the longest.
ANSWER_TOKENS = 40
CHUNK_TOKENS = 512


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


class Continued(Session):
    """A session whose layers begin with the keys and values that another one has read."""

    def __init__(self, read: Session, method: AttentionMethod, capacity: int) -> None:
        super().__init__(method, read.n_layers, capacity, read.device)
        self._read = read
        self.n_tokens = read.n_tokens

    def open_layer(self, layer: int, shape: LayerShape, rule: LayerRule) -> LayerStore:
        """See `Session.open_layer`; a new store is filled before anyone sees it."""
        known = self.stores[layer] is not None
        store, source = super().open_layer(layer, shape, rule), self._read.stores[layer]
        if not known and source is not None:
            store.write(source.first_token, *source.read(source.first_token, source.n_tokens))
        return store


class ReadDocument:
    """A document that a model has read once, ready for any number of questions.

    Parameters
    ----------
    documents : sequence of Document
    model : str
        As `--model` of the command takes it.
    """

    def __init__(self, documents: Sequence[Document], model: str = EMBEDDED) -> None:
        device = choose_device("auto")
        use_threads(available_cores())
        source = resolve(
            model,
            offline=False,
            device_kind=device.type,
            progress=lambda *state: None,
            notice=lambda sentence: print(sentence, file=sys.stderr),
        )
        self._loaded = load_model(source.folder, device)
        self._documents = documents
        self._prompts = PromptBuilder(self._loaded.tokenizer, source.id, self._loaded.context_tokens)
        self._n_layers = len(decoder_layers(self._loaded.model))
        prompt = self._prompts.build(documents, "What is it about?", None)
        self._prefix = prompt.token_ids[: prompt.prefix_tokens]
        self._session = Session(Dense(), self._n_layers, len(self._prefix), device)
        self.prompt_tokens = len(self._prefix)
        with torch.inference_mode():
            _exhaust(prefill(self._loaded.model, self._session, self._prefix, CHUNK_TOKENS))

    def ask(self, planted: dict[str, Any], method_name: str, max_tokens: int = ANSWER_TOKENS) -> Answer:
        """The greedy answer to a planted question.

        Parameters
        ----------
        planted : dict
            An entry of samples/questions.json.
        method_name : str
            A name of `attention.registry.METHODS`.
        max_tokens : int
        """
        prompt = self._prompts.build(self._documents, planted["question"], None)
        if prompt.token_ids[: len(self._prefix)] != self._prefix:
            raise ValueError("the question changed the tokens of the document before it")
        options = MethodOptions(len(prompt.token_ids), dense_layers(self._n_layers))
        method = build_method(method_name, options)
        model, capacity = self._loaded.model, len(prompt.token_ids) + max_tokens
        session = Continued(self._session, method, capacity)
        text = ""
        with torch.inference_mode():
            rest = prompt.token_ids[len(self._prefix) :]
            logits = _exhaust(prefill(model, session, rest, CHUNK_TOKENS))
            for event in decode(
                logits,
                make_step(model, session),
                session.stats,
                Sampler(),
                self._loaded.tokenizer,
                self._loaded.stop_ids,
                max_tokens,
                0.0,
            ):
                if isinstance(event, Token):
                    text += event.text
                elif isinstance(event, Finished):
                    finished = event
        text += finished.tail
        return Answer(
            question=planted["question"],
            where=planted["where"],
            method=method_name,
            text=text,
            right=is_right(text, planted["answer"]),
            sampled_share=finished.sampled_share,
            estimated_error=finished.estimated_error,
            decode_ms_per_token=finished.decode_ms_per_token,
        )


def is_right(text: str, accepted: Sequence[str]) -> bool:
    """Whether an accepted answer stands in the text."""
    return any(answer.lower() in text.lower() for answer in accepted)


def load_questions() -> list[dict[str, Any]]:
    """The planted questions of the sample."""
    questions: list[dict[str, Any]] = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))
    return questions


def read_sample(model: str = EMBEDDED) -> ReadDocument:
    """The sample document, read."""
    return ReadDocument(read_sources([str(SAMPLES / "keepers-book.md")], None), model)


def _exhaust(progress: Any) -> torch.Tensor:
    """Run a prefill to its end; its return value."""
    while True:
        try:
            next(progress)
        except StopIteration as end:
            result: torch.Tensor = end.value
            return result


def _table(questions: list[dict[str, Any]], methods: list[str], answers: list[Answer]) -> str:
    by_key = {(answer.question, answer.method): answer for answer in answers}
    lines = ["| where | question | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for planted in questions:
        cells = []
        for method in methods:
            answer = by_key[planted["question"], method]
            cells.append(f"{'right' if answer.right else 'WRONG'}: {' '.join(answer.text.split())}")
        lines.append(f"| {planted['where']} | {planted['question']} | " + " | ".join(cells) + " |")
    totals = []
    for method in methods:
        of_method = [answer for answer in answers if answer.method == method]
        shares = [a.sampled_share for a in of_method if a.sampled_share is not None]
        share = f", {statistics.mean(shares):.1%} of keys sampled" if shares else ""
        totals.append(f"{sum(a.right for a in of_method)} of {len(of_method)}{share}")
    lines.append("| | all | " + " | ".join(totals) + " |")
    return "\n".join(lines)


def main() -> None:
    """Ask everything and print a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--attention", nargs="+", default=["dense", "lsh"], metavar="METHOD")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    questions = load_questions()
    read = read_sample(arguments.model)
    answers = [read.ask(planted, method) for method in arguments.attention for planted in questions]
    if arguments.json:
        print(json.dumps([asdict(answer) for answer in answers], indent=2))
    else:
        print(f"{read.prompt_tokens:,} tokens up to the question\n")
        print(_table(questions, arguments.attention, answers))


if __name__ == "__main__":
    main()
