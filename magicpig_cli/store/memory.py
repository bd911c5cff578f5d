"""Host memory for stores: huge pages where the system has them, page-locked where a GPU reads it."""

from __future__ import annotations

import numpy as np
import torch

from magicpig_cli.pages import huge_empty


def allocate_rows(shape: tuple[int, ...], pinned: bool = False) -> torch.Tensor:
    """An uninitialised bf16 tensor in host memory."""
    if pinned:
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=True)
    return torch.from_numpy(huge_empty(shape, np.uint16)).view(torch.bfloat16)
