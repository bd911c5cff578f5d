"""The options that commands share: what they are called, what they take, what is refused.

Everything here is checked before anything heavy is imported. `engine_settings` and
`ask_request` turn the values into what the engine takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from magicpig_cli.cli.completion import among, model_names
from magicpig_cli.cli.values import (
    between,
    check_bits,
    check_share,
    check_tolerance,
    layer_numbers,
    number,
    one_of,
    plain_text,
    rope_factor,
    whole,
)
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.params import MOST_COLLISIONS

if TYPE_CHECKING:
    from magicpig_cli.documents import Document, PartRequest
    from magicpig_cli.engine.engine import AskRequest, EngineSettings

# The names of attention.registry.METHODS, which cannot be imported here because it needs torch;
# tests/cli/test_options.py holds the two equal.
ATTENTION_METHODS = (
    "lsh",
    "dense",
    "lsh-published",
    "oracle-topk",
    "oracle-sampling",
    "streaming",
    "quest",
    "snapkv",
    "pyramidkv",
    "dsa",
    "vattention",
)
# Those that are not told how much to read: registry.WITHOUT_BUDGET.
WITHOUT_BUDGET = ("lsh", "dense", "lsh-published")
# Those that can keep to a tolerance: registry.WITH_TOLERANCE.
WITH_TOLERANCE = ("lsh", "vattention")
# Places that --cite tells.
CITED_PASSAGES = 3
DTYPES = ("auto", "bfloat16", "float16", "float32")

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="MAGICPIG_MODEL",
        metavar="MODEL",
        help="Alias (see `magicpig models ls`), hub id, folder of safetensors, or .gguf file.",
        autocompletion=model_names,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N.",
        autocompletion=among(("auto", "cpu", "cuda")),
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="auto, bfloat16, float16 or float32.",
        autocompletion=among(DTYPES),
    ),
]
QuantizeOption = Annotated[
    str,
    typer.Option(
        "--quantize",
        metavar="BITS",
        help="Weights in fewer bits, made while they are loaded: none, int8 or int4.",
    ),
]
RopeOption = Annotated[
    str | None,
    typer.Option(
        "--rope", metavar="yarn:N", help="Stretch positions to N times the context that it was trained for."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", parser=whole, metavar="N", help="CPU threads; default: all that are allowed."),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Never ask the network.")]
NoCacheOption = Annotated[
    bool,
    typer.Option(
        "--no-cache", envvar="MAGICPIG_NO_CACHE", help="Neither keep what is read nor use what was kept."
    ),
]
AttentionOption = Annotated[
    str,
    typer.Option(
        "--attention",
        metavar="METHOD",
        help="How decoding attends to the document: lsh (sampled), dense (exact), or a method to compare "
        "with, such as quest (docs/methods.md).",
        autocompletion=among(ATTENTION_METHODS),
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        parser=number,
        metavar="SHARE",
        help="Share of the keys that a method to compare with reads, such as 0.05.",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        parser=number,
        metavar="X",
        help="Attend exactly where the estimated relative error of an attention output exceeds this, such as "
        "0.1; default: nowhere.",
    ),
]
BitsOption = Annotated[
    int | None,
    typer.Option(
        "--bits", parser=whole, metavar="K", help="Hash bits per table, 1 to 16; default by length."
    ),
]
TablesOption = Annotated[
    int | None,
    typer.Option("--tables", parser=whole, metavar="L", help="Hash tables, at least 2; default by length."),
]
CollisionsOption = Annotated[
    int | None,
    typer.Option(
        "--collisions",
        parser=whole,
        metavar="M",
        help="Tables in which a key must share the query's bucket to be sampled, 1 to "
        f"{MOST_COLLISIONS}; default by length.",
    ),
]
DenseLayersOption = Annotated[
    str | None,
    typer.Option(
        "--dense-layers",
        metavar="I,J",
        help="Layers that attend exactly, such as 0,16, or none; default by model.",
    ),
]
MaxTokensOption = Annotated[
    int,
    typer.Option("--max-tokens", "-n", parser=whole, metavar="N", help="Longest answer."),
]
TemperatureOption = Annotated[
    float,
    typer.Option("--temperature", parser=number, metavar="T", help="0 takes the likeliest token."),
]
TopPOption = Annotated[
    float,
    typer.Option(
        "--top-p",
        parser=number,
        metavar="P",
        help="Draw from the likeliest tokens of this total probability.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", parser=whole, metavar="N", help="Repeat a drawn answer exactly."),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="Instruction before it all."),
]
SectionOption = Annotated[
    str | None,
    typer.Option(
        "--section", metavar="TITLE", help="Read only this section (`magicpig outline` lists them), or #N."
    ),
]
PagesOption = Annotated[
    str | None,
    typer.Option("--pages", metavar="A-B", help="Read only these pages, such as 10-42."),
]
LinesOption = Annotated[
    str | None,
    typer.Option("--lines", metavar="A:B", help="Read only these lines, such as 1200:2400."),
]
CiteOption = Annotated[
    bool,
    typer.Option(
        "--cite", help="Tell, after the answer, which places of the document its attention rested on."
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Nothing but errors on standard error."),
]
MarkdownOption = Annotated[
    bool,
    typer.Option(
        "--markdown", help="On a terminal, show headings, lists and tables of the finished answer as such."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Tracebacks and library logs.")]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options that decide how a model is loaded and attends, as given; `checked` before use."""

    model: str
    device: str
    dtype: str
    attention: str = "lsh"
    bits: int | None = None
    tables: int | None = None
    dense_layers: str | None = None
    threads: int | None = None
    offline: bool = False
    cache: bool = False
    budget: float | None = None
    tolerance: float | None = None
    quantize: str = "none"
    rope: str | None = None
    collisions: int | None = None

    def checked(self) -> EngineOptions:
        """Itself, if every value is in its range.

        Raises
        ------
        UsageError
        """
        if not self.model.strip():
            raise UsageError("--model is empty; give an alias, a hub id, a folder or a .gguf file")
        if not _DEVICE.fullmatch(self.device):
            raise UsageError(f"--device is {self.device!r}, but must be auto, cpu, cuda or cuda:N")
        one_of("--dtype", self.dtype, DTYPES)
        check_bits(self.model, self.quantize)
        rope_factor(self.rope)
        one_of("--attention", self.attention, ATTENTION_METHODS)
        between("--bits", self.bits, 1, 16)
        between("--tables", self.tables, 2, 4096)
        between("--collisions", self.collisions, 1, MOST_COLLISIONS)
        if self.tables is not None and (self.collisions or 1) > self.tables:
            raise UsageError(
                f"--collisions is {self.collisions}, more than the {self.tables} tables of --tables; no key "
                "could be sampled"
            )
        between("--threads", self.threads, 1, 1024)
        layer_numbers(self.dense_layers)
        self._check_method()
        return self

    def _check_method(self) -> None:
        """Refuse options that the method has no use for."""
        unused: list[tuple[str, object]] = []
        if self.attention not in ("lsh", "lsh-published"):
            unused += [("--bits", self.bits), ("--tables", self.tables), ("--collisions", self.collisions)]
        if self.attention == "dense":
            unused.append(("--dense-layers", self.dense_layers))
        for name, value in unused:
            if value is not None:
                raise UsageError(
                    f"{name} belongs to --attention lsh and does nothing with "
                    f"--attention {self.attention}; leave it out"
                )
        if self.tolerance is not None:
            self._check_tolerance(self.tolerance)
        if self.budget is None:
            return
        if self.attention in WITHOUT_BUDGET:
            what = (
                "reads every key" if self.attention == "dense" else "reads what --bits and --tables make it"
            )
            raise UsageError(f"--attention {self.attention} {what} and takes no --budget; leave it out")
        check_share("--budget", self.budget)

    def _check_tolerance(self, tolerance: float) -> None:
        if self.attention not in WITH_TOLERANCE:
            raise UsageError(
                f"--tolerance needs a method that knows its error ({' or '.join(WITH_TOLERANCE)}), which "
                f"--attention {self.attention} does not; leave it out"
            )
        check_tolerance(tolerance)
        if self.budget is not None:
            raise UsageError("a fixed --budget cannot keep to a --tolerance; leave one of them out")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options that decide how an answer is drawn, as given; `checked` before use."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    system: str | None
    passages: int = 0

    def checked(self) -> AnswerOptions:
        """Itself, if every value is in its range.

        Raises
        ------
        UsageError
        """
        between("--max-tokens", self.max_tokens, 1, None)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature is {self.temperature}, but must be 0 or more; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p is {self.top_p}, but must be above 0 and at most 1")
        between("--seed", self.seed, 0, 2**63 - 1)
        return self


def passages(cite: bool, silent: bool) -> int:
    """How many places of the document to tell.

    Parameters
    ----------
    cite, silent : bool
        Whether `--cite` is given, and whether neither standard error nor JSON would show them.

    Raises
    ------
    UsageError
        If both are so.
    """
    if cite and silent:
        raise UsageError("--cite prints to standard error, which --quiet keeps empty; leave one of them out")
    return CITED_PASSAGES if cite else 0


def part_request(section: str | None, pages: str | None, lines: str | None) -> PartRequest | None:
    """What `--section`, `--pages` and `--lines` ask for, to hand to `read_sources`; None for all.

    Raises
    ------
    UsageError
    """
    if section is None and pages is None and lines is None:
        return None
    from magicpig_cli.documents.selection import part_request as parsed

    title = None if section is None else plain_text("--section", section)
    return parsed(title, pages, lines)


def engine_settings(options: EngineOptions) -> EngineSettings:
    """What `Engine.load` takes; imports the engine."""
    from magicpig_cli.engine.engine import EngineSettings

    return EngineSettings(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        stretch=rope_factor(options.rope),
        attention=options.attention,
        n_bits=options.bits,
        n_tables=options.tables,
        min_collisions=options.collisions,
        dense_layers=layer_numbers(options.dense_layers),
        threads=options.threads,
        offline=options.offline,
        cache=options.cache,
        budget=options.budget,
        tolerance=options.tolerance,
    )


def ask_request(documents: Sequence[Document], question: str, options: AnswerOptions) -> AskRequest:
    """What `Engine.generate` takes; imports the engine."""
    from magicpig_cli.engine.engine import AskRequest

    return AskRequest(
        documents=documents,
        question=question,
        system=None if options.system is None else plain_text("--system", options.system),
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        passages=options.passages,
    )
