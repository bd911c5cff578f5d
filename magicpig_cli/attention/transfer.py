"""A step's query to the host and its result back: nothing on a CPU, page-locked buffers on a GPU.

Kernels read queries and write results in host memory. A GPU's copies to and from page-locked
memory need no detour and no allocation, and only the one that the kernel waits for is waited for.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from magicpig_cli.lsh.params import LayerShape


class Transfer(Protocol):
    """Carries queries of one layer shape to the kernels and their results back."""

    def to_host(self, query: torch.Tensor) -> np.ndarray:
        """The query, (n_q_heads, head_dim), as float32 in host memory; valid until the next call."""

    def to_device(
        self, out: np.ndarray, lse: np.ndarray, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A kernel's result where the model computes.

        Parameters
        ----------
        out : numpy.ndarray
            float32, (n_q_heads, head_dim).
        lse : numpy.ndarray
            float32, (n_q_heads,).
        like : torch.Tensor
            The query: its dtype and device are the output's.

        Returns
        -------
        tuple of torch.Tensor
            Output in the dtype of `like`, and log-sum-exp in float32; valid until the next call.
        """


def transfer(device: torch.device, shape: LayerShape) -> Transfer:
    """What a model on `device` needs."""
    return InPlace() if device.type == "cpu" else Staged(device, shape)


class InPlace:
    """A CPU computes where the kernels do, in float32: the same memory serves both."""

    def to_host(self, query: torch.Tensor) -> np.ndarray:
        """See `Transfer`."""
        return query.numpy()

    def to_device(
        self, out: np.ndarray, lse: np.ndarray, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Transfer`."""
        return torch.from_numpy(out), torch.from_numpy(lse)


class Staged:
    """Buffers on both sides, made once.

    All copies run in the stream that the model computes in, so a result is on the device before
    the next operation reads it, and has left its host buffer before the next query arrives.
    """

    def __init__(self, device: torch.device, shape: LayerShape) -> None:
        size = (shape.n_q_heads, shape.head_dim)
        pinned = device.type == "cuda"
        self._query = torch.empty(size, pin_memory=pinned)
        self._host_out = torch.empty(size, pin_memory=pinned)
        self._host_lse = torch.empty(size[0], pin_memory=pinned)
        self._wide_query = torch.empty(size, device=device)
        self._device_out = torch.empty(size, device=device)
        self._device_lse = torch.empty(size[0], device=device)
        self._device = device
        self._arrived = torch.cuda.Event() if pinned else None

    def to_host(self, query: torch.Tensor) -> np.ndarray:
        """See `Transfer`; returns when the query has arrived."""
        # Widened on the device: a copy that also converts would go through pageable memory.
        self._wide_query.copy_(query)
        self._query.copy_(self._wide_query, non_blocking=True)
        if self._arrived is not None:
            # In the stream of this device, which need not be the current one.
            self._arrived.record(torch.cuda.current_stream(self._device))
            self._arrived.synchronize()
        return self._query.numpy()

    def to_device(
        self, out: np.ndarray, lse: np.ndarray, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Transfer`; returns at once, the copy goes on."""
        self._host_out.copy_(torch.from_numpy(out))
        self._host_lse.copy_(torch.from_numpy(lse))
        self._device_out.copy_(self._host_out, non_blocking=True)
        self._device_lse.copy_(self._host_lse, non_blocking=True)
        return self._device_out.to(like.dtype), self._device_lse
