"""One layer of an index on disk: its keys and values as a safetensors file that can be memory-mapped.

Written when prefill has finished the layer, read when a later question finds the document's index.
Every byte that is used is covered by a checksum, which is compared before anything attends to it.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.kv import LayerStore

# Tensor data starts on a page, so that a mapping of the file is aligned for any kernel.
_PAGE = 4096
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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
        return self.n_bytes - self.n_kv_heads * (self.capacity - self.n_rows) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return 2 * self.head_dim * 2

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def header(self) -> bytes:
        """The file's head: the same for the same record, so that it need not be trusted."""
        rows_end = self.n_kv_heads * self.capacity * self._row_bytes
        shape = [self.n_q_heads, self.observed_tokens, self.head_dim]
        observed_bytes = int(np.prod(shape)) * _DTYPES[self.observed_dtype].itemsize
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
        text = json.dumps(tensors, separators=(",", ":")).encode()
        padded = -(-(8 + len(text)) // _PAGE) * _PAGE - 8
        return padded.to_bytes(8, "little") + text.ljust(padded)


def layer_name(layer: int) -> str:
    """The file of a layer."""
    return f"layer-{layer:04d}.safetensors"


def write_layer(path: Path, store: LayerStore, observed: torch.Tensor, record: LayerRecord) -> LayerRecord:
    """Write a layer; the file is complete but not synced when this returns.

    Parameters
    ----------
    path : Path
        Replaced if it exists.
    store : LayerStore
        Holds the tokens that `record` names.
    observed : torch.Tensor
        (n_q_heads, observed_tokens, head_dim).
    record : LayerRecord
        Size and checksum are not filled in yet.

    Returns
    -------
    LayerRecord
        With size and checksum.

    Raises
    ------
    OSError
        If the disk is full or fails.
    """
    header = record.header()
    checksum = zlib.crc32(header)
    with open_private(path) as file:
        file.write(header)
        for head in range(record.n_kv_heads):
            file.seek(len(header) + head * record.capacity * record._row_bytes)
            data = _bytes_of(store.rows[head, : record.n_rows])
            checksum = zlib.crc32(data, checksum)
            file.write(data)
        file.seek(len(header) + record.n_kv_heads * record.capacity * record._row_bytes)
        data = _bytes_of(observed.detach().cpu().contiguous().view(torch.uint8).numpy())
        checksum = zlib.crc32(data, checksum)
        file.write(data)
        n_bytes = file.tell()
    return LayerRecord(**(record.as_json() | {"n_bytes": n_bytes, "checksum": checksum}))


def observed_name(dtype: torch.dtype) -> str:
    """How safetensors calls a dtype of queries."""
    return _NAMES[dtype]


def read_layer(path: Path, record: LayerRecord, store: LayerStore, mapped: bool) -> torch.Tensor:
    """Fill a store from a layer's file, and check every byte on the way.

    Parameters
    ----------
    path : Path
    record : LayerRecord
    store : LayerStore
        Of the record's shape, empty; holds the record's tokens afterwards.
    mapped : bool
        Leave the rows in the file: pages are read when they are needed, what is appended is private to
        this process. Else they are copied into the store's own memory.

    Returns
    -------
    torch.Tensor
        The observed queries, (n_q_heads, observed_tokens, head_dim).

    Raises
    ------
    DamagedFile
        If it is not, byte for byte, what was written.
    FileNotFoundError
    """
    with path.open("rb", buffering=0) as file:
        header = record.header()
        _require(os.fstat(file.fileno()).st_size == record.n_bytes, path)
        _require(file.read(len(header)) == header, path)
        checksum = zlib.crc32(header)
        rows_bytes = record.n_kv_heads * record.capacity * record._row_bytes
        if mapped:
            region = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            count = rows_bytes // 2
            tensor = torch.frombuffer(region, dtype=torch.bfloat16, count=count, offset=len(header))
            store.adopt(tensor.view(record.n_kv_heads, record.capacity, 2, record.head_dim))
        rows = store.claim(record.first_token, record.n_tokens)
        for head in range(record.n_kv_heads):
            data = _bytes_of(rows[head])
            if not mapped:
                file.seek(len(header) + head * record.capacity * record._row_bytes)
                _read_into(file, data, path)
            checksum = zlib.crc32(data, checksum)
        file.seek(len(header) + rows_bytes)
        observed = torch.empty(
            (record.n_q_heads, record.observed_tokens, record.head_dim), dtype=_DTYPES[record.observed_dtype]
        )
        data = _bytes_of(observed.view(torch.uint8).numpy())
        _read_into(file, data, path)
        _require(zlib.crc32(data, checksum) == record.checksum, path)
    return observed


def open_private(path: Path) -> BinaryIO:
    """A file for writing that only its owner can read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    return os.fdopen(descriptor, "wb")


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _read_into(file: Any, data: memoryview, path: Path) -> None:
    """Fill `data`; the system hands over at most two gigabytes at once."""
    done = 0
    while done < len(data):
        n = file.readinto(data[done:])
        _require(bool(n), path)
        done += n


def _require(whole: bool, path: Path) -> None:
    if not whole:
        raise DamagedFile(f"{path} is altered or incomplete")
