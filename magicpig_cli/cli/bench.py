"""`magicpig bench`: the speed of this machine. Arguments in, wiring, exit status out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from magicpig_cli.cli import options, wiring
from magicpig_cli.errors import UsageError
from magicpig_cli.views.streams import Messages, Output

EXAMPLES = """\b
Examples:
  magicpig bench --ctx 96000
  magicpig bench --ctx 96000 --shape llama-3.1-8b
  magicpig bench --ctx 8000,32000,96000 --json | jq .decode.ms_per_token"""

_SHORTEST_CTX, _LONGEST_CTX = 128, 2_000_000


def bench(
    context: typer.Context,
    ctx: Annotated[
        str, typer.Option("--ctx", metavar="N[,N...]", help="Contexts to measure, in tokens.")
    ] = "8000,32000",
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="NAME", help="One layer at this model's shapes; needs no weights."),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Measured rounds; medians are reported.")
    ] = 15,
    model: options.ModelOption = "auto",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    quantize: options.QuantizeOption = "none",
    rope: options.RopeOption = None,
    bits: options.BitsOption = None,
    tables: options.TablesOption = None,
    collisions: options.CollisionsOption = None,
    dense_layers: options.DenseLayersOption = None,
    tolerance: options.ToleranceOption = None,
    seed: options.SeedOption = 0,
    threads: options.ThreadsOption = None,
    offline: options.OfflineOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Measure the speed of sampled decoding on this machine, beside its yardsticks.

    Kernels of one layer (hash, sort, retrieve, attend) are measured against the bare reading of
    the sampled rows and against dense attention; whole decode steps of the model, sampled
    against dense; and the prefill of real text. Contexts beyond the model's trained length are a
    measurement of speed. With --json, one object per context, one per line.
    """
    contexts = parse_contexts(ctx)
    if not 1 <= rounds <= 1000:
        raise UsageError(f"--rounds is {rounds}, but must be from 1 to 1000")
    engine_options = options.EngineOptions(
        model,
        device,
        dtype,
        bits=bits,
        tables=tables,
        dense_layers=dense_layers,
        threads=threads,
        offline=offline,
        tolerance=tolerance,
        quantize=quantize,
        rope=rope,
        collisions=collisions,
    ).checked()
    if shape is not None and tolerance is not None:
        raise UsageError("--tolerance acts on whole decode steps, which --shape does not take; leave one out")
    with wiring.own_streams(context, verbose, offline) as standard:
        messages, output = Messages(standard.streams.err), Output(standard.streams.out)
        progress = (lambda text: None) if quiet else messages.line
        results = []
        for result in _results(contexts, shape, rounds, seed or 0, engine_options, progress):
            results.append(result)
            if as_json:
                output.write(json.dumps(result) + "\n")
        if not as_json:
            from magicpig_cli.bench.table import render

            wiring.print_page(render(results), output, 100)
    return 0


def parse_contexts(text: str) -> list[int]:
    """`8000,32k` as numbers, ascending.

    Raises
    ------
    UsageError
    """
    contexts = []
    for part in text.split(","):
        digits = part.strip().lower().replace("_", "")
        factor = 1000 if digits.endswith("k") else 1
        digits = digits.removesuffix("k")
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(f"--ctx is {text!r}, but must be token counts such as 96000 or 8000,32000,96000")
        contexts.append(int(digits) * factor)
    for value in contexts:
        if not _SHORTEST_CTX <= value <= _LONGEST_CTX:
            raise UsageError(
                f"--ctx {value} is out of range; contexts from {_SHORTEST_CTX} to {_LONGEST_CTX:,} tokens "
                "can be measured"
            )
    return sorted(set(contexts))


def _results(
    contexts: list[int],
    shape: str | None,
    rounds: int,
    seed: int,
    engine_options: options.EngineOptions,
    progress: Any,
) -> Iterator[dict[str, Any]]:
    from magicpig_cli.bench.run import BenchOptions, bench_model, bench_shape

    wishes = BenchOptions(engine_options.bits, engine_options.tables, engine_options.collisions, rounds, seed)
    if shape is not None:
        yield from bench_shape(shape, contexts, wishes, engine_options.threads, progress)
        return
    with wiring.loaded_engine(engine_options, wiring.notices_to(progress)) as engine:
        yield from bench_model(engine, contexts, wishes, progress)
