"""Host memory for stores: huge pages where the system has them, page-locked where a GPU reads it."""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import torch

from magicpig_cli.pages import huge_empty

# Smaller arrays share pages with others, which cannot be locked twice, and gain little.
_LOCKED_FROM_BYTES = 4 << 20


class RowMemory:
    """Where stores get their rows from.

    A GPU copies to and from page-locked memory without a detour, but systems limit how much of it there
    may be (containers, WSL), so a refusal is no failure: the rows are then ordinary memory.

    Parameters
    ----------
    device : torch.device, optional
        Where the model computes: rows for a GPU are asked to be page-locked.

    Attributes
    ----------
    refusal : str or None
        What to tell people once memory could not be locked; nothing more is asked for then.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._gpu = device if device is not None and device.type == "cuda" else None
        self.refusal: str | None = None

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """An uninitialised bf16 tensor in host memory."""
        rows = huge_empty(shape, np.uint16)
        if self._gpu is not None and self.refusal is None and rows.nbytes >= _LOCKED_FROM_BYTES:
            reason = _lock(rows, self._gpu)
            if reason is not None:
                self.refusal = (
                    "keys and values lie in ordinary host memory, which the GPU reads more slowly: it could "
                    f"not be page-locked ({reason})"
                )
        return torch.from_numpy(rows).view(torch.bfloat16)


def _lock(rows: np.ndarray, gpu: torch.device) -> str | None:
    """Lock an array's pages as long as it lives; why not, if that is refused.

    By registration and not by torch's `pin_memory`, which rounds sizes up to a power of two: of 393 MB
    (a layer of Llama-3.1-8B at 96k tokens) it would make 512.
    """
    address = rows.ctypes.data
    try:
        runtime = torch.cuda.cudart()
        status = runtime.cudaHostRegister(address, rows.nbytes, 0)
    except (AssertionError, AttributeError, RuntimeError) as error:  # torch, or the machine, has no CUDA
        return str(error).strip().partition("\n")[0] or type(error).__name__
    if int(status) != 0:
        _forget_error(gpu)
        return str(runtime.cudaGetErrorString(status))
    weakref.finalize(rows, _unlock, address, gpu).atexit = False  # the process's end unlocks all
    return None


def _unlock(address: int, gpu: torch.device) -> None:
    torch.cuda.synchronize(gpu)  # a copy from these pages may be under way
    torch.cuda.cudart().cudaHostUnregister(address)


def _forget_error(gpu: torch.device) -> None:
    """CUDA keeps the last error until it is fetched, and the next kernel would be blamed for it."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=gpu)
