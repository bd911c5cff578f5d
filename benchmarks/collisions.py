"""Ways of hashing on the same real queries and keys: keys read, error, what the estimate of it is worth.

    python benchmarks/collisions.py --ctx 3584 --share 0.025,0.08 12:2 8:4 8:6 8:8
    python benchmarks/collisions.py --ctx 3584 8:160:6 8:160:4 8:160:3 8:160:2 8:160:1

A way is K:M, whose number of tables L is chosen so that it reads about each `--share` of the keys, or K:L:M
as it is. The model reads a text, attends exactly, and beside that in every way, over the last tokens of the
text. The last column is the median estimate over that of the first way in the list, head by head.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pydoc_data.topics import topics

import torch

from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.documents.sources import read_sources
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.engine.step import make_step
from magicpig_cli.evaluate.contenders import Builder
from magicpig_cli.evaluate.measure import read
from magicpig_cli.evaluate.probe import Measured, Probe
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.models.profiles import dense_layers


def text_of(source: str | None) -> str:
    """The text of a file, or Python's language reference."""
    if source is None:
        return "\n\n".join(str(topics[name]) for name in sorted(topics))
    return "\n\n".join(document.text for document in read_sources([source], None))


def ways(asked: Sequence[str], shares: Sequence[float], builder: Builder) -> Iterator[LshParams]:
    """K:M at each share, K:L:M once."""
    for way in asked:
        numbers = [int(part) for part in way.split(":")]
        if len(numbers) == 3:
            yield LshParams(*numbers)
            continue
        n_bits, least = numbers
        for share in shares:
            base = LshParams(n_bits, 4096, least)
            yield LshParams(n_bits, builder.tables("lsh", base, share), least)


def row(params: LshParams, measured: Measured, first: torch.Tensor) -> str:
    """A line of the table, in Markdown."""
    errors = torch.cat([torch.stack(steps).flatten() for steps in measured.errors.values()])
    estimates = _estimates(measured)
    within = (errors <= 2 * estimates).float().mean()
    cells = [
        f"{params.n_bits}, {params.n_tables}, {params.min_collisions}",
        f"{100 * (measured.stats.sampled_share or 0):.2f} %",
        f"{errors.mean():.4f} / {errors.median():.4f} / {errors.quantile(0.9):.4f}",
        f"{errors.square().mean().sqrt():.3f}",
        f"{100 * within:.1f} %",
        f"{(estimates / first.clamp_min(1e-9)).median():.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _estimates(measured: Measured) -> torch.Tensor:
    return torch.cat([step for steps in measured.estimates.values() for step in steps])


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ways", nargs="+", metavar="K:M|K:L:M")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--ctx", type=int, default=3584)
    parser.add_argument("--share", default="0.08", help="shares of the keys, comma-separated")
    parser.add_argument("--text", help="a file; default: Python's language reference")
    parser.add_argument("--skip", type=int, default=20_000, help="characters of the text to leave out first")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    engine = Engine.load(EngineSettings(model=options.model, device="cpu", threads=options.threads))
    text = text_of(options.text)[options.skip :][: 8 * options.ctx]
    token_ids = engine.loaded.tokenizer(text)["input_ids"][: options.ctx]
    if len(token_ids) < options.ctx:
        sys.exit(f"the text has {len(token_ids):,} tokens from there on, fewer than {options.ctx:,}")
    exact = dense_layers(engine.n_layers)
    session, _ = read(engine, token_ids[: -options.steps], options.steps)
    builder = Builder(session, exact, 0)
    shares = [float(share) for share in options.share.split(",")]
    methods = {str(params): params for params in ways(options.ways, shares, builder)}
    probe = Probe({label: Lsh(params, exact) for label, params in methods.items()}, exact)
    step = make_step(engine.loaded.model, session.beside(probe))
    for token_id in token_ids[-options.steps :]:
        step(token_id)
    engine.close()
    print("| K, L, M | keys read | error: mean / median / 90th percentile | root mean square ", end="")
    print("| within twice the estimate | estimate, over the first |\n|---|---|---|---|---|---|")
    first = _estimates(next(iter(probe.measured.values())))
    for label, measured in probe.measured.items():
        print(row(methods[label], measured, first))


if __name__ == "__main__":
    main()
