"""The head of a GGUF file: its metadata and where its tensors lie, checked against the file's size.

Read in one pass over a memory map, since the `gguf` package builds an object per vocabulary entry
and takes seconds for what is a tenth of one here; the tensors' values are left to `gguf_unpack`.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from magicpig_cli.errors import DamagedFile

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
# Value types of the format with a fixed width: struct code by type number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_FETCH_AGAIN = "the file is incomplete or altered; fetch it again"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies.

    Attributes
    ----------
    name : str
    shape : tuple of int
        In torch's order (slowest dimension first).
    type_number : int
        GGML's number of its number format.
    start, n_bytes : int
        In the file.
    """

    name: str
    shape: tuple[int, ...]
    type_number: int
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata (by GGUF's own keys) and tensors of one file."""

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))


def read_gguf(path: Path) -> GgufFile:
    """Read the head of a GGUF file.

    Raises
    ------
    DamagedFile
        If it is not GGUF, one part of several, cut short, or of number formats unknown here.
    """
    size = path.stat().st_size
    _refuse_parts(path, 0)
    with path.open("rb") as file:
        if file.read(4) != _MAGIC or size < 24:
            raise DamagedFile(f"{path} is not a GGUF file ({size:,} bytes); {_FETCH_AGAIN}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            cursor = _Cursor(view)
            try:
                return _parse(path, size, cursor)
            except (
                struct.error,
                IndexError,
                UnicodeDecodeError,
                KeyError,
                OverflowError,
                ValueError,
            ) as error:
                raise DamagedFile(
                    f"{path} ends or breaks inside its header, at byte {cursor.at:,} of {size:,}; "
                    + _FETCH_AGAIN
                ) from error


def _parse(path: Path, size: int, cursor: _Cursor) -> GgufFile:
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise DamagedFile(f"{path} is GGUF of version {version}; versions 2 and 3 can be read")
    n_tensors, n_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(n_keys)}
    _refuse_parts(path, int(metadata.get("split.count", 0)))
    entries = [_entry(cursor) for _ in range(n_tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    data_start = -(-cursor.at // alignment) * alignment
    tensors = tuple(
        GgufTensor(name, shape, number, data_start + offset, _n_bytes(path, name, shape, number))
        for name, shape, number, offset in entries
    )
    end = max((tensor.start + tensor.n_bytes for tensor in tensors), default=data_start)
    if end > size:
        raise DamagedFile(
            f"{path} is cut short: its header describes {end:,} bytes, the file has {size:,}; fetch it again"
        )
    return GgufFile(path, metadata, tensors)


def _refuse_parts(path: Path, n_parts: int) -> None:
    name = _SPLIT_NAME.search(path.name)
    if name and int(name[2]) > 1:
        part = f"part {int(name[1])} of {int(name[2])}"
    elif n_parts > 1:
        part = f"one of {n_parts} parts"
    else:
        return
    raise DamagedFile(
        f"{path} is {part} of a model; join the parts first (llama-gguf-split --merge FIRST-PART WHOLE.gguf)"
    )


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))
    return name, shape[::-1], cursor.scalar("I"), cursor.scalar("Q")


def _n_bytes(path: Path, name: str, shape: tuple[int, ...], number: int) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
    except (ValueError, KeyError):
        raise DamagedFile(
            f"{path} keeps tensor {name} in GGML number format {number}, which is unknown here; "
            "take the model in another quantisation, such as Q4_K_M or Q8_0"
        ) from None
    return prod(shape) // block * block_bytes


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        raw = self.view[self.at : self.at + length]
        if len(raw) != length:
            raise IndexError("a string reaches past the end")
        self.at += length
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, length = self.scalar("I"), self.scalar("Q")
        if item in _SCALARS:
            dtype = np.dtype(_SCALARS[item]).newbyteorder("<")
            values = np.frombuffer(self.view[self.at : self.at + length * dtype.itemsize], dtype, length)
            self.at += values.nbytes
            return values.tolist()
        if length > len(self.view):
            raise IndexError("an array reaches past the end")
        return [self.value(item) for _ in range(length)]
