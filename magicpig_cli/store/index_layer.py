"""One layer of an index on disk: its keys and values as a safetensors file that can be memory-mapped.

Written when prefill has finished the layer, read when a later question finds the document's index.
Every byte that is used is covered by a checksum, which is compared before anything attends to it.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

import torch

from magicpig_cli.store.index_bytes import bytes_of, read_into, require_whole
from magicpig_cli.store.index_record import LayerRecord, open_private
from magicpig_cli.store.kv import LayerStore

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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
            file.seek(len(header) + head * record.capacity * record.row_bytes)
            data = bytes_of(store.rows[head, : record.n_rows])
            checksum = zlib.crc32(data, checksum)
            file.write(data)
        file.seek(len(header) + record.n_kv_heads * record.capacity * record.row_bytes)
        data = bytes_of(observed.detach().cpu().contiguous().view(torch.uint8).numpy())
        checksum = zlib.crc32(data, checksum)
        file.write(data)
        n_bytes = file.tell()
    return LayerRecord(**(record.as_json() | {"n_bytes": n_bytes, "checksum": checksum}))


def dtype_name(dtype: torch.dtype) -> str:
    """How safetensors calls a dtype."""
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
        require_whole(os.fstat(file.fileno()).st_size == record.n_bytes, path)
        require_whole(file.read(len(header)) == header, path)
        checksum = zlib.crc32(header)
        rows_bytes = record.n_kv_heads * record.capacity * record.row_bytes
        if mapped:
            region = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            count = rows_bytes // 2
            tensor = torch.frombuffer(region, dtype=torch.bfloat16, count=count, offset=len(header))
            store.adopt(tensor.view(record.n_kv_heads, record.capacity, 2, record.head_dim))
        rows = store.claim(record.first_token, record.n_tokens)
        for head in range(record.n_kv_heads):
            data = bytes_of(rows[head])
            if not mapped:
                file.seek(len(header) + head * record.capacity * record.row_bytes)
                read_into(file, data, path)
            checksum = zlib.crc32(data, checksum)
        file.seek(len(header) + rows_bytes)
        observed = torch.empty(
            (record.n_q_heads, record.observed_tokens, record.head_dim), dtype=_DTYPES[record.observed_dtype]
        )
        data = bytes_of(observed.view(torch.uint8).numpy())
        read_into(file, data, path)
        require_whole(zlib.crc32(data, checksum) == record.checksum, path)
    return observed
