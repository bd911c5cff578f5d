"""Keys and values of one layer in host memory, where prefill writes them and decode reads them.

A token's key and value lie side by side in one row, because sampled attention always
reads both and one visit to a DRAM page then serves for two.
"""

from __future__ import annotations

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
        Rows in use.
    """

    def __init__(self, n_kv_heads: int, head_dim: int, capacity: int, pinned: bool = False) -> None:
        self._pinned = pinned
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
        return n_kv_heads * self.n_tokens * two * head_dim * 2

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values of tokens start, start + 1, ...; rounds to bf16.

        Parameters
        ----------
        start : int
            At most `n_tokens`; rows from there on are replaced.
        keys, values : torch.Tensor
            (n_kv_heads, n, head_dim), any float dtype, any device.
        """
        stop = start + keys.shape[1]
        if stop > self.capacity:
            self._grow(stop)
        self._tensor[:, start:stop, 0].copy_(keys)
        self._tensor[:, start:stop, 1].copy_(values)
        self.n_tokens = stop

    def read(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of keys and values, bf16, (n_kv_heads, stop - start, head_dim) each."""
        return self._tensor[:, start:stop, 0], self._tensor[:, start:stop, 1]

    def truncate(self, n_tokens: int) -> None:
        """Forget all tokens from `n_tokens` on."""
        self.n_tokens = min(self.n_tokens, n_tokens)

    def _grow(self, needed: int) -> None:
        n_kv_heads, _, two, head_dim = self._tensor.shape
        grown = allocate_rows((n_kv_heads, needed + _GROWTH_TOKENS, two, head_dim), self._pinned)
        grown[:, : self.n_tokens] = self._tensor[:, : self.n_tokens]
        self._adopt(grown)
