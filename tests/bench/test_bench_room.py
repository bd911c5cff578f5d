"""What does not fit is refused before anything is measured, and what is said to be needed is taken."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, environment
from small import small_model

from magicpig_cli.bench.room import layer_bytes, require_model
from magicpig_cli.bench.run import SHAPES, BenchOptions, bench_model
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.errors import DoesNotFit, UsageError
from magicpig_cli.lsh.params import LshParams

GB = 1_000_000_000
needs_limit = pytest.mark.skipif(sys.platform == "darwin", reason="needs RLIMIT_AS")


def bench(*arguments: str, limit: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    """The real command, with at most `limit` bytes of addresses."""
    return subprocess.run(
        [sys.executable, "-m", "magicpig_cli", "bench", "--offline", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY)),
        timeout=300,
    )


@needs_limit
def test_one_layer_that_does_not_fit_is_refused_with_the_numbers() -> None:
    result = bench("--shape", "llama-3.1-8b", "--ctx", "4000,1000000", "--json", limit=12 * GB)
    assert result.returncode == 3, result.stderr
    # One object, the error: nobody waits for half of an answer.
    assert json.loads(result.stdout)["error"]["kind"] == "does_not_fit"
    assert "one layer of llama-3.1-8b at 1,000,000 keys takes 1" in result.stderr
    assert "GB of host memory, of which" in result.stderr
    assert "keep --ctx within" in result.stderr
    assert "generating" not in result.stderr


def test_a_model_whose_context_does_not_fit_is_refused_before_it_reads(tmp_path: Path) -> None:
    engine = Engine.load(EngineSettings(model=str(small_model(tmp_path / "model")), device="cpu"))
    said: list[str] = []
    with pytest.raises(DoesNotFit) as refused:
        next(bench_model(engine, [2000, 10**10], BenchOptions(), said.append))
    sentence = refused.value.sentence
    assert re.search(r"whole steps of .* at 10,000,000,000 keys takes [\d,]+\.\d GB of host memory", sentence)
    advised = re.search(r"are available; keep --ctx within ([\d,]+)$", sentence)
    assert advised is not None
    assert said == []
    fitting = int(advised[1].replace(",", ""))
    require_model(engine, [fitting // 2], lambda ctx: LshParams(10, 75))
    with pytest.raises(DoesNotFit):
        require_model(engine, [2 * fitting], lambda ctx: LshParams(10, 75))


def test_the_need_of_one_layer_is_its_real_peak() -> None:
    ctx, tables = 40_000, 40
    result = bench(
        "--shape", "llama-3.2-1b", "--ctx", str(ctx), "--tables", str(tables), "--rounds", "1", "--json"
    )
    assert result.returncode == 0, result.stderr
    peak = json.loads(result.stdout)["memory"]["host_peak_bytes"]
    needed = layer_bytes(SHAPES["llama-3.2-1b"][0], ctx, LshParams(10, tables))
    assert 0.9 * peak <= needed <= 1.5 * peak


def test_a_model_whose_layers_keep_a_window_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    changes = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}
    folder = small_model(tmp_path / "model", "gemma2", **changes)
    engine = Engine.load(EngineSettings(model=str(folder), device="cpu"))
    said: list[str] = []
    with pytest.raises(UsageError, match=r"2 of the 4 layers of .* keep only a sliding window"):
        next(bench_model(engine, [1000], BenchOptions(), said.append))
    assert said == []
