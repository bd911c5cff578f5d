"""The small family of errors that end a command.

Each carries the one sentence that a person reads and the exit status that a script
sees (docs: README, "Exit statuses"). They are raised where the fact is known and
printed in one place, `cli.exits`.
"""

from __future__ import annotations

import errno
from typing import ClassVar


class MagicPigError(Exception):
    """It failed on the way (status 1).

    Parameters
    ----------
    sentence : str
        What was wrong with which input, the numbers, and what to do next.
    """

    kind: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = 1

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class UsageError(MagicPigError):
    """It was asked wrongly: no such file, bad option, empty or undecodable document (status 2)."""

    kind = "usage"
    exit_status = 2


class DoesNotFit(MagicPigError):
    """The document is longer than the model's context, or the machine too small (status 3)."""

    kind = "does_not_fit"
    exit_status = 3


class DamagedFile(MagicPigError):
    """A model, index or download is incomplete or altered (status 1)."""

    kind = "damaged"


class ModelUnavailable(MagicPigError):
    """A model cannot be had: gated, unknown, offline, or no such folder (status 1)."""

    kind = "model_unavailable"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's own error, torch's for a GPU, an allocator's or the system's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    # torch's allocator for host memory, CUDA's libraries, and a file that cannot be mapped.
    return isinstance(error, RuntimeError | OSError) and tells_of_no_memory(str(error))


def tells_of_no_memory(text: str) -> bool:
    """Whether a library's message or a traceback says that memory ran out."""
    said = text.lower()
    return any(words in said for words in ("allocate memory", "out of memory", "memoryerror"))
