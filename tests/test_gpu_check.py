"""`scripts/gpu_check`: its logic on the CPU device, and its one sentence where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import ROOT, environment

SCRIPT = ROOT / "scripts" / "gpu_check"


# Packages that a GPU machine may lack, since nothing that is checked needs them.
UNNEEDED = ("gguf", "platformdirs", "prompt_toolkit", "bitsandbytes")


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment(**changes), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_claims_nothing() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_check: torch sees no CUDA device")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_its_checks_pass_on_the_cpu_device(tmp_path: Path) -> None:
    done = run("--rehearse", "--report", str(tmp_path / "report.md"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "says nothing of a GPU" in lines[0]
    assert not any(line.startswith("FAIL") for line in lines)
    assert lines[-1] == "all checks passed"
    assert (tmp_path / "report.md").read_text(encoding="utf-8").splitlines() == lines
    # Copies, attention kernels with their log-sum-exps, three models three times, eight formats of blocks
    # twice, and both quantisations.
    assert sum(line.startswith("ok  ") for line in lines) == 2 + 54 + 9 + 16 + 2
    splits = [line for line in lines if "the model without attention" in line]
    assert len(splits) == 3


@pytest.mark.slow
def test_it_keeps_to_its_time_and_needs_no_more_than_it_uses(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "real = PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        f"    return None if name.partition('.')[0] in {UNNEEDED} else real(name, path, target)\n"
        "PathFinder.find_spec = find_spec\n"
    )
    done = run("--rehearse", "--seconds", "0", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stdout.splitlines() if line.startswith("skip ")]
    assert len(skipped) == 9
    assert all("the time is over" in line for line in skipped)
