"""Time one decode step on a CPU: compiled kernels beside the model's own modules, taking turns.

    OMP_WAIT_POLICY=passive python benchmarks/decode_step.py [--context N] [--attention METHOD] [--json]

Both contenders continue the same session, a few tokens each in turn, so that a machine that grows slower
is slow for both. GB/s counts the bytes of the weights, each read once per token, over the time outside
attention; beside it stands what a plain read of as many bytes reaches with the same threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numba
import numpy as np
import torch

from magicpig_cli.attention.registry import METHODS, MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.decode import StepFunction
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.step import make_step, module_step
from magicpig_cli.engine.stepgraph import StepGraph
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.load import load_model
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.sources import resolve

SAMPLE = Path(__file__).parents[1] / "samples" / "keepers-book.md"
STEPS_A_TURN = 5
TOKEN_ID = 100  # which token is fed changes nothing about the work


@numba.njit(parallel=True, nogil=True, fastmath=True)
def read_once(words: np.ndarray, parts: int) -> float:
    """The sum of all words: as much arithmetic as hides behind reading them."""
    total = 0.0
    size = words.size // parts
    for part in numba.prange(parts):
        own = np.float32(0.0)
        for i in range(part * size, (part + 1) * size):
            own += words[i]
        total += own
    return total


def read_rate(n_bytes: int, threads: int) -> float:
    """GB/s of the fastest of seven reads of `n_bytes`."""
    words = np.ones(n_bytes // 4, np.float32)
    read_once(words, threads)
    times = []
    for _ in range(7):
        started = perf_counter()
        read_once(words, threads)
        times.append(perf_counter() - started)
    return n_bytes / min(times) / 1e9


def time_turn(step: StepFunction, session: Session) -> list[tuple[float, float]]:
    """Milliseconds of each step of one turn, whole and in attention."""
    times = []
    for _ in range(STEPS_A_TURN):
        session.stats.reset()
        started = perf_counter()
        step(TOKEN_ID)
        whole = (perf_counter() - started) * 1e3
        times.append((whole, session.stats.retrieve_ms + session.stats.attend_ms))
    return times


def summarize(times: Sequence[tuple[float, float]], weight_bytes: int) -> dict[str, float]:
    outside = [whole - attention for whole, attention in times]
    return {
        "ms_per_token_median": statistics.median(whole for whole, _ in times),
        "ms_per_token_best": min(whole for whole, _ in times),
        "attention_ms_median": statistics.median(attention for _, attention in times),
        "outside_attention_ms_median": statistics.median(outside),
        "outside_attention_ms_best": min(outside),
        "weights_gb_per_s_best": weight_bytes / min(outside) / 1e6,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the figures by name."""
    use_threads(options.threads)
    source = resolve(
        options.model,
        offline=False,
        device_kind="cpu",
        progress=lambda *state: None,
        notice=lambda sentence: print(sentence, file=sys.stderr),
    )
    loaded = load_model(source.folder, torch.device("cpu"))
    text = SAMPLE.read_text(encoding="utf-8")
    ids = loaded.tokenizer(text)["input_ids"][: options.context]
    n_layers = len(decoder_layers(loaded.model))
    method = build_method(options.attention, MethodOptions(len(ids), dense_layers(n_layers)))
    n_steps = 2 * (options.turns + 1) * STEPS_A_TURN
    session = Session(method, n_layers, len(ids) + n_steps, torch.device("cpu"))
    for _ in prefill(loaded.model, session, ids, 512):
        pass
    steps = {"modules": module_step(loaded.model, session), "compiled": make_step(loaded.model, session)}
    for step in steps.values():  # compiles, and wakes the threads
        time_turn(step, session)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(options.turns):
        for name, step in steps.items():
            times[name] += time_turn(step, session)
    return {
        "model": source.id,
        "compiled_step_applies": StepGraph.of(loaded.model) is not None,
        "attention": options.attention,
        "context_tokens": len(ids),
        "threads": options.threads,
        "weight_bytes": loaded.weight_bytes,
        "plain_read_gb_per_s": read_rate(loaded.weight_bytes, options.threads),
        **{name: summarize(times[name], loaded.weight_bytes) for name in steps},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--context", type=int, default=512, help="tokens of the sample that are prefilled")
    parser.add_argument("--attention", choices=sorted(METHODS), default="dense")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--turns", type=int, default=10, help=f"turns of {STEPS_A_TURN} steps each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with torch.inference_mode():
        figures = measure(options)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(
        f"{figures['model']}, {figures['context_tokens']} tokens, {figures['attention']} attention, "
        f"{figures['threads']} threads, {figures['weight_bytes'] / 1e6:.0f} MB of weights "
        f"(a plain read reaches {figures['plain_read_gb_per_s']:.1f} GB/s)"
    )
    if not figures["compiled_step_applies"]:
        print("this architecture decodes through its modules: both contenders are the same")
    for name in ("modules", "compiled"):
        row = figures[name]
        print(
            f"{name:9s} {row['ms_per_token_median']:7.1f} ms/token (best {row['ms_per_token_best']:.1f}), "
            f"of it attention {row['attention_ms_median']:.1f}; "
            f"outside attention best {row['outside_attention_ms_best']:.1f} ms = "
            f"{row['weights_gb_per_s_best']:.1f} GB/s of weights"
        )


if __name__ == "__main__":
    main()
