"""Layers of a session from their files: the way back of what `keeping` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch

from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.session import Session
from magicpig_cli.errors import DamagedFile
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.store.index_layer import read_layer
from magicpig_cli.store.index_record import LayerRecord, layer_name
from magicpig_cli.store.index_tables import read_tables, read_tables_list, tables_name

# Rows are mapped, not copied, if they would take more than this share of the memory that is free.
_COPY_SHARE = 0.5


TablesDamaged = Callable[[Path, DamagedFile], None]


def offer_tables(session: Session, folder: Path, damaged: TablesDamaged) -> None:
    """Let layers take the tables that an index keeps, when they need them; what is damaged is not given.

    Parameters
    ----------
    session : Session
        Filled from the index.
    folder : Path
        Of the index.
    damaged : callable
        Told once if tables are.
    """
    try:
        records = read_tables_list(folder)
    except (DamagedFile, OSError, TypeError, KeyError, ValueError) as error:
        damaged(folder, DamagedFile(str(error)))
        return
    mapped = sum(record.n_bytes for record in records.values()) > _COPY_SHARE * _free_bytes()
    told = False

    def take(layer: int, key: str) -> Mapping[str, np.ndarray] | None:
        nonlocal told
        if told or records[layer].key != key:
            return None
        try:
            return read_tables(folder / tables_name(layer), records[layer], mapped)
        except (DamagedFile, OSError) as error:
            told = True
            damaged(folder, DamagedFile(str(error)))
            return None

    for layer in records:
        attention = session.attentions[layer]
        tables = None if attention is None else attention.keeper_of_tables
        if tables is not None:
            tables.offer_tables(partial(take, layer))


def _free_bytes() -> int:
    return int(psutil.virtual_memory().available)


def restore_layers(session: Session, folder: Path, records: dict[int, LayerRecord], threads: int) -> None:
    """Fill layers of a session from their files, several at once, every byte checked.

    Raises
    ------
    DamagedFile, OSError
    """
    n_bytes = sum(record.kept_bytes for record in records.values())
    crowded = n_bytes > _COPY_SHARE * _free_bytes()
    stores = {}
    for layer, record in records.items():
        shape = LayerShape(record.n_q_heads, record.n_kv_heads, record.head_dim)
        stores[layer] = session.open_layer(
            layer, shape, LayerRule(record.scale, record.softcap, record.window)
        )

    def fill(layer: int) -> torch.Tensor:
        record = records[layer]
        mapped = crowded and record.window is None and record.capacity > record.n_rows
        return read_layer(folder / layer_name(layer), record, stores[layer], mapped)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        for layer, observed in zip(records, pool.map(fill, records), strict=True):
            session.observe(layer, observed)
