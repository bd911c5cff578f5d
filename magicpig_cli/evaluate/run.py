"""`magicpig eval`: which samples a request needs, in order, and their results as plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from magicpig_cli.attention.dense import Dense
from magicpig_cli.bench.text import SOURCE, reading_text
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.room import require_reading
from magicpig_cli.errors import DoesNotFit, UsageError
from magicpig_cli.evaluate.contenders import Contender, contenders
from magicpig_cli.evaluate.measure import Outcome, answer_problem, divergence, output_error
from magicpig_cli.evaluate.problems import Prompter
from magicpig_cli.evaluate.record import Record
from magicpig_cli.evaluate.results import summarize
from magicpig_cli.evaluate.tasks import TASKS, Haystack
from magicpig_cli.models.profiles import dense_layers

# Characters of our own text; what a context needs and plenty of places to begin.
_OWN_CHARACTERS = 400_000


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What to evaluate.

    Attributes
    ----------
    ctx : int
        Tokens of prompt and answer.
    methods, tasks : tuple of str
    budgets : tuple of float or None
        None lets rivals read as much as `lsh` does.
    samples : int
        Per task.
    steps : int
        Decode steps of a sample of `error` and `kl`.
    seed : int
    text : str or None
        Haystack and text to read; None takes our own.
    text_name : str
    tolerances : tuple of float or None
        Errors that the methods that can should keep to.
    """

    ctx: int
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    budgets: tuple[float, ...] | None
    samples: int
    steps: int
    seed: int
    text: str | None = None
    text_name: str = SOURCE
    tolerances: tuple[float, ...] | None = None


Progress = Callable[[str], None]


def evaluate(engine: Engine, options: EvalOptions, out: Path | None, progress: Progress) -> dict[str, Any]:
    """Run what the record lacks, and sum everything up.

    Parameters
    ----------
    engine : Engine
    options : EvalOptions
    out : Path or None
        Where finished items are kept.
    progress : callable
        Gets a sentence per sample.

    Raises
    ------
    UsageError, DoesNotFit
    """
    started = perf_counter()
    if options.ctx > engine.loaded.context_tokens:
        raise DoesNotFit(
            f"--ctx is {options.ctx:,}, but {engine.model_id} reads at most {engine.loaded.context_tokens:,} "
            "tokens; choose a smaller --ctx or another --model"
        )
    require_reading(engine.loaded.shape, options.ctx, Dense(), engine.settings, engine.device)
    text = reading_text(_OWN_CHARACTERS) if options.text is None else options.text
    chosen = engine.settings.dense_layers
    exact_layers = dense_layers(engine.n_layers) if chosen is None else chosen
    settings = {
        "model": engine.model_id,
        "ctx": options.ctx,
        "steps": options.steps,
        "seed": options.seed,
        "dense_layers": list(exact_layers),
        "text": options.text_name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    run = _Run(engine, options, exact_layers, text)
    record = Record(out, settings)
    entrants = contenders(options.methods, options.budgets, options.tolerances)
    for task in options.tasks:
        for sample in range(options.samples):
            lacking = [c for c in entrants if not record.has(task, sample, c.method, c.budget, c.tolerance)]
            if not lacking:
                continue
            progress(f"{task}, sample {sample + 1} of {options.samples}: {len(lacking)} contenders")
            for contender, measured in run.sample(task, sample, lacking):
                item = {
                    "task": task,
                    "sample": sample,
                    "method": contender.method,
                    "budget": contender.budget,
                    "tolerance": contender.tolerance,
                }
                record.add(item | measured)
    wanted = [item for item in record.items if _is_wanted(item, options, entrants)]
    return {
        "results": summarize(wanted, options.ctx),
        "model": engine.model_id,
        "settings": settings | {"samples": options.samples, "methods": list(options.methods)},
        "seconds": perf_counter() - started,
    }


class _Run:
    """Makes the samples, and measures them."""

    def __init__(
        self, engine: Engine, options: EvalOptions, exact_layers: tuple[int, ...], text: str
    ) -> None:
        self._engine, self._options, self._exact_layers, self._text = engine, options, exact_layers, text
        needs_haystack = any(task in TASKS for task in options.tasks)
        haystack = Haystack.of(text) if needs_haystack else Haystack((), ())
        self._prompter = Prompter(engine, haystack, options.ctx, options.seed)
        for task in options.tasks:  # refuse now what could not be done hours later
            if task in TASKS:
                self._prompter.room(task, 0)
            elif options.steps + 100 > options.ctx:
                raise UsageError(
                    f"--steps is {options.steps:,}, which leaves no text to read in --ctx {options.ctx:,}"
                )

    def sample(self, task: str, number: int, lacking: list[Contender]) -> Iterator[Outcome]:
        engine, options, layers = self._engine, self._options, self._exact_layers
        # Other hyperplanes and draws for every sample, so that their luck averages out.
        seed = options.seed * 100_003 + number * 1_009
        if task in TASKS:
            yield from answer_problem(engine, self._prompter.problem(task, number), lacking, layers, seed)
            return
        measure = {"error": output_error, "kl": divergence}[task]
        token_ids = self._prompter.excerpt(self._text, number, options.ctx)
        yield from measure(engine, token_ids, options.steps, lacking, layers, seed)


def _is_wanted(item: dict[str, Any], options: EvalOptions, entrants: list[Contender]) -> bool:
    """A record may hold more than is asked for now."""
    return (
        item["task"] in options.tasks
        and item["sample"] < options.samples
        and Contender(item["method"], item["budget"], item.get("tolerance")) in entrants
    )
