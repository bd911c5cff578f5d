"""The peak that is reported is this process's own."""

from __future__ import annotations

import subprocess
import sys

from magicpig_cli.engine.memory import host_peak_bytes

TELL = "from magicpig_cli.engine.memory import host_peak_bytes; print(host_peak_bytes())"


def peak_of_a_child() -> int:
    done = subprocess.run([sys.executable, "-c", TELL], capture_output=True, check=True, timeout=120)
    return int(done.stdout)


def test_the_peak_is_not_that_of_the_program_which_started_the_process() -> None:
    alone = peak_of_a_child()
    held = bytearray(b"x") * (2 * alone)  # touched, so that it counts
    assert host_peak_bytes() > 2 * alone
    assert peak_of_a_child() < 1.5 * alone
    del held


def test_memory_that_was_held_and_freed_counts_as_peak() -> None:
    before = host_peak_bytes()
    held = bytearray(b"x") * (before + (64 << 20))
    del held
    assert host_peak_bytes() >= before + (64 << 20)
