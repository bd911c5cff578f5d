"""Keys and values of one layer in host memory, where prefill writes them and decode reads them.

A token's key and value lie side by side in one row, because sampled attention always
reads both and one visit to a DRAM page then serves for two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from magicpig_cli.store.memory import RowMemory

# From so many tokens on, keys and values travel to and from a GPU head by head: whole runs of memory.
_BY_HEAD_TOKENS = 64
# Rows added beyond what is asked for when a store must grow: a decode of some hundred tokens
# then copies the store at most once.
_GROWTH_TOKENS = 1024


class LayerStore:
    """Growing bf16 rows of one layer.

    Parameters
    ----------
    n_kv_heads, head_dim : int
    capacity : int
        Tokens to make room for at once; `write` beyond it grows the store by copying.
    memory : RowMemory, optional
        Where rows come from; ordinary memory by default.

    Attributes
    ----------
    rows : numpy.ndarray
        uint16 bit patterns of bfloat16, (n_kv_heads, capacity, 2, head_dim); index 0 of
        axis 2 is the key, 1 the value. Replaced when the store grows.
    n_tokens : int
        Tokens seen; the rows in use hold tokens `first_token` to `n_tokens` - 1.
    first_token : int
        0, except in a store that keeps only a window.
    """

    def __init__(
        self, n_kv_heads: int, head_dim: int, capacity: int, memory: RowMemory | None = None
    ) -> None:
        self._memory = memory or RowMemory()
        self.first_token = 0
        self.n_tokens = 0
        self._adopt(self._memory.allocate((n_kv_heads, max(capacity, 1), 2, head_dim)))

    def _adopt(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.rows: np.ndarray = tensor.view(torch.uint16).numpy()

    @property
    def capacity(self) -> int:
        return self._tensor.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use."""
        n_kv_heads, _, two, head_dim = self._tensor.shape
        return n_kv_heads * (self.n_tokens - self.first_token) * two * head_dim * 2

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values of tokens start, start + 1, ...; rounds to bf16.

        Parameters
        ----------
        start : int
            `first_token` to `n_tokens`; rows from there on are replaced.
        keys, values : torch.Tensor
            (n_kv_heads, n, head_dim), any float dtype, any device.
        """
        stop = start + keys.shape[1]
        self._make_room(start, stop)
        rows = self._block(start, stop)
        if keys.device.type == "cpu":
            rows[:, :, 0].copy_(keys)
            rows[:, :, 1].copy_(values)
        else:
            _fetch(rows, keys, values)
        self.n_tokens = stop

    def read(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of keys and values of tokens start to stop - 1, bf16, (n_kv_heads, n, head_dim) each."""
        rows = self._block(start, stop)
        return rows[:, :, 0], rows[:, :, 1]

    def send(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Fill tensors with the keys and values of tokens start, start + 1, ...

        On a GPU this is put in the current stream and not waited for.

        Parameters
        ----------
        start : int
        keys, values : torch.Tensor
            (n_kv_heads, n, head_dim), any float dtype, any device.
        """
        rows = self._block(start, start + keys.shape[1])
        if keys.device.type == "cpu":
            keys.copy_(rows[:, :, 0])
            values.copy_(rows[:, :, 1])
        else:
            _send(rows, keys, values)

    def _block(self, start: int, stop: int) -> torch.Tensor:
        """A view of the rows of tokens start to stop - 1, bf16, (n_kv_heads, n, 2, head_dim)."""
        return self._tensor[:, start - self.first_token : stop - self.first_token]

    def claim(self, first_token: int, n_tokens: int) -> np.ndarray:
        """Count tokens first_token to n_tokens - 1 as seen; whoever calls fills their rows.

        Returns
        -------
        numpy.ndarray
            Their rows, uint16, (n_kv_heads, n_tokens - first_token, 2, head_dim).
        """
        self.first_token = self.n_tokens = first_token
        self.reserve(n_tokens - first_token)
        self.n_tokens = n_tokens
        return self.rows[:, : n_tokens - first_token]

    def adopt(self, rows: torch.Tensor) -> None:
        """Keep the rows in this memory from now on, such as a private mapping of a file.

        Parameters
        ----------
        rows : torch.Tensor
            bf16, (n_kv_heads, capacity, 2, head_dim), C-contiguous and writable.
        """
        self._adopt(rows)

    def truncate(self, n_tokens: int) -> None:
        """Forget every token from `n_tokens` on, which is at least `first_token`."""
        self.n_tokens = min(self.n_tokens, n_tokens)

    def mark(self) -> Any:
        """What `rewind` needs to come back to this length."""
        return self.n_tokens

    def rewind(self, mark: Any) -> None:
        """Forget every token that came after `mark` was taken."""
        self.n_tokens = mark

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens in all, by copying what is there."""
        if capacity > self.capacity:
            n_kv_heads, _, two, head_dim = self._tensor.shape
            grown = self._memory.allocate((n_kv_heads, capacity, two, head_dim))
            used = self.n_tokens - self.first_token
            grown[:, :used] = self._tensor[:, :used]
            self._adopt(grown)

    def _make_room(self, start: int, stop: int) -> None:
        if stop > self.capacity:
            self.reserve(stop + _GROWTH_TOKENS)


class WindowStore(LayerStore):
    """The rows of a sliding layer: at most the last `window` tokens are needed, older ones are let go.

    Parameters
    ----------
    window : int
        Keys that a query of this layer sees, its own included.
    """

    def __init__(self, n_kv_heads: int, head_dim: int, window: int, memory: RowMemory | None = None) -> None:
        # Twice the window, so that rows move to the front only once per `window` tokens.
        super().__init__(n_kv_heads, head_dim, 2 * window, memory)
        self._window = window

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        surplus = max(0, keys.shape[1] - self._window)
        if surplus:
            self.first_token = self.n_tokens = start + surplus
        super().write(start + surplus, keys[:, surplus:], values[:, surplus:])

    def mark(self) -> Any:
        # Rows in sight now will be gone when the window has moved on, so they are kept aside.
        kept = self._tensor[:, : self.n_tokens - self.first_token].clone()
        return self.first_token, self.n_tokens, kept

    def rewind(self, mark: Any) -> None:
        self.first_token, self.n_tokens, kept = mark
        self._tensor[:, : kept.shape[1]] = kept

    def _make_room(self, start: int, stop: int) -> None:
        if stop - self.first_token > self.capacity:
            kept = min(self._window, start - self.first_token)
            begin = start - kept - self.first_token
            self._tensor[:, :kept] = self._tensor[:, begin : begin + kept].clone()
            self.first_token = start - kept


def _fetch(rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Copy keys and values from a device to rows of a store, and wait for them.

    They are put side by side and rounded on the device, so that what travels lies in one piece on both
    sides: copies into every other row, or of another dtype, would go through pageable memory twice.

    Parameters
    ----------
    rows : torch.Tensor
        bf16, (n_kv_heads, n, 2, head_dim), in host memory; a part of a store's.
    keys, values : torch.Tensor
        (n_kv_heads, n, head_dim).
    """
    if keys.shape[1] < _BY_HEAD_TOKENS:
        rows.copy_(torch.stack([keys, values], dim=2).bfloat16().cpu())
        return
    for row, key, value in zip(rows, keys, values, strict=True):
        row.copy_(torch.stack([key, value], dim=1).bfloat16(), non_blocking=True)
    if keys.device.type == "cuda":
        torch.cuda.current_stream(keys.device).synchronize()


def _send(rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """The way back: whole runs of a store's rows to the device, and taken apart there; as `_fetch`."""
    if keys.shape[1] < _BY_HEAD_TOKENS:
        there = rows.contiguous().to(keys.device, non_blocking=True)
        keys.copy_(there[:, :, 0])
        values.copy_(there[:, :, 1])
        return
    for row, key, value in zip(rows, keys, values, strict=True):
        there = row.to(key.device, non_blocking=True)
        key.copy_(there[:, 0])
        value.copy_(there[:, 1])
