"""Keys and values of one layer in host memory, where prefill writes them and decode reads them.

A token's key and value lie side by side in one row, because sampled attention always
reads both and one visit to a DRAM page then serves for two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from magicpig_cli.store.memory import allocate_rows

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
    pinned : bool
        Page-locked memory, so that a GPU copies from it without a detour.

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

    def __init__(self, n_kv_heads: int, head_dim: int, capacity: int, pinned: bool = False) -> None:
        self._pinned = pinned
        self.first_token = 0
        self.n_tokens = 0
        self._adopt(allocate_rows((n_kv_heads, max(capacity, 1), 2, head_dim), pinned))

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
        rows = self._tensor[:, start - self.first_token : stop - self.first_token]
        rows[:, :, 0].copy_(keys)
        rows[:, :, 1].copy_(values)
        self.n_tokens = stop

    def read(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of keys and values of tokens start to stop - 1, bf16, (n_kv_heads, n, head_dim) each."""
        rows = self._tensor[:, start - self.first_token : stop - self.first_token]
        return rows[:, :, 0], rows[:, :, 1]

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
            grown = allocate_rows((n_kv_heads, capacity, two, head_dim), self._pinned)
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

    def __init__(self, n_kv_heads: int, head_dim: int, window: int, pinned: bool = False) -> None:
        # Twice the window, so that rows move to the front only once per `window` tokens.
        super().__init__(n_kv_heads, head_dim, 2 * window, pinned)
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
