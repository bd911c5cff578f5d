"""Numbers as the bytes of a file, and back: what every file of an index is written and read with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from magicpig_cli.errors import DamagedFile


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def read_into(file: Any, data: memoryview, path: Path) -> None:
    """Fill `data`; the system hands over at most two gigabytes at once.

    Raises
    ------
    DamagedFile
        If the file ends before.
    """
    done = 0
    while done < len(data):
        n = file.readinto(data[done:])
        require_whole(bool(n), path)
        done += n


def require_whole(whole: bool, path: Path) -> None:
    """Refuse a file that is not, byte for byte, what was written; raises DamagedFile."""
    if not whole:
        raise DamagedFile(f"{path} is altered or incomplete")
