"""magicpig and llama.cpp on the same GGUF file, contexts and threads, taking turns: ms/token and prefill.

    python benchmarks/beside_llama_cpp.py MODEL.gguf --llama-python OTHER/bin/python \\
        --ctx 2000,8000,32000,96000

`OTHER/bin/python` has the package `xllamacpp`; `llama_cpp.py` runs there. Both read the same number of
tokens of text for real, then both extend their keys and values to each context, and generate a few tokens
in turns, so that a machine that grows slower is slow for both. A time is the median over the rounds of a
round's mean; the ratio is the median of the rounds' ratios. Contexts beyond the model's trained length
measure speed only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import IO, Any

from magicpig_cli.cli.bench import parse_contexts
from magicpig_cli.cli.chatter import set_up_libraries

REAL_TOKENS = 2048
SCRIPT = Path(__file__).with_name("llama_cpp.py")
# Tokens that a session has room for beyond its context; a turn may not be longer.
_ROOM = 256


class LlamaCpp:
    """`llama_cpp.py --serve` in another Python, asked by lines of JSON.

    Parameters
    ----------
    python, gguf : Path
    threads, real_tokens : int
    environment : mapping
        Without what magicpig sets for its own threads.
    log : file
        Gets its standard error.
    """

    def __init__(
        self,
        python: Path,
        gguf: Path,
        threads: int,
        real_tokens: int,
        environment: dict[str, str],
        log: IO[bytes],
    ) -> None:
        numbers = ["--threads", str(threads), "--real-tokens", str(real_tokens)]
        self._log = log
        self._process = subprocess.Popen(
            [python, SCRIPT, gguf, "--serve", *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )

    def ask(self, verb: str, **arguments: int) -> dict[str, Any]:
        """The answer to a verb of `llama_cpp.LlamaCpp`.

        Raises
        ------
        SystemExit
            If the process ended, with the last it said.
        """
        answer = ""
        if self._process.stdin and self._process.stdout:
            try:
                self._process.stdin.write(json.dumps({"do": verb, **arguments}) + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except BrokenPipeError:
                pass
        if not answer:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()[-2000:]
            raise SystemExit(f"llama.cpp's process ended with status {self._process.wait()}:\n{said}")
        return dict(json.loads(answer))

    def close(self) -> None:
        """Let it end."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


class MagicPig:
    """The functions of `magicpig bench` on the same file, with the same verbs."""

    def __init__(self, gguf: Path, threads: int, real_tokens: int) -> None:
        from magicpig_cli.engine.engine import Engine, EngineSettings

        self._engine = Engine.load(EngineSettings(model=str(gguf), device="cpu", threads=threads))
        self._real_tokens = real_tokens
        self._dense: Any = None
        self._sampled: Any = None
        self._step: Any = None

    def prefill(self) -> float:
        """Read real text anew; tokens/s."""
        from magicpig_cli.bench.decode import read_text

        self._dense, figures = read_text(self._engine, self._real_tokens)
        return figures.tokens_per_s

    def fill(self, ctx: int) -> tuple[int, int, int]:
        """Extend what was read to `ctx` tokens, at least as many as before, and build tables; K, L and M."""
        from magicpig_cli.attention.budget import lsh_params
        from magicpig_cli.attention.registry import MethodOptions, build_method
        from magicpig_cli.bench.decode import extend_session
        from magicpig_cli.engine.step import make_step
        from magicpig_cli.models.profiles import dense_layers

        self._step = self._sampled = None  # its tables go before the next ones come
        extend_session(self._dense, ctx, _ROOM, 0, lambda layer: None)
        method = build_method("lsh", MethodOptions(ctx, dense_layers(self._engine.n_layers)))
        self._sampled = self._dense.beside(method)
        self._step = make_step(self._engine.loaded.model, self._sampled)
        self.decode(2)
        params = lsh_params(ctx)
        return params.n_bits, params.n_tables, params.min_collisions

    def decode(self, tokens: int) -> float:
        """Generate `tokens` greedily behind the context, forget them, and tell ms/token.

        As llama.cpp's first token comes with the prompt, one step goes before those that are timed.
        """
        import torch

        mark = self._sampled.mark()
        with torch.inference_mode():
            token = int(self._step(self._sampled.token_ids[-1]).argmax())
            started = perf_counter()
            for _ in range(tokens):
                token = int(self._step(token).argmax())
            elapsed = perf_counter() - started
        self._sampled.rewind(mark)
        return elapsed / tokens * 1e3

    def close(self) -> None:
        self._engine.close()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the figures by name."""
    contexts = parse_contexts(options.ctx)
    real_tokens = min(REAL_TOKENS, contexts[0])
    environment = dict(os.environ)
    set_up_libraries(False, False)
    from magicpig_cli.bench.run import machine

    with tempfile.TemporaryFile() as log:
        theirs = LlamaCpp(options.llama_python, options.gguf, options.threads, real_tokens, environment, log)
        try:
            about = theirs.ask("about")  # first: what fails there fails at once
            ours = MagicPig(options.gguf, options.threads, real_tokens)
            result = {
                "gguf": options.gguf.name,
                "threads": options.threads,
                "rounds": options.rounds,
                "tokens_per_round": options.tokens,
                "machine": machine() | about,
                "prefill": _prefill(ours, theirs, real_tokens, options.prefill_rounds),
                "decode": [_decode(ours, theirs, ctx, options) for ctx in contexts],
            }
            ours.close()
        finally:
            theirs.close()
    return result


def _prefill(ours: MagicPig, theirs: LlamaCpp, tokens: int, rounds: int) -> dict[str, Any]:
    _say(f"reading {tokens:,} tokens, {rounds} times each")
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        rates[0].append(ours.prefill())
        rates[1].append(theirs.ask("prefill")["tokens_per_s"])
    speedups = [a / b for a, b in zip(*rates, strict=True)]
    return {"tokens": tokens} | _figures("tokens_per_s", *rates, speedups)


def _decode(ours: MagicPig, theirs: LlamaCpp, ctx: int, options: argparse.Namespace) -> dict[str, Any]:
    _say(f"filling {ctx:,} tokens")
    n_bits, n_tables, min_collisions = ours.fill(ctx)
    theirs.ask("fill", ctx=ctx)
    _say(f"decoding at {ctx:,} tokens in turns")
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.rounds):
        times[0].append(ours.decode(options.tokens))
        times[1].append(theirs.ask("decode", tokens=options.tokens)["ms_per_token"])
    settings = {"ctx": ctx, "n_bits": n_bits, "n_tables": n_tables, "min_collisions": min_collisions}
    speedups = [b / a for a, b in zip(*times, strict=True)]
    return settings | _figures("ms_per_token", *times, speedups)


def _figures(
    name: str, ours: Sequence[float], theirs: Sequence[float], speedups: Sequence[float]
) -> dict[str, Any]:
    """Both contenders' median, least and most, and those of how many times faster magicpig is."""
    return {
        "magicpig": _summary(name, ours),
        "llama_cpp": _summary(name, theirs),
        **_summary("speedup", speedups),
    }


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def table(result: dict[str, Any]) -> str:
    """The figures in Markdown: medians, with the least and the most in parentheses."""
    rows = [
        "| context | K, L, M | magicpig, ms/token | llama.cpp, ms/token | times faster |",
        "|---|---|---|---|---|",
    ]
    for row in result["decode"]:
        cells = (_spread(row[contender], "ms_per_token") for contender in ("magicpig", "llama_cpp"))
        ratio = _spread(row, "speedup")
        hashing = f"{row['n_bits']}, {row['n_tables']}, {row['min_collisions']}"
        rows.append(f"| {row['ctx']:,} | {hashing} | {' | '.join(cells)} | {ratio} |")
    prefill = result["prefill"]
    rates = [_spread(prefill[contender], "tokens_per_s") for contender in ("magicpig", "llama_cpp")]
    facts = result["machine"]
    return "\n".join(
        [
            *rows,
            "",
            f"Reading {prefill['tokens']:,} tokens: magicpig {rates[0]} tokens/s, llama.cpp {rates[1]}, "
            f"{_spread(prefill, 'speedup')} times faster.",
            "",
            f"{result['gguf']}, {result['threads']} threads, {result['rounds']} rounds of "
            f"{result['tokens_per_round']} tokens; {facts['cpu']}, Python {facts['python']}, "
            f"torch {facts['torch']}, numba {facts['numba']}, xllamacpp {facts['xllamacpp']}.",
        ]
    )


def _spread(figures: dict[str, float], name: str) -> str:
    return f"{figures[name]:.1f} ({figures[f'{name}_min']:.1f} to {figures[f'{name}_max']:.1f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--llama-python", type=Path, required=True, help="a Python that has xllamacpp")
    parser.add_argument("--ctx", default="2000,8000,32000,96000", help="contexts in tokens, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill-rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if not 1 <= options.tokens <= _ROOM // 2:
        parser.error(f"--tokens is {options.tokens}, but must be from 1 to {_ROOM // 2}")
    if min(options.rounds, options.prefill_rounds) < 1:
        parser.error("--rounds and --prefill-rounds must be at least 1")
    result = measure(options)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
