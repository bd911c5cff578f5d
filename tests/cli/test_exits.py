"""What an exception means: a kind, one sentence, a status."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, environment

from magicpig_cli.cli.exits import ending_of
from magicpig_cli.cli.signals import Signals
from magicpig_cli.errors import DamagedFile, DoesNotFit, ModelUnavailable, UsageError
from magicpig_cli.views.streams import OutputError, ReaderGone


class OutOfMemoryError(RuntimeError):
    """Named like torch's, which needs a GPU to be raised."""


@pytest.mark.parametrize(
    ("error", "status", "kind", "said"),
    [
        (UsageError("No such\nfile."), 2, "usage", "No such file."),
        (DoesNotFit("Too long."), 3, "does_not_fit", "Too long."),
        (DamagedFile("Cut."), 1, "damaged", "Cut."),
        (ModelUnavailable("Gated."), 1, "model_unavailable", "Gated."),
        (OutputError("Full."), 1, "output", "Full."),
        (MemoryError(), 1, "out_of_memory", "this machine ran out of memory"),
        (
            OutOfMemoryError("CUDA out of memory. Tried"),
            1,
            "out_of_memory",
            "the GPU ran out of memory; use --device",
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"
            ),
            1,
            "out_of_memory",
            "this machine ran out of memory",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1, "out_of_memory", "this machine"),
        (
            OSError(errno.ENOSPC, "No space", "/tmp/x"),
            1,
            "disk_full",
            "the disk is full while writing /tmp/x",
        ),
        (
            ValueError("two\nlines"),
            1,
            "unexpected",
            "unexpected ValueError: two lines; run again with --verbose",
        ),
        (AssertionError(), 1, "unexpected", "unexpected AssertionError; run again"),
    ],
)
def test_failures(error: BaseException, status: int, kind: str, said: str) -> None:
    ending = ending_of(error)
    assert ending.failure is not None
    assert (ending.status, ending.failure.kind) == (status, kind)
    assert said in ending.failure.sentence
    assert "\n" not in ending.failure.sentence


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (ReaderGone(), 141), (BrokenPipeError(), 141)]
)
def test_ends_that_are_no_failures(error: BaseException, status: int) -> None:
    ending = ending_of(error)
    assert (ending.status, ending.failure, ending.interrupted) == (status, None, True)


def test_what_a_library_makes_of_an_interruption_is_still_one() -> None:
    signals = Signals()
    signals.requested = 15
    assert ending_of(ImportError("partially initialised"), signals).status == 143


def test_a_second_ctrl_c_ends_a_process_whose_interpreter_waits() -> None:
    """As in a kernel, and here for good: a lock of the C library that is held, and no signal breaks into."""
    code = (
        "import ctypes\nfrom magicpig_cli.cli.signals import Interrupted, Signals\n"
        "library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)\n"
        "with Signals():\n"
        "    library.pthread_mutex_lock(lock)\n    told = False\n"
        # The first may come while it still says so, or before it waits again.
        "    while True:\n"
        "        try:\n"
        "            if not told:\n                told = True\n                print('waits', flush=True)\n"
        "            library.pthread_mutex_lock(lock)\n"
        "        except Interrupted:\n            pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == b"waits\n"
    n_sent = 0
    while process.poll() is None and n_sent < 100:
        process.send_signal(signal.SIGINT)
        n_sent += 1
        # Apart by more than what counts as one request; on a busy machine several may arrive as one.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    process.stdout.close()
    assert process.returncode == 130
    assert n_sent > 1


def test_an_interrupt_in_generated_code_ends_with_the_status_of_a_shell(tmp_path: Path) -> None:
    """Such code (dataclasses are made of it) leaves a mark by which `python -m` would kill itself."""
    (tmp_path / "interrupted.py").write_text(
        "from magicpig_cli.cli import exits\n"
        "try:\n    exec('raise KeyboardInterrupt')\n"
        "except KeyboardInterrupt:\n    exits.leave(130)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "interrupted"]
    assert subprocess.run(command, env=environment(PYTHONPATH=path), timeout=60).returncode == 130
