"""Kernels are kept on disk where there is a place, and compiled all the same where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from command import environment

from magicpig_cli.lsh.jit import kept_on_disk
from magicpig_cli.lsh.tables import sort_by_code

_CODE = """
from magicpig_cli.lsh.jit import jit, kept_on_disk
namespace = {}
# No file, so nothing to keep it beside: the same refusal as of a folder that cannot be written.
exec("def add(a, b):\\n    return a + b", namespace)
add = jit()(namespace["add"])
print(add(1, 2), kept_on_disk(add))
"""


def test_a_function_without_a_place_is_compiled_in_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "3 False\n"


def test_the_kernels_are_kept() -> None:
    assert Path(sort_by_code.py_func.__code__.co_filename).exists()
    assert kept_on_disk(sort_by_code)
