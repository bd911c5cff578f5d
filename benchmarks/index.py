"""What an index saves, and whether tables are better kept in it or built anew.

python benchmarks/index.py [--model MODEL] [--repeat N] [--tokens N ...] [--tables built kept] FILE QUESTION

For each length (all of the file, or its beginning) the document is read anew and asked, then asked again by
engines that find the index. Prints the times from the question to the first token, to the second, and to
the end of the answer, and what lies on the disk. Loading the model counts in none of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Run:
    """One question, from its start to its last event; times in seconds."""

    answer: tuple[int, ...]
    prompt_tokens: int
    first_s: float
    second_s: float
    whole_s: float
    open_s: float
    disk_bytes: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", metavar="N", help="read only so many tokens")
    parser.add_argument("--tables", nargs="+", default=["built", "kept"], choices=["built", "kept"])
    parser.add_argument("file", type=Path)
    parser.add_argument("question")
    arguments = parser.parse_args()
    model = _folder(arguments.model)
    text = arguments.file.read_text(encoding="utf-8")
    texts = [text] if arguments.tokens is None else [_beginning(model, text, n) for n in arguments.tokens]
    _warm_up(model)
    print("| tokens | tables | on disk | read anew: first token, end | from the index: opened, first token, "
          "second, end | first token sooner | end sooner | same answer |")  # fmt: skip
    print("|---" * 8 + "|")
    for part in texts:
        first: Run | None = None
        for tables in arguments.tables:
            first = _measure(model, part, arguments.question, tables, arguments.repeat, first)


def _folder(name: str) -> str:
    from magicpig_cli.models.sources import resolve

    source = resolve(
        name, offline=False, device_kind="cpu", progress=lambda *step: None, notice=lambda text: None
    )
    return str(source.folder)


def _beginning(model: str, text: str, n_tokens: int) -> str:
    from tokenizers import Tokenizer

    encoding = Tokenizer.from_file(str(Path(model) / "tokenizer.json")).encode(text)
    if n_tokens >= len(encoding.ids):
        return text
    return text[: encoding.offsets[n_tokens][0]]


def _warm_up(model: str) -> None:
    """Kernels are compiled or fetched before anything is timed."""
    _ask(model, "The pump ran for twelve minutes.\n" * 20, "How long?", cache=False)


def _measure(model: str, text: str, question: str, tables: str, repeat: int, first: Run | None) -> Run:
    """Print a line; gives the run that read anew, which a run with the same text may have done already."""
    from magicpig_cli.engine import keeping

    share, keeping._TABLES_SHARE = keeping._TABLES_SHARE, float("inf") if tables == "kept" else 0.0
    try:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["MAGICPIG_CACHE"] = cache
            anew = _ask(model, text, question)
            again = [_ask(model, text, question) for _ in range(repeat)]
    finally:
        keeping._TABLES_SHARE = share
    fresh = first or anew
    opened, one, two, end = (
        median(getattr(run, name) for run in again) for name in ("open_s", "first_s", "second_s", "whole_s")
    )
    same = all(run.answer == fresh.answer for run in [anew, *again])
    print(
        f"| {anew.prompt_tokens:,} | {tables} | {anew.disk_bytes / 1e6:.0f} MB "
        f"| {anew.first_s:.2f} s, {anew.whole_s:.2f} s "
        f"| {opened:.2f} s, {one:.2f} s, {two:.2f} s, {end:.2f} s "
        f"| {anew.first_s / one:.1f} times | {anew.whole_s / end:.1f} times | {'yes' if same else 'NO'} |",
        flush=True,
    )
    return fresh


def _ask(model: str, text: str, question: str, *, cache: bool = True) -> Run:
    from magicpig_cli.documents import Document
    from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
    from magicpig_cli.engine.events import Indexed, Prompted, Token

    engine = Engine.load(EngineSettings(model=model, cache=cache))
    request = AskRequest([Document("text", text, "utf-8")], question, max_tokens=ANSWER_TOKENS)
    started = perf_counter()
    timed = [(event, perf_counter() - started) for event in engine.generate(request)]
    whole_s = timed[-1][1]
    tokens = [(event, at) for event, at in timed if isinstance(event, Token)]
    prompted = _only(timed, Prompted)
    indexed = _only(timed, Indexed)
    engine.close()
    return Run(
        answer=tuple(event.id for event, _ in tokens),
        prompt_tokens=prompted.prompt_tokens,
        first_s=tokens[0][1],
        second_s=tokens[1][1],
        whole_s=whole_s,
        open_s=prompted.open_s,
        disk_bytes=indexed.n_bytes if indexed else 0,
    )


def _only(timed: Sequence[tuple[Any, float]], kind: type) -> Any:
    return next((event for event, _ in timed if isinstance(event, kind)), None)


if __name__ == "__main__":
    main()
