"""What a token costs without attention, with weights in 16, 8 and 4 bits: contenders take turns.

python benchmarks/quantized_step.py [--model FOLDER] [--threads N] [--steps N]

Needs the extra `quantize`. The model is loaded three times; every step's attention gives zeros at once, so
what is left is the weights.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch

from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.engine.warmup import compile_kernels, step_without_attention
from magicpig_cli.models.bits import QUANTIZATIONS
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.load import load_model
from magicpig_cli.models.sources import resolve

# Steps that are not counted: caches fill and threads wake.
WARM_UP = 3


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    use_threads(options.threads)
    folder = resolve(
        options.model, offline=False, device_kind="cpu", progress=lambda *step: None, notice=print
    ).folder
    loaded = {name: load_model(folder, torch.device("cpu"), quantization=name) for name in QUANTIZATIONS}
    steps = {}
    for name, one in loaded.items():
        compile_kernels(one.model)
        steps[name] = step_without_attention(one.model)
    times: dict[str, list[float]] = {name: [] for name in QUANTIZATIONS}
    for token in range(options.steps + WARM_UP):
        for name, step in steps.items():
            started = perf_counter()
            step(token)
            times[name].append((perf_counter() - started) * 1e3)
    for name, one in loaded.items():
        counted = times[name][WARM_UP:]
        print(
            f"{name:>5}: {one.weight_bytes / 1e6:6.1f} MB of weights, {median(counted):6.2f} ms a token "
            f"(fastest {min(counted):.2f}), {options.threads} threads"
        )


if __name__ == "__main__":
    main()
