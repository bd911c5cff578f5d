"""Blocks of a GGUF file's number formats, widened in torch where they lie: on a GPU, or anywhere.

The layouts are those of llama.cpp (ggml-common.h and ggml-quants.c). A block holds 32 or 256 weights: small
integers, and what they are multiplied by and moved by. Formats that are not here are unpacked
before they are loaded (`gguf_unpack`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from magicpig_cli.models.bits import GGUF_BLOCKS


def _halves(pairs: torch.Tensor) -> torch.Tensor:
    """Low bits of all bytes, then their high bits, (n, 2 * bytes): the order within a block of 32."""
    return torch.cat([pairs & 15, pairs >> 4], dim=1)


def _halves_by_32(pairs: torch.Tensor) -> torch.Tensor:
    """The same for each 32 bytes, (n, bytes / 32, 2, 32)."""
    runs = pairs.reshape(len(pairs), -1, 1, 32)
    return torch.cat([runs & 15, runs >> 4], dim=2)


def _floats(raw: torch.Tensor) -> torch.Tensor:
    """Float16 numbers, two bytes each, as float32."""
    return raw.contiguous().view(torch.float16).float()


def _fifth_bits(raw: torch.Tensor) -> torch.Tensor:
    """A bit for each of 32 weights, times 16, uint8, (n, 32), of four bytes."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return ((raw[:, :, None] >> shifts) & 1).reshape(len(raw), -1) << 4


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _floats(blocks[:, :2]) * (_halves(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _floats(blocks[:, :2]) * _halves(blocks[:, 4:]).float() + _floats(blocks[:, 2:4])


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _halves(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _floats(blocks[:, :2]) * (numbers.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _halves(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _floats(blocks[:, :2]) * numbers.float() + _floats(blocks[:, 2:4])


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _floats(blocks[:, :2]) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _scales_and_mins(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Six bits each for eight runs of 32 weights, (n, 8) twice, of twelve bytes."""
    first, second, third = packed.split(4, dim=1)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1)
    mins = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1)
    return scales, mins


def _scaled_runs(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Integers of eight runs of 32, (n, 8, 32), with the scales and minima that begin a block of 256."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    factor = _floats(blocks[:, :2]) * scales.float()
    shift = _floats(blocks[:, 2:4]) * mins.float()
    return (factor[:, :, None] * numbers.float() - shift[:, :, None]).flatten(1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _scaled_runs(blocks, _halves_by_32(blocks[:, 16:]).reshape(-1, 8, 32))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    # Bit i of byte j belongs to weight j of run i.
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    fifth = ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return _scaled_runs(blocks, _halves_by_32(blocks[:, 48:]).reshape(-1, 8, 32) | fifth)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # Each half of a block: four runs of 32, whose low four bits are in 64 bytes and whose high two in 32.
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], dim=2).reshape(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3) << 4
    numbers = (low | high).reshape(-1, 16, 16).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    factor = _floats(blocks[:, 208:]) * scales
    return (factor[:, :, None] * numbers).flatten(1)


_WIDEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def row_bytes(kind: str, n_weights: int) -> int:
    """How many bytes a row of so many weights takes."""
    block, block_bytes = GGUF_BLOCKS[kind]
    return n_weights // block * block_bytes


def widen_blocks(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows of blocks as float32.

    Parameters
    ----------
    rows : torch.Tensor
        uint8, (n_out, bytes of a row), on any device.
    kind : str
        One of `bits.GGUF_BLOCKS`.

    Returns
    -------
    torch.Tensor
        (n_out, weights of a row), as llama.cpp widens them.
    """
    _, block_bytes = GGUF_BLOCKS[kind]
    return _WIDEN[kind](rows.reshape(-1, block_bytes)).reshape(len(rows), -1)
