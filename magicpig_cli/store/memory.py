"""Host memory for stores: huge pages where the system has them, page-locked where a GPU reads it."""

from __future__ import annotations

import contextlib
import mmap
from math import prod

import torch

# Below this a huge page would be mostly empty.
_HUGE_PAGE_FROM_BYTES = 4 << 20


def allocate_rows(shape: tuple[int, ...], pinned: bool = False) -> torch.Tensor:
    """An uninitialised bf16 tensor in host memory.

    Sampled rows are read at random: with 4 KiB pages each would also miss the TLB, so the
    kernel is asked for huge pages. Where it has none, ordinary ones serve.
    """
    if pinned:
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=True)
    n_bytes = prod(shape) * 2
    if n_bytes < _HUGE_PAGE_FROM_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=torch.bfloat16)
    # Private: Python's default is shared memory, for which huge pages are usually off.
    region = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.bfloat16, count=prod(shape)).view(shape)
