"""Tables of a layer as plain arrays, for whoever keeps them, and the way back.

A store of tables knows neither hashing nor attention; the key says whether the arrays are those that
would be built.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.tables import TableBlock

# Gives the arrays that belong to a key, None if there are none.
TableSource = Callable[[str], Mapping[str, np.ndarray] | None]


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """Tables that a layer will build at first.

    Attributes
    ----------
    key : str
    n_bytes : int
    """

    key: str
    n_bytes: int


class KeepsTables(Protocol):
    """An attention of one layer whose first tables may be kept and given back."""

    def planned_tables(self) -> TablesPlan | None:
        """What it builds at first; None if there is too little to build from."""

    def first_tables(self) -> Mapping[str, np.ndarray]:
        """These tables, built if need be."""

    def offer_tables(self, source: TableSource) -> None:
        """Ask `source` before building them."""


def plan_tables(tables: LshLayer, start: int, stop: int) -> TablesPlan:
    """The tables of the tokens start to stop - 1."""
    params, signs = tables.params, tables.plan.signs
    key = f"lsh {params.n_bits} {params.n_tables} {zlib.crc32(signs.tobytes()):08x} {start} {stop}"
    per_table = stop - start + (1 << params.n_bits) + 1
    return TablesPlan(key, tables.shape.n_kv_heads * params.n_tables * per_table * 2)


def arrays_of(tables: LshLayer) -> dict[str, np.ndarray]:
    """The arrays of built tables."""
    _, _, blocks = tables.mark()
    arrays = {"mean": tables.mean}
    for i, block in enumerate(blocks):
        arrays |= {f"offsets_{i}": block.offsets, f"ids_{i}": block.ids}
    return arrays


def take_arrays(tables: LshLayer, start: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Let fresh tables be these, whose first token is `start`."""
    tables.mean[:] = arrays["mean"]
    blocks, stop = [], start
    for i in range(len(arrays) // 2):
        offsets, ids = arrays[f"offsets_{i}"], arrays[f"ids_{i}"]
        blocks.append(TableBlock(stop, ids.shape[2], offsets, ids))
        stop += ids.shape[2]
    tables.rewind((start, stop, tuple(blocks)))
