"""Kernels are kept on disk where there is a place, and compiled all the same where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from command import ROOT, environment

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


_FULL = """
import errno
from numba.core.caching import IndexDataCacheFile
def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
IndexDataCacheFile.save = full
from magicpig_cli.lsh.jit import jit, kept_on_disk
import kernel
print(kernel.add(1, 2), kernel.add(1.5, 2), kept_on_disk(kernel.add))
"""


def test_a_full_disk_costs_the_keeping_and_not_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "from magicpig_cli.lsh.jit import jit\n@jit()\ndef add(a, b):\n    return a + b\n"
    )
    env = environment(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env.get('PYTHONPATH', ROOT)}"
    done = subprocess.run(
        [sys.executable, "-c", _FULL], env=env, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "3 3.5 False\n"


def test_the_kernels_are_kept() -> None:
    assert Path(sort_by_code.py_func.__code__.co_filename).exists()
    assert kept_on_disk(sort_by_code)
