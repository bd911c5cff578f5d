"""Two files of llama.cpp's, changed so that its speed at a long context can be measured without reading one.

A saved sequence is made longer: its cells are drawn again in stretches, as `magicpig bench` extends its own
keys. And a model's declared context is raised, since llama.cpp's server refuses to go beyond it. Only the
standard library is used, so that any Python that has llama.cpp can run it.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_SEQUENCE_MAGIC = b"qsgg"  # "ggsq", little-endian
_CELL = struct.Struct("<iIi")  # position, number of sequences, the sequence
_ROWS = struct.Struct("<iQ")  # type of the numbers, bytes of a row
_HEADS = (8, 16)
_STRETCH = 64
# llama.cpp of 2026 writes tokens between these words and a zero (no images); older ones write them bare.
_WRAPPED = (-1, 1)
_RAISED_CONTEXT = 1 << 24


class StateError(Exception):
    """A file that is not as this module knows it."""


@dataclass(frozen=True)
class Rows:
    """Keys or values of one layer: one row per cell."""

    kind: int
    row_bytes: int
    data: memoryview


@dataclass(frozen=True)
class SavedSequence:
    """What llama.cpp wrote of one sequence.

    Attributes
    ----------
    version : int
        Of the file's format.
    wrapped : bool
        How its tokens are written, see `_WRAPPED`.
    head : bytes
        What stands before the first row: whether values are transposed, the number of layers, and in some
        versions two words more.
    tokens : list of int
        One per cell.
    keys, values : list of Rows
        Per layer.
    """

    version: int
    wrapped: bool
    head: bytes
    tokens: list[int]
    keys: list[Rows]
    values: list[Rows]


def read_sequence(path: Path) -> SavedSequence:
    """Parse a file that the server's `/slots/0?action=save` wrote, with flash attention on.

    Raises
    ------
    StateError
        If the file has another form.
    """
    data = memoryview(path.read_bytes())
    if bytes(data[:4]) != _SEQUENCE_MAGIC:
        raise StateError(f"{path.name} is not a saved sequence of llama.cpp")
    try:
        return _parse(data)
    except struct.error as error:
        raise StateError(f"{path.name} ends early: {error}") from error


def _parse(data: memoryview) -> SavedSequence:
    version, n_words = struct.unpack_from("<II", data, 4)
    words = list(struct.unpack_from(f"<{n_words}i", data, 12))
    at = 12 + 4 * n_words
    n_streams, n_cells = struct.unpack_from("<II", data, at)
    at += 8
    wrapped = tuple(words[:2]) == _WRAPPED
    tokens = words[3:-1] if wrapped else words
    if n_streams != 1 or len(tokens) != n_cells or (wrapped and (words[2] != n_cells or words[-1])):
        raise StateError(
            f"format {version} with {n_streams} streams, {n_cells} cells and {n_words} words of tokens"
        )
    expected = ((i, 1, 0) for i in range(n_cells))
    if any(cell != due for cell, due in zip(_cells(data, at, n_cells), expected, strict=True)):
        raise StateError("its cells are not the positions from 0 on, each of one sequence")
    at += _CELL.size * n_cells
    transposed, n_layers = struct.unpack_from("<II", data, at)
    if transposed:
        raise StateError("its values are transposed: flash attention was off")
    for n_head in _HEADS:
        tensors = _tensors(data[at + n_head :], 2 * n_layers, n_cells)
        if tensors is not None:
            head = bytes(data[at : at + n_head])
            return SavedSequence(version, wrapped, head, tokens, tensors[:n_layers], tensors[n_layers:])
    raise StateError(f"its {len(data):,} bytes are not {n_layers} layers of {n_cells:,} cells")


def _tensors(data: memoryview, n_tensors: int, n_cells: int) -> list[Rows] | None:
    """The keys of all layers, then the values; None if they don't fill `data` exactly."""
    tensors, at = [], 0
    for _ in range(n_tensors):
        if at + _ROWS.size > len(data):
            return None
        kind, row_bytes = _ROWS.unpack_from(data, at)
        at += _ROWS.size
        tensors.append(Rows(kind, row_bytes, data[at : at + row_bytes * n_cells]))
        at += row_bytes * n_cells
    return tensors if at == len(data) else None


def _cells(data: memoryview, at: int, n_cells: int) -> Iterator[tuple[int, ...]]:
    return _CELL.iter_unpack(data[at : at + _CELL.size * n_cells])


def write_extended(sequence: SavedSequence, n_cells: int, path: Path, seed: int = 0) -> list[int]:
    """Write a sequence of `n_cells` cells: the real ones, then stretches of them drawn again.

    Keys keep the rotation of the position that they were read at: the work is that of a really read
    context, the words that come out mean nothing.

    Parameters
    ----------
    sequence : SavedSequence
    n_cells : int
        Fewer than the real ones cuts.
    path : Path
    seed : int
        Draws the stretches.

    Returns
    -------
    list of int
        The tokens of the new sequence, which a prompt must start with to find it.
    """
    n_real = len(sequence.tokens)
    pieces = [(0, min(n_real, n_cells))]
    missing = n_cells - n_real
    draw = random.Random(seed)
    while missing > 0:
        length = min(_STRETCH, n_real, missing)
        start = draw.randrange(n_real - length + 1)
        pieces.append((start, start + length))
        missing -= length
    tokens = [token for start, stop in pieces for token in sequence.tokens[start:stop]]
    words = [*_WRAPPED, n_cells, *tokens, 0] if sequence.wrapped else tokens
    with path.open("wb") as file:
        file.write(_SEQUENCE_MAGIC + struct.pack("<II", sequence.version, len(words)))
        file.write(struct.pack(f"<{len(words)}i", *words))
        file.write(struct.pack("<II", 1, n_cells))
        file.write(b"".join(_CELL.pack(position, 1, 0) for position in range(n_cells)))
        file.write(sequence.head)
        for rows in (*sequence.keys, *sequence.values):
            _write_rows(file, rows, pieces)
    return tokens


def _write_rows(file: BinaryIO, rows: Rows, pieces: list[tuple[int, int]]) -> None:
    file.write(_ROWS.pack(rows.kind, rows.row_bytes))
    file.write(b"".join(rows.data[start * rows.row_bytes : stop * rows.row_bytes] for start, stop in pieces))


def raise_context(gguf: Path, copy: Path) -> None:
    """Copy a GGUF file and let the copy declare a context that no measurement reaches.

    Raises
    ------
    StateError
        If the context's length is not found exactly once.
    """
    with gguf.open("rb") as file:
        head = file.read(1 << 20)
    key = b".context_length" + struct.pack("<I", 4)  # followed by a 32-bit number
    at = head.find(key)
    if at < 0 or head.find(key, at + 1) >= 0:
        raise StateError(f"{gguf.name} does not declare its context's length where it is looked for")
    shutil.copyfile(gguf, copy)
    with copy.open("r+b") as file:
        file.seek(at + len(key))
        file.write(struct.pack("<I", _RAISED_CONTEXT))
