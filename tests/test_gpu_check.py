"""`scripts/gpu_check`: its logic on the CPU device, and its one sentence where there is no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from command import ROOT, environment

SCRIPT = ROOT / "scripts" / "gpu_check"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_claims_nothing() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_check: torch sees no CUDA device")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_its_checks_pass_on_the_cpu_device() -> None:
    done = run("--rehearse", "--tokens", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "says nothing of a GPU" in lines[0]
    assert sum(line.startswith("ok  ") for line in lines) > 50
    assert not any(line.startswith("FAIL") for line in lines)
    assert lines[-1] == "all checks passed"
