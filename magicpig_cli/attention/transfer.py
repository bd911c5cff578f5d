"""A step's query, key and value to the host and its result back: page-locked buffers on a GPU.

Kernels read queries and write results in host memory, where a layer's store is as well. A GPU's copies to
and from page-locked memory need no detour and no allocation; what a step sends goes in one piece, and
is the only thing that is waited for.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from magicpig_cli.lsh.params import LayerShape


class Transfer(Protocol):
    """Carries queries of one layer shape to the kernels and their results back."""

    def carry(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Send all that a step needs on the host; a `to_host` of the same query follows.

        Parameters
        ----------
        query : torch.Tensor
            (n_q_heads, head_dim).
        key, value : torch.Tensor
            (n_kv_heads, 1, head_dim).

        Returns
        -------
        tuple of torch.Tensor
            Key and value on the host, valid until the next call.
        """

    def to_host(self, query: torch.Tensor) -> np.ndarray:
        """The query, (n_q_heads, head_dim), as float32 in host memory; valid until the next call.

        Nothing is sent if it was the last that `carry` took along.
        """

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

    def carry(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Transfer`."""
        return key, value

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
    the next operation reads it, and has left its host buffer before the next query arrives. Layers that take
    turns can share one.
    """

    def __init__(self, device: torch.device, shape: LayerShape) -> None:
        size = (shape.n_q_heads, shape.head_dim)
        pinned = device.type == "cuda"
        # Query, key and value, one below the other.
        heads = (shape.n_q_heads, shape.n_kv_heads, shape.n_kv_heads)
        sent = (sum(heads), shape.head_dim)
        self._sent = torch.empty(sent, device=device)
        self._arrived_rows = torch.empty(sent, pin_memory=pinned)
        self._to_send = self._sent.split(heads)
        self._arrived_parts = self._arrived_rows.split(heads)
        self._carried: torch.Tensor | None = None
        self._host_out = torch.empty(size, pin_memory=pinned)
        self._host_lse = torch.empty(size[0], pin_memory=pinned)
        self._device_out = torch.empty(size, device=device)
        self._device_lse = torch.empty(size[0], device=device)
        self._device = device
        self._arrived = torch.cuda.Event() if pinned else None

    def carry(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Transfer`; returns when all has arrived."""
        self._send(query, key[:, 0], value[:, 0])
        self._carried = query
        _, host_key, host_value = self._arrived_parts
        return host_key[:, None], host_value[:, None]

    def to_host(self, query: torch.Tensor) -> np.ndarray:
        """See `Transfer`; returns when the query has arrived."""
        if query is not self._carried:
            self._carried = None
            self._send(query)
        return self._arrived_parts[0].numpy()

    def _send(self, *parts: torch.Tensor) -> None:
        """The first parts of the buffers, in one copy that is waited for."""
        # Widened on the device: a copy that also converts would go through pageable memory.
        for there, part in zip(self._to_send, parts, strict=False):
            there.copy_(part)
        n_rows = sum(len(part) for part in parts)
        self._arrived_rows[:n_rows].copy_(self._sent[:n_rows], non_blocking=True)
        if self._arrived is not None:
            # In the stream of this device, which need not be the current one.
            self._arrived.record(torch.cuda.current_stream(self._device))
            self._arrived.synchronize()

    def to_device(
        self, out: np.ndarray, lse: np.ndarray, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Transfer`; returns at once, the copy goes on."""
        self._host_out.copy_(torch.from_numpy(out))
        self._host_lse.copy_(torch.from_numpy(lse))
        self._device_out.copy_(self._host_out, non_blocking=True)
        self._device_lse.copy_(self._host_lse, non_blocking=True)
        return self._device_out.to(like.dtype), self._device_lse
