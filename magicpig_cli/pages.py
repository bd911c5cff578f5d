"""Host memory in huge pages where the system has them: for rows and tables that are read at random.

With pages of 4 KiB nearly every such read would also miss the TLB; a step over 96,000 keys took 15
to 20 % longer.
"""

from __future__ import annotations

import contextlib
import mmap
from math import prod

import numpy as np
import numpy.typing as npt

# Below this a huge page would be mostly empty.
_FROM_BYTES = 4 << 20


def huge_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """An array like `numpy.empty`, in private memory that asks for huge pages if it is large."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    if n_bytes < _FROM_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(shape, dtype)
    # Private: Python's default is shared memory, for which huge pages are usually off.
    region = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype, count=prod(shape)).reshape(shape)
