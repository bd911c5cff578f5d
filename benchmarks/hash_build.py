"""Hashing and sorting one layer's keys, beside the same work in torch: matmul, sign, pack, sort.

    python benchmarks/hash_build.py --keys 96000 --heads 8 --head-dim 128 --bits 10 --tables 150

Torch does one KV head, and its time is multiplied by the number of heads; turns alternate. Its
projections are float32 unless --bf16: without bf16 instructions those took 25 times as long.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
import torch

from magicpig_cli.bench.keys import generate_keys
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams


def torch_build(rows: np.ndarray, n_bits: int, n_tables: int, dtype: torch.dtype) -> None:
    """Codes by dense hyperplanes and a stable sort per table, of one KV head."""
    keys = torch.from_numpy(rows[:, 0].copy()).view(torch.bfloat16)
    planes = torch.randn(keys.shape[1], n_tables * n_bits).to(dtype)
    weights = 1 << torch.arange(n_bits, dtype=torch.int32)
    centred = (keys.float() - keys.float().mean(dim=0)).to(dtype)
    codes = torch.empty(n_tables, keys.shape[0], dtype=torch.int32)
    for start in range(0, keys.shape[0], 4096):
        signs = (centred[start : start + 4096] @ planes > 0).view(-1, n_tables, n_bits)
        codes[:, start : start + 4096] = (signs * weights).sum(dim=2).T
    torch.sort(codes, dim=1, stable=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("keys", 96000), ("heads", 8), ("head-dim", 128), ("bits", 10), ("tables", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    use_threads(available_cores())
    shape = LayerShape(options.heads, options.heads, options.head_dim)
    rows = generate_keys(shape, options.keys, 1, 0).rows
    layer = LshLayer(LshParams(options.bits, options.tables), shape)
    layer.build(rows, 0, min(64, options.keys))
    ours, theirs = [], []
    for _ in range(options.rounds):
        started = perf_counter()
        layer.build(rows, 0, options.keys)
        ours.append(perf_counter() - started)
        started = perf_counter()
        torch_build(rows[0], options.bits, options.tables, dtype)
        theirs.append((perf_counter() - started) * options.heads)
    print(f"hash and sort, per layer: {np.median(ours):.2f} s; torch: {np.median(theirs):.2f} s")
    print(f"ratio (median over rounds): {np.median(np.array(theirs) / np.array(ours)):.1f}")


if __name__ == "__main__":
    main()
