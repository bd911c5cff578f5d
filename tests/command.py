"""Runs the real command in real pipes, as a script would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAGICPIG = (sys.executable, "-m", "magicpig_cli")


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment, with what would change the command's behaviour taken out.

    What is read is not kept, unless a test takes `MAGICPIG_NO_CACHE` out and names a `MAGICPIG_CACHE`.
    """
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("MAGICPIG", "PYTEST", "COLUMNS", "LINES"))
    }
    kept["PYTHONPATH"] = str(ROOT)
    kept["MAGICPIG_NO_CACHE"] = "1"
    for name, value in changes.items():
        kept.pop(name, None)
        if value is not None:
            kept[name] = value
    return kept


def magicpig(
    *arguments: str,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> Result:
    """Run `magicpig` with both streams in pipes; without `stdin` that is the null device."""
    done = subprocess.run(
        [*MAGICPIG, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=env or environment(),
        cwd=cwd,
        timeout=timeout_s,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(
    script: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 120
) -> Result:
    """Run a bash script in which `magicpig` is the command; the status is the script's."""
    name = " ".join(MAGICPIG)
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail\nmagicpig() {{ {name} "$@"; }}\n{script}'],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=env or environment(),
        cwd=cwd,
        timeout=timeout_s,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def one_sentence(err: str) -> bool:
    """One line, from this program, that is not a traceback."""
    return (
        err.startswith("magicpig: ")
        and err.count("\n") == 1
        and err.endswith("\n")
        and "Traceback" not in err
    )


__all__: Sequence[str] = ["MAGICPIG", "ROOT", "Result", "environment", "magicpig", "one_sentence", "shell"]
