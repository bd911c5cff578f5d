"""The comparison with llama.cpp: why its process ended is passed on, and the table has all figures."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def beside() -> Any:
    """The script as a module."""
    path = Path(__file__).parents[2] / "benchmarks" / "beside_llama_cpp.py"
    spec = importlib.util.spec_from_file_location("beside_llama_cpp", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_python_without_llama_cpp_is_named_at_once(beside: Any, tmp_path: Path) -> None:
    if importlib.util.find_spec("xllamacpp"):
        pytest.skip("this Python has llama.cpp")
    with tempfile.TemporaryFile() as log:
        theirs = beside.LlamaCpp(Path(sys.executable), tmp_path / "m.gguf", 1, 256, dict(os.environ), log)
        with pytest.raises(SystemExit, match=r"ended with status 1(.|\n)*No module named 'xllamacpp'"):
            theirs.ask("about")
        theirs.close()


def test_the_table_has_every_round_s_figures(beside: Any) -> None:
    decode = beside._figures("ms_per_token", [10.0, 14.0, 12.0], [30.0, 28.0, 60.0], [3.0, 2.0, 5.0])
    prefill = beside._figures("tokens_per_s", [300.0], [150.0], [2.0])
    text = beside.table(
        {
            "gguf": "m.gguf",
            "threads": 2,
            "rounds": 3,
            "tokens_per_round": 8,
            "machine": {"cpu": "c", "python": "3", "torch": "t", "numba": "n", "xllamacpp": "x"},
            "prefill": {"tokens": 2000} | prefill,
            "decode": [{"ctx": 96000, "n_bits": 10, "n_tables": 75, "min_collisions": 2} | decode],
        }
    )
    row = "| 96,000 | 10, 75, 2 | 12.0 (10.0 to 14.0) | 30.0 (28.0 to 60.0) | 3.0 (2.0 to 5.0) |"
    assert row in text.splitlines()
    assert "Reading 2,000 tokens: magicpig 300.0 (300.0 to 300.0) tokens/s, llama.cpp 150.0" in text
