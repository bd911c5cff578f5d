"""What is noted of one layer in an index: shapes, sizes and a checksum, and the file's head made of them.

Apart from the numbers themselves (`index_layer`), so that listing indexes needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

# Tensor data starts on a page, so that a mapping of the file is aligned for any kernel.
PAGE = 4096
_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """What must be known of a layer beside its numbers, and how to tell that they are whole.

    Attributes
    ----------
    n_q_heads, n_kv_heads, head_dim : int
    scale, softcap, window
        How the layer attends; see `attention.hook.LayerRule`.
    first_token, n_tokens : int
        The rows hold tokens first_token to n_tokens - 1.
    capacity : int
        Rows of each KV head in the file; those behind the ones in use are a hole that takes no disk.
    observed_tokens : int
        Queries of the last prompt tokens that are kept beside the rows.
    observed_dtype : str
        Of these, as safetensors names it.
    n_bytes : int
        Size of the file, holes included.
    checksum : int
        CRC-32 of the header, the rows in use and the observed queries.
    """

    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    softcap: float
    window: int | None
    first_token: int
    n_tokens: int
    capacity: int
    observed_tokens: int
    observed_dtype: str
    n_bytes: int = 0
    checksum: int = 0

    @property
    def n_rows(self) -> int:
        return self.n_tokens - self.first_token

    @property
    def kept_bytes(self) -> int:
        """Bytes that take disk space, about."""
        return self.n_bytes - self.n_kv_heads * (self.capacity - self.n_rows) * self.row_bytes

    @property
    def planned_bytes(self) -> int:
        """Bytes that will take disk space, before the file is written."""
        rows = self.n_kv_heads * self.n_rows * self.row_bytes
        observed = self.n_q_heads * self.observed_tokens * self.head_dim * _ITEM_BYTES[self.observed_dtype]
        return len(self.header()) + rows + observed

    @property
    def row_bytes(self) -> int:
        return 2 * self.head_dim * 2

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def header(self) -> bytes:
        """The file's head: the same for the same record, so that it need not be trusted."""
        rows_end = self.n_kv_heads * self.capacity * self.row_bytes
        shape = [self.n_q_heads, self.observed_tokens, self.head_dim]
        observed_bytes = prod(shape) * _ITEM_BYTES[self.observed_dtype]
        tensors = {
            "rows": {
                "dtype": "BF16",
                "shape": [self.n_kv_heads, self.capacity, 2, self.head_dim],
                "data_offsets": [0, rows_end],
            },
            "observed": {
                "dtype": self.observed_dtype,
                "shape": shape,
                "data_offsets": [rows_end, rows_end + observed_bytes],
            },
        }
        return file_head(tensors, PAGE)


def file_head(tensors: Mapping[str, Any], alignment: int) -> bytes:
    """The beginning of a safetensors file of these tensors; data starts at a multiple of `alignment`."""
    text = json.dumps(tensors, separators=(",", ":")).encode()
    padded = -(-(8 + len(text)) // alignment) * alignment - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)


def layer_name(layer: int) -> str:
    """The file of a layer."""
    return f"layer-{layer:04d}.safetensors"


def open_private(path: Path) -> BinaryIO:
    """A file for writing that only its owner can read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    return os.fdopen(descriptor, "wb")
