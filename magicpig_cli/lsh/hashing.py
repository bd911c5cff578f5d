"""Hash codes of keys and queries: signs of random projections, drawn so that a key costs little.

Dense hyperplanes cost K*L*head_dim multiplications per key. Here a vector is rotated by two
rounds of random sign flips and fast Hadamard transforms, and every further round of flips
and transform gives `padded_dim` hyperplanes at once (Andoni et al., arXiv 1509.02897, section
3). Hyperplanes of one such block are orthogonal to each other, so the K bits of a table are
taken from K different blocks: within a table they are independent and agree with
probability p^K, as the estimator assumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from magicpig_cli.lsh.jit import from_bf16, jit
from magicpig_cli.lsh.params import LayerShape, LshParams

# Keys that are transformed together: one or two vector registers of lanes, and a tile of
# 128 dimensions (8 KiB) that stays in the first-level cache with its work copy.
KEY_LANES = 16
_SHARED_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class HashPlan:
    """The random signs of one layer.

    Attributes
    ----------
    signs : numpy.ndarray
        float32, (n_kv_heads, 2 + n_blocks, padded_dim), each +1 or -1: two shared rounds, then
        one per block.
    n_bits, n_tables : int
    """

    signs: np.ndarray
    n_bits: int
    n_tables: int

    @property
    def padded_dim(self) -> int:
        return int(self.signs.shape[2])


def draw_plan(params: LshParams, shape: LayerShape) -> HashPlan:
    """Draw the signs; the same parameters and shape give the same plan everywhere."""
    padded_dim = max(8, 1 << (shape.head_dim - 1).bit_length())
    n_planes = params.n_bits * params.n_tables
    n_blocks = max(-(-n_planes // padded_dim), params.n_bits)
    random = np.random.Generator(np.random.PCG64(params.seed))
    bits = random.integers(0, 2, (shape.n_kv_heads, _SHARED_ROUNDS + n_blocks, padded_dim))
    return HashPlan((1.0 - 2.0 * bits).astype(np.float32), params.n_bits, params.n_tables)


@jit()
def hadamard(tile):
    """Walsh-Hadamard transform of each column, in place and without scaling.

    Parameters
    ----------
    tile : array
        float32, (padded_dim, lanes); padded_dim is a power of two, at least 8.
    """
    dim, lanes = tile.shape
    half = 1
    while half * 4 <= dim:  # two butterfly stages in one pass over the tile
        for start in range(0, dim, half * 4):
            for i in range(start, start + half):
                for lane in range(lanes):
                    a = tile[i, lane]
                    b = tile[i + half, lane]
                    c = tile[i + 2 * half, lane]
                    d = tile[i + 3 * half, lane]
                    plus, minus = a + b, a - b
                    plus2, minus2 = c + d, c - d
                    tile[i, lane] = plus + plus2
                    tile[i + half, lane] = minus + minus2
                    tile[i + 2 * half, lane] = plus - plus2
                    tile[i + 3 * half, lane] = minus - minus2
        half *= 4
    if half < dim:
        for i in range(half):
            for lane in range(lanes):
                a = tile[i, lane]
                b = tile[i + half, lane]
                tile[i, lane] = a + b
                tile[i + half, lane] = a - b


@jit()
def hash_tile(tile, work, signs, n_bits, codes):
    """Codes of the tile's columns. Plane p = row * n_blocks + block is bit p % K of table p // K.

    Parameters
    ----------
    tile : array
        float32, (padded_dim, lanes); overwritten.
    work : array
        float32, same shape; overwritten.
    signs : array
        float32, (2 + n_blocks, padded_dim).
    n_bits : int
    codes : array
        uint16, (n_tables, lanes); overwritten.
    """
    dim, lanes = tile.shape
    n_blocks = signs.shape[0] - 2
    n_tables = codes.shape[0]
    codes[:] = 0
    for shared in range(2):
        for i in range(dim):
            sign = signs[shared, i]
            for lane in range(lanes):
                tile[i, lane] *= sign
        hadamard(tile)
    for block in range(n_blocks):
        for i in range(dim):
            sign = signs[block + 2, i]
            for lane in range(lanes):
                work[i, lane] = tile[i, lane] * sign
        hadamard(work)
        # plane = block + i n_blocks, as table and bit; a division per plane took longer than the transform.
        table, bit = block // n_bits, block % n_bits
        for i in range(dim):
            if table >= n_tables:
                break
            weight = np.uint16(1 << bit)
            for lane in range(lanes):
                codes[table, lane] |= weight if work[i, lane] > 0.0 else np.uint16(0)
            table += n_blocks // n_bits
            bit += n_blocks % n_bits
            if bit >= n_bits:
                bit -= n_bits
                table += 1


@jit(parallel=True)
def hash_keys(rows, start, stop, mean, signs, n_bits, codes):
    """Codes of the keys of one KV head.

    Parameters
    ----------
    rows : array
        uint16 bf16 bit patterns of one KV head, (capacity, 2, head_dim).
    start, stop : int
        Tokens to hash.
    mean : array
        float32, (head_dim,), subtracted from each key.
    signs : array
        float32, (2 + n_blocks, padded_dim).
    n_bits : int
    codes : array
        uint16, (n_tables, at least stop - start); overwritten.
    """
    n = stop - start
    head_dim = rows.shape[2]
    n_tables = codes.shape[0]
    for part in numba.prange((n + KEY_LANES - 1) // KEY_LANES):
        tile = np.zeros((signs.shape[1], KEY_LANES), np.float32)
        work = np.empty((signs.shape[1], KEY_LANES), np.float32)
        tile_codes = np.empty((n_tables, KEY_LANES), np.uint16)
        first = part * KEY_LANES
        lanes = min(KEY_LANES, n - first)
        for lane in range(lanes):
            for i in range(head_dim):
                tile[i, lane] = from_bf16(rows[start + first + lane, 0, i]) - mean[i]
        hash_tile(tile, work, signs, n_bits, tile_codes)
        for table in range(n_tables):
            for lane in range(lanes):
                codes[table, first + lane] = tile_codes[table, lane]


@jit(parallel=True)
def mean_key(rows, start, stop, mean):
    """Mean of the keys start to stop - 1 of every KV head (m_c).

    Parameters
    ----------
    rows : array
        uint16 bf16 bit patterns, (n_kv_heads, capacity, 2, head_dim).
    start, stop : int
        stop > start.
    mean : array
        float32, (n_kv_heads, head_dim); overwritten.
    """
    for kv_head in numba.prange(rows.shape[0]):
        total = np.zeros(rows.shape[3], np.float64)
        for token in range(start, stop):
            for i in range(rows.shape[3]):
                total[i] += from_bf16(rows[kv_head, token, 0, i])
        for i in range(rows.shape[3]):
            mean[kv_head, i] = total[i] / (stop - start)
