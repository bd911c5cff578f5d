"""Statistics of real keys and queries, which the benchmark's generator reproduces.

    python benchmarks/key_statistics.py --model smollm2-135m --text FILE --tokens 3000

Reads text with the model and prints, as medians over the sampled layers and heads, the figures of
`magicpig_cli.bench.keys.KeyStatistics`, and the same figures of generated keys beside them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.session import Session
from magicpig_cli.bench.keys import generate_keys
from magicpig_cli.bench.text import reading_text
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.prompt import PlainTextEncoder
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.lsh.reference import bf16_to_float
from magicpig_cli.models.profiles import dense_layers

NAMES = ("|m| / |k - m|", "participation / head_dim", "cosine std", "logit std", "cosine within a group",
         "correlation of neighbours", "correlation at 64 tokens", "std of |k - m| / mean")  # fmt: skip


def figures(rows: np.ndarray, queries: np.ndarray) -> list[list[float]]:
    """Figures of each KV head; rows (kv_heads, n, 2, d) uint16, queries (q_heads, steps, d)."""
    group = queries.shape[0] // rows.shape[0]
    results = []
    for head in range(rows.shape[0]):
        keys = bf16_to_float(rows[head, 4:-64, 0])
        mean = keys.mean(axis=0)
        centred = keys - mean
        norms = np.linalg.norm(centred, axis=1)
        spectrum = np.linalg.eigvalsh(np.cov(centred.T))
        own = queries[head * group : (head + 1) * group].astype(np.float64)
        unit = own / np.linalg.norm(own, axis=2, keepdims=True)
        cosines = unit @ centred.T / norms
        within = [np.mean(unit[a] * unit[b]) * own.shape[2] for a in range(group) for b in range(a)]
        square = (centred**2).sum()
        results.append(
            [
                float(np.linalg.norm(mean) / norms.mean()),
                float(spectrum.sum() ** 2 / (spectrum**2).sum() / keys.shape[1]),
                float(cosines.std(axis=2).mean()),
                float((own @ centred.T).std(axis=2).mean() / keys.shape[1] ** 0.5),
                float(np.mean(within)) if within else 1.0,
                float((centred[1:] * centred[:-1]).sum() / square),
                float((centred[64:] * centred[:-64]).sum() / square),
                float(norms.std() / norms.mean()),
            ]
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, help="default: Python's language reference")
    parser.add_argument("--tokens", type=int, default=3000)
    options = parser.parse_args()
    engine = Engine.load(EngineSettings(model=options.model))
    text = options.text.read_text(encoding="utf-8") if options.text else reading_text(8 * options.tokens)
    token_ids = PlainTextEncoder(engine.loaded.tokenizer).encode(text)[: options.tokens]
    session = Session(Dense(), engine.n_layers, len(token_ids), engine.device)
    with torch.inference_mode():
        for _progress in prefill(engine.loaded.model, session, token_ids, 512):
            pass
    real = []
    for layer, store in enumerate(session.stores):
        if store is not None and layer not in dense_layers(engine.n_layers):
            rows = store.rows[:, : store.n_tokens]
            real += figures(rows, session.observed(layer)[:, -16:].float().numpy())
    shape = LayerShape(session.observed(0).shape[0], *store.rows.shape[0:4:3])
    made = generate_keys(shape, len(token_ids), 16, 0)
    generated = figures(made.rows, made.queries.transpose(1, 0, 2))
    print(f"{'':28s} {'real':>8s} {'generated':>10s}")
    for name, a, b in zip(NAMES, np.median(real, axis=0), np.median(generated, axis=0), strict=True):
        print(f"{name:28s} {a:8.3f} {b:10.3f}")


if __name__ == "__main__":
    main()
