"""A loaded engine has compiled what its steps need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, environment
from small import small_model

# In a process of its own: other tests may have compiled already.
ASK = """
import sys
from magicpig_cli.documents import Document
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.lsh import hashing, kernels, tables
from magicpig_cli.models import gemv

def compiled():
    functions = [f for module in (hashing, kernels, tables, gemv) for f in vars(module).values()]
    return {f.__name__: len(f.signatures) for f in functions if hasattr(f, "signatures")}

engine = Engine.load(EngineSettings(model=sys.argv[1]))
before = compiled()
document = Document(source="a.txt", text="The gate is green. " * 100, encoding="utf-8")
list(engine.generate(AskRequest([document], "What is green?", max_tokens=int(sys.argv[2]))))
after = compiled()
assert before["attend"] and before["retrieve"], before
assert before == after, {name: (before[name], after[name]) for name in after if before[name] != after[name]}
"""


@pytest.mark.parametrize("max_tokens", [3, 600])
def test_no_step_compiles(tmp_path: Path, max_tokens: int) -> None:
    model = small_model(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(model), str(max_tokens)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
