"""`magicpig eval`: accuracy, method by method. Arguments in, wiring, exit status out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli.cli import options, values, wiring
from magicpig_cli.cli.completion import listed
from magicpig_cli.errors import UsageError
from magicpig_cli.views.streams import Messages, Output, Standard

if TYPE_CHECKING:
    from magicpig_cli.evaluate.run import EvalOptions

EXAMPLES = """\b
Examples:
  magicpig eval --ctx 4096 --methods dense,lsh,quest,snapkv --tasks niah,vt,cwe --samples 25
  magicpig eval --tasks error --budgets 0.01,0.025,0.05,0.1 --plot error.svg --out error.jsonl
  magicpig eval --tasks error,kl --text book.txt --json | jq '.results[] | .method, .kl_mean'
\b
Tasks: niah, multikey, multivalue, multiquery, vt, cwe, fwe, qa (RULER's), error (of attention outputs),
kl (of next-token distributions). Methods are those of --attention; docs/methods.md describes them."""

# Of evaluate.tasks.TASKS, which cannot be imported here because its package needs torch, and two more;
# tests/evaluate/test_tasks.py holds them equal.
TASKS = ("niah", "multikey", "multivalue", "multiquery", "vt", "cwe", "fwe", "qa", "error", "kl")
_SHORTEST_CTX = 256


def evaluate(
    context: typer.Context,
    ctx: Annotated[
        int, typer.Option("--ctx", metavar="N", help="Tokens of prompt and answer in every sample.")
    ] = 4096,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="NAME[,NAME...]",
            help="Methods to compare.",
            autocompletion=listed(options.ATTENTION_METHODS),
        ),
    ] = "dense,lsh,oracle-topk,quest,snapkv",
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            metavar="NAME[,NAME...]",
            help="What to measure; see below.",
            autocompletion=listed(TASKS),
        ),
    ] = "niah,multikey,vt,cwe",
    samples: Annotated[int, typer.Option("--samples", metavar="N", help="Samples per task.")] = 25,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets",
            metavar="SHARE[,SHARE...]",
            help="Shares of the keys to read, such as 0.025,0.05; default: as much as lsh reads.",
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="X[,X...]",
            help="Relative errors that lsh and vattention should keep to, such as 0.1,0.05.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Decode steps per sample of error and kl.")
    ] = 16,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="SOURCE", help="Text to read and to hide things in; default: our own."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Keep finished samples here, and go on from there."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="Draw the output error against the keys read."),
    ] = None,
    model: options.ModelOption = "auto",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    quantize: options.QuantizeOption = "none",
    rope: options.RopeOption = None,
    dense_layers: options.DenseLayersOption = None,
    seed: options.SeedOption = 0,
    threads: options.ThreadsOption = None,
    offline: options.OfflineOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Measure how accurate attention methods are, beside exact attention and at the same budgets.

    Every sample is read once, exactly; each method then goes on from the same keys and values. The share of
    keys that is reported is what was really read. Intervals are 95 % (Wilson for scores, bootstrap for
    errors).
    """
    names = _names("--methods", methods, options.ATTENTION_METHODS)
    wanted = _names("--tasks", tasks, TASKS)
    shares = None if budgets is None else _shares(budgets)
    errors = None if tolerance is None else _errors_to_keep(tolerance, names)
    for name, value, low, high in (
        ("--ctx", ctx, _SHORTEST_CTX, 2_000_000),
        ("--samples", samples, 1, 100_000),
        ("--steps", steps, 2, 10_000),
    ):
        if not low <= value <= high:
            raise UsageError(f"{name} is {value:,}, but must be from {low:,} to {high:,}")
    if plot is not None:
        _check_plot(plot, wanted)
    engine_options = options.EngineOptions(
        model,
        device,
        dtype,
        dense_layers=dense_layers,
        threads=threads,
        offline=offline,
        quantize=quantize,
        rope=rope,
    ).checked()
    with wiring.own_streams(context, verbose, offline) as standard:
        from magicpig_cli.evaluate.run import EvalOptions

        messages = Messages(standard.streams.err)
        progress = (lambda line: None) if quiet else messages.line
        chosen = EvalOptions(ctx, names, wanted, shares, samples, steps, seed or 0, tolerances=errors)
        if text is not None:
            chosen = _with_text(chosen, text, standard, progress)
        outcome = _outcome(chosen, engine_options, out, progress)
        output = Output(standard.streams.out)
        if as_json:
            output.write(json.dumps(outcome) + "\n")
        else:
            from magicpig_cli.evaluate.table import render

            wiring.print_page(render(outcome), output, 140)
        if plot is not None:
            from magicpig_cli.evaluate.plot import plot_error

            plot_error(outcome, plot)
            progress(f"drew {plot}")
    return 0


def _names(option: str, text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in choices:
            raise UsageError(f"{option} names {name!r}, but must be among {', '.join(choices)}")
    return names


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--budgets is {text!r}, but must be shares such as 0.025,0.05") from None
    for share in shares:
        values.check_share("--budgets", share)
    return shares


def _errors_to_keep(text: str, methods: tuple[str, ...]) -> tuple[float, ...]:
    if not set(methods) & set(options.WITH_TOLERANCE):
        raise UsageError(
            f"--tolerance is for {' and '.join(options.WITH_TOLERANCE)}, of which --methods names neither"
        )
    try:
        errors = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--tolerance is {text!r}, but must be errors such as 0.1,0.05") from None
    for error in errors:
        values.check_tolerance(error)
    return errors


def _check_plot(path: Path, tasks: tuple[str, ...]) -> None:
    if "error" not in tasks:
        raise UsageError("--plot draws what the task error measures; add error to --tasks")
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--plot writes SVG, but {path} does not end in .svg")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'magicpig-cli[eval]'")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot cannot write {path}: there is no folder {path.absolute().parent}")


def _with_text(chosen: EvalOptions, source: str, standard: Standard, progress: Any) -> EvalOptions:
    import sys
    from dataclasses import replace

    from magicpig_cli.documents import read_sources

    documents = read_sources([source], sys.stdin.buffer if standard.stdin_open else None, None)
    for document in documents:
        for notice in document.notices:
            progress(notice)
    joined = "\n\n".join(document.text for document in documents)
    return replace(chosen, text=joined, text_name=Path(source).name)


def _outcome(
    chosen: EvalOptions, engine_options: options.EngineOptions, out: Path | None, progress: Any
) -> dict[str, Any]:
    from magicpig_cli.evaluate.run import evaluate as run_evaluation

    with wiring.loaded_engine(engine_options, wiring.notices_to(progress)) as engine:
        return run_evaluation(engine, chosen, out, progress)
