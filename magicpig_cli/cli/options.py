"""The options that commands share: what they are called, what they take, what is refused.

Everything here is checked before anything heavy is imported. `engine_settings` and
`ask_request` turn the values into what the engine takes.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from magicpig_cli.cli.completion import among, model_names
from magicpig_cli.errors import UsageError

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
DTYPES = ("auto", "bfloat16", "float16", "float32")
# Models that stretch further than this are not published, and positions mean little there.
_FARTHEST_STRETCH = 32

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def whole(text: object) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", str(text)):
        raise typer.BadParameter(f"{str(text)!r} is not a whole number")
    return int(str(text))


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        raise typer.BadParameter(f"{str(text)!r} is not a number") from None


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
        parser=_number,
        metavar="SHARE",
        help="Share of the keys that a method to compare with reads, such as 0.05.",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        parser=_number,
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
    typer.Option("--temperature", parser=_number, metavar="T", help="0 takes the likeliest token."),
]
TopPOption = Annotated[
    float,
    typer.Option(
        "--top-p",
        parser=_number,
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
    attention: str
    bits: int | None
    tables: int | None
    dense_layers: str | None
    threads: int | None
    offline: bool
    cache: bool = False
    budget: float | None = None
    tolerance: float | None = None
    quantize: str = "none"
    rope: str | None = None

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
        _one_of("--dtype", self.dtype, DTYPES)
        check_bits(self.model, self.quantize)
        rope_factor(self.rope)
        _one_of("--attention", self.attention, ATTENTION_METHODS)
        _between("--bits", self.bits, 1, 16)
        _between("--tables", self.tables, 2, 4096)
        _between("--threads", self.threads, 1, 1024)
        layer_numbers(self.dense_layers)
        self._check_method()
        return self

    def _check_method(self) -> None:
        """Refuse options that the method has no use for."""
        unused: list[tuple[str, object]] = []
        if self.attention not in ("lsh", "lsh-published"):
            unused += [("--bits", self.bits), ("--tables", self.tables)]
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

    def checked(self) -> AnswerOptions:
        """Itself, if every value is in its range.

        Raises
        ------
        UsageError
        """
        _between("--max-tokens", self.max_tokens, 1, None)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature is {self.temperature}, but must be 0 or more; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p is {self.top_p}, but must be above 0 and at most 1")
        _between("--seed", self.seed, 0, 2**63 - 1)
        return self


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
    )


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """`0,16` as numbers, `none` as no layer, None (the model's own choice) as it is.

    Raises
    ------
    UsageError
    """
    if text is None:
        return None
    if text.strip().lower() == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,4}", part) for part in parts):
        raise UsageError(f"--dense-layers is {text!r}, but must be layer numbers such as 0,16, or none")
    return tuple(sorted({int(part) for part in parts}))


def rope_factor(text: str | None) -> float | None:
    """`yarn:2` as 2.0, None as it is.

    Raises
    ------
    UsageError
    """
    if text is None:
        return None
    found = re.fullmatch(r"yarn:([0-9]{1,3}(?:\.[0-9]{1,6})?)", text.strip().lower())
    if found is None or not 1 < float(found[1]) <= _FARTHEST_STRETCH:
        raise UsageError(
            f"--rope is {text!r}, but must be yarn:N such as yarn:2, with N above 1 and at most "
            f"{_FARTHEST_STRETCH}"
        )
    return float(found[1])


def check_bits(model: str, quantize: str) -> None:
    """Refuse a `--quantize` that is unknown, cannot be had, or is asked of a .gguf file.

    Raises
    ------
    UsageError
    """
    from magicpig_cli.models.bits import QUANTIZATIONS, check_quantization, refuse_gguf

    _one_of("--quantize", quantize, QUANTIZATIONS)
    refuse_gguf(model, quantize)
    check_quantization(quantize)


def plain_text(name: str, argument: str) -> str:
    """An argument as Unicode text, whatever the locale made of its bytes.

    Raises
    ------
    UsageError
        If its bytes are not UTF-8.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeError:
            raise UsageError(f"{name} is not valid UTF-8 text; check the terminal's encoding") from None
    return argument


def check_share(name: str, value: float) -> None:
    """Refuse what is no share.

    Raises
    ------
    UsageError
    """
    if not 0 < value <= 1:
        raise UsageError(f"{name} is {value:g}, but must be a share above 0 and at most 1, such as 0.05")


def check_tolerance(value: float) -> None:
    """Refuse what is no error to keep to.

    Raises
    ------
    UsageError
    """
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"--tolerance is {value:g}, but must be above 0, such as 0.1")


def _one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value in choices:
        return
    close = difflib.get_close_matches(value.lower(), choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; choose one of {', '.join(choices)}"
    raise UsageError(f"there is no {name} {value!r}{hint}")


def _between(name: str, value: int | None, low: int, high: int | None) -> None:
    if value is None or (value >= low and (high is None or value <= high)):
        return
    limits = f"at least {low}" if high is None else f"between {low:,} and {high:,}"
    raise UsageError(f"{name} is {value:,}, but must be {limits}")
