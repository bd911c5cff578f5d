"""Hash tables over keys: for every table and code, the ids of the keys with that code.

Keys are numbered inside blocks of at most 65,535, so an id takes 16 bits. A layer's tables
are a list of such blocks in token order. Keys that are added later first gather in a small
block; neighbouring blocks of similar size merge, so their number stays logarithmic and
nothing is ever built again from the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from magicpig_cli.lsh.jit import KERNEL_LOCK, jit
from magicpig_cli.pages import huge_empty

# One less than 2^16, so that an offset, which may equal the number of keys, takes 16 bits too.
BLOCK_KEYS = 65_535


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Tables of the keys start to start + n_keys - 1.

    Attributes
    ----------
    start : int
        Token of the first key.
    n_keys : int
        At most BLOCK_KEYS.
    offsets : numpy.ndarray
        uint16, (n_kv_heads, n_tables, 2**n_bits + 1): where a code's ids begin.
    ids : numpy.ndarray
        uint16, (n_kv_heads, n_tables, n_keys): ids by code, ascending within a code.
    """

    start: int
    n_keys: int
    offsets: np.ndarray
    ids: np.ndarray

    @property
    def stop(self) -> int:
        return self.start + self.n_keys

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.ids.nbytes


@jit(parallel=True)
def sort_by_code(codes, n_keys, offsets, ids):
    """Counting sort of one KV head's keys by their code, table by table.

    Parameters
    ----------
    codes : array
        uint16, (n_tables, at least n_keys).
    n_keys : int
    offsets : array
        uint16, (n_tables, n_codes + 1); overwritten.
    ids : array
        uint16, (n_tables, n_keys); overwritten.
    """
    n_codes = offsets.shape[1] - 1
    for table in numba.prange(codes.shape[0]):
        following = np.zeros(n_codes, np.uint32)
        for key in range(n_keys):
            following[codes[table, key]] += np.uint32(1)
        position = np.uint32(0)
        for code in range(n_codes):
            offsets[table, code] = np.uint16(position)
            count = following[code]
            following[code] = position
            position += count
        offsets[table, n_codes] = np.uint16(position)
        for key in range(n_keys):
            code = codes[table, key]
            ids[table, following[code]] = np.uint16(key)
            following[code] += np.uint32(1)


@jit(parallel=True)
def merge_ids(first_offsets, first_ids, second_offsets, second_ids, shift, offsets, ids):
    """Join the tables of two neighbouring blocks; ids of the second move up by `shift`.

    Parameters
    ----------
    first_offsets, second_offsets : array
        uint16, (n_kv_heads, n_tables, n_codes + 1).
    first_ids, second_ids : array
        uint16, (n_kv_heads, n_tables, n_keys of that block).
    shift : int
        Keys in the first block.
    offsets, ids : array
        Of the joined block; overwritten.
    """
    n_kv_heads, n_tables, n_codes = offsets.shape[0], offsets.shape[1], offsets.shape[2] - 1
    for pair in numba.prange(n_kv_heads * n_tables):
        head, table = pair // n_tables, pair % n_tables
        position = np.uint32(0)
        for code in range(n_codes):
            offsets[head, table, code] = np.uint16(position)
            for i in range(first_offsets[head, table, code], first_offsets[head, table, code + 1]):
                ids[head, table, position] = first_ids[head, table, i]
                position += np.uint32(1)
            for i in range(second_offsets[head, table, code], second_offsets[head, table, code + 1]):
                ids[head, table, position] = second_ids[head, table, i] + np.uint16(shift)
                position += np.uint32(1)
        offsets[head, table, n_codes] = np.uint16(position)


def empty_block(start: int, n_keys: int, n_kv_heads: int, n_tables: int, n_bits: int) -> TableBlock:
    """Uninitialised tables; `n_keys` from 1 to BLOCK_KEYS."""
    return TableBlock(
        start,
        n_keys,
        huge_empty((n_kv_heads, n_tables, (1 << n_bits) + 1), np.uint16),
        huge_empty((n_kv_heads, n_tables, n_keys), np.uint16),
    )


def append_block(blocks: list[TableBlock], new: TableBlock) -> list[TableBlock]:
    """`blocks` with `new` at the end, after merging blocks that are no larger than what follows them.

    Sizes then fall by at least half from block to block, so a key is copied a logarithmic
    number of times in its life and a query visits a logarithmic number of blocks.
    """
    blocks = list(blocks)
    while blocks and blocks[-1].n_keys <= new.n_keys and blocks[-1].n_keys + new.n_keys <= BLOCK_KEYS:
        new = _merged(blocks.pop(), new)
    return [*blocks, new]


def _merged(first: TableBlock, second: TableBlock) -> TableBlock:
    n_kv_heads, n_tables, n_offsets = first.offsets.shape
    n_keys = first.n_keys + second.n_keys
    joined = TableBlock(
        first.start,
        n_keys,
        huge_empty((n_kv_heads, n_tables, n_offsets), np.uint16),
        huge_empty((n_kv_heads, n_tables, n_keys), np.uint16),
    )
    with KERNEL_LOCK:
        merge_ids(
            first.offsets, first.ids, second.offsets, second.ids, first.n_keys, joined.offsets, joined.ids
        )
    return joined
