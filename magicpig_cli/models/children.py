"""Downloads run in a child process: it can be stopped at once, and its chatter reaches no stream of ours.

The parent watches the bytes grow on disk, reports them, and gives up on a transfer that stands still.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.2
# An index or hub that sends nothing for so long will not answer.
STALL_S = 120.0


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child ended. `stalled` means that it was stopped as nothing arrived any more."""

    status: int
    output: str
    errors: str
    stalled: bool = False


def run_watched(
    command: Sequence[str],
    watched: Sequence[Path],
    report_bytes: Callable[[int], None],
    environment: Mapping[str, str],
    stall_s: float = STALL_S,
) -> ChildResult:
    """Run a command to its end while reporting how many bytes lie under some folders.

    Parameters
    ----------
    command : sequence of str
    watched : sequence of Path
    report_bytes : callable
        Gets the bytes now on disk, each time that they changed.
    environment : mapping
        Added to this process's own.
    stall_s : float
        Seconds without a new byte after which the child is stopped.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **environment}
        )
        try:
            stalled = _watch(child, watched, report_bytes, stall_s)
        finally:
            _stop(child)
        out.seek(0)
        err.seek(0)
        return ChildResult(
            child.returncode,
            out.read().decode("utf-8", "replace"),
            err.read().decode("utf-8", "replace"),
            stalled,
        )


def bytes_under(folder: Path) -> int:
    """Bytes of the files below a folder that other processes are changing."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            total += status.st_size
    return total


def _watch(
    child: subprocess.Popen[bytes],
    watched: Sequence[Path],
    report_bytes: Callable[[int], None],
    stall_s: float,
) -> bool:
    seen, since = -1, time.monotonic()
    while child.poll() is None:
        now = sum(map(bytes_under, watched))
        if now != seen:
            seen, since = now, time.monotonic()
            report_bytes(now)
        elif time.monotonic() - since > stall_s:
            return True
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
    # What came since the last look, which may be everything.
    now = sum(map(bytes_under, watched))
    if now != seen:
        report_bytes(now)
    return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
