"""Freed memory back to the system: what glibc's heap would keep of a load's intermediate results.

Its heap cannot shrink below a block that lives on, and packed weights live between the wide ones that were
freed: of an int8 model it kept as much as the weights take. The limit is one of the whole process, so that
only loading, which nothing runs beside, moves it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LOADING_FROM_BYTES = 256 << 10
# Where glibc's own adjusting ends (DEFAULT_MMAP_THRESHOLD_MAX and twice that), which is where it would be
# after a load.
_USUAL_FROM_BYTES = 32 << 20


@cache
def _libc() -> Any:
    """The C library, if it is glibc; None elsewhere."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows
        return None


@contextmanager
def returned_when_freed() -> Iterator[None]:
    """While the block runs, memory of large arrays is the system's again as soon as they are freed.

    Such arrays are mapped by themselves. At the end what is free in the heap is given back as well.
    """
    libc = _libc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _LOADING_FROM_BYTES)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, _USUAL_FROM_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _USUAL_FROM_BYTES)
        libc.malloc_trim(0)
