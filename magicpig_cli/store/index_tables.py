"""Hash tables beside the keys and values of an index, where reading them is sooner done than building them.

They serve one way of attending, so they are extra: an index without them, or with damaged ones, is whole.
A file per layer, and one that says what the files hold.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from magicpig_cli.errors import DamagedFile
from magicpig_cli.pages import huge_empty
from magicpig_cli.store.index_bytes import bytes_of, read_into, require_whole
from magicpig_cli.store.index_meta import read_checked, write_checked
from magicpig_cli.store.index_record import PAGE, file_head, open_private

TABLES = "tables.json"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype(np.float32), "U16": np.dtype(np.uint16)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TablesRecord:
    """The tables of one layer.

    Attributes
    ----------
    key : str
        What they were made of: with another key they are of no use.
    arrays : tuple of (str, str, tuple of int)
        Name, dtype as safetensors calls it, and shape of each, in the order of the file.
    n_bytes : int
        Size of the file.
    checksum : int
        CRC-32 of all of it.
    """

    key: str
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    n_bytes: int = 0
    checksum: int = 0

    def header(self) -> bytes:
        """The file's head: the same for the same record, so that it need not be trusted."""
        tensors: dict[str, Any] = {}
        end = 0
        for name, dtype, shape in self.arrays:
            start, end = end, end + prod(shape) * _DTYPES[dtype].itemsize
            tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        return file_head(tensors, PAGE)


def tables_name(layer: int) -> str:
    """The file of a layer's tables."""
    return f"tables-{layer:04d}.safetensors"


def write_tables(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> TablesRecord:
    """Write a layer's tables; complete but not synced when this returns. Raises OSError."""
    layout = tuple((name, _NAMES[array.dtype], array.shape) for name, array in arrays.items())
    record = TablesRecord(key, layout)
    header = record.header()
    checksum = zlib.crc32(header)
    n_bytes = len(header)
    with open_private(path) as file:
        file.write(header)
        for array in arrays.values():
            data = bytes_of(array)
            checksum = zlib.crc32(data, checksum)
            n_bytes += len(data)
            file.write(data)
    return TablesRecord(key, layout, n_bytes, checksum)


def read_tables(path: Path, record: TablesRecord, mapped: bool) -> dict[str, np.ndarray]:
    """The arrays of a layer, every byte checked.

    Parameters
    ----------
    path : Path
    record : TablesRecord
    mapped : bool
        Leave them in the file, whose pages are read when they are needed; else they are copied into memory
        of their own.

    Raises
    ------
    DamagedFile
        If they are not, byte for byte, what was written, or gone.
    """
    header = record.header()
    arrays: dict[str, np.ndarray] = {}
    try:
        with path.open("rb", buffering=0) as file:
            require_whole(path.stat().st_size == record.n_bytes and file.read(len(header)) == header, path)
            checksum = zlib.crc32(header)
            region = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if mapped else None
            at = len(header)
            for name, dtype_name, shape in record.arrays:
                dtype = _DTYPES[dtype_name]
                if region is None:
                    arrays[name] = huge_empty(shape, dtype)
                    data = bytes_of(arrays[name])
                    read_into(file, data, path)
                else:
                    array = np.frombuffer(region, dtype, count=prod(shape), offset=at)
                    arrays[name] = array.reshape(shape)
                    data = bytes_of(array)
                at += len(data)
                checksum = zlib.crc32(data, checksum)
    except FileNotFoundError:
        raise DamagedFile(f"{path} is gone") from None
    require_whole(checksum == record.checksum, path)
    return arrays


def write_tables_list(folder: Path, records: Mapping[int, TablesRecord]) -> None:
    """Write what the files of tables in a folder hold; raises OSError."""
    write_checked(folder / TABLES, {str(layer): asdict(record) for layer, record in records.items()})


def read_tables_list(folder: Path) -> dict[int, TablesRecord]:
    """What the files of tables in a folder hold; nothing, if there are none.

    Raises
    ------
    DamagedFile
    """
    try:
        body = read_checked(folder / TABLES)
        return {
            int(layer): TablesRecord(
                record["key"],
                tuple((name, dtype, tuple(shape)) for name, dtype, shape in record["arrays"]),
                record["n_bytes"],
                record["checksum"],
            )
            for layer, record in body.items()
        }
    except FileNotFoundError:
        return {}


def remove_tables(folder: Path) -> None:
    """Remove damaged tables: the list first, so that none of the files is believed any more."""
    for path in [folder / TABLES, *folder.glob("tables-*")]:
        path.unlink(missing_ok=True)
