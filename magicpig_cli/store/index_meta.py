"""What an index says of itself: which model read which tokens, and the checksums of its files.

Small JSON files beside the numbers, each with a checksum of its own, so that a damaged one is known
before anything in it is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.index_record import LayerRecord, open_private

# Rises when what is written changes, so that older indexes are not used.
FORMAT_VERSION = 1
# Tokens per link of the chain that tells how far two texts begin alike.
CHAIN_TOKENS = 256


@dataclass(frozen=True, slots=True)
class ModelKey:
    """Which numbers a model computes.

    Attributes
    ----------
    fingerprint : str
        Of configuration, weights, dtype and quantisation.
    id, dtype, quantization : str
        For people.
    """

    fingerprint: str
    id: str
    dtype: str
    quantization: str


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """A whole index.

    Attributes
    ----------
    model : ModelKey
    documents : tuple of str
        Names, as given when they were read.
    token_ids : numpy.ndarray
        int32, (n_tokens,).
    layers : tuple of LayerRecord
    created : float
        Seconds since 1970.
    table_bytes : int
        Disk space of tables, if any are kept.
    """

    model: ModelKey
    documents: tuple[str, ...]
    token_ids: np.ndarray
    layers: tuple[LayerRecord, ...]
    created: float
    table_bytes: int = 0

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_bytes(self) -> int:
        """Disk space of layers and tables."""
        return self.table_bytes + sum(layer.kept_bytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class IndexHead:
    """As much of an index as a search and a listing need.

    `chain` has a link for every CHAIN_TOKENS tokens: each is a digest of all tokens up to its end.
    """

    key: str
    model: ModelKey
    documents: tuple[str, ...]
    n_tokens: int
    n_bytes: int
    chain: tuple[str, ...]
    windowed: bool
    created: float
    last_used: float


def index_key(model: ModelKey, token_ids: Sequence[int] | np.ndarray) -> str:
    """The name of the index of these tokens, read by this model."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {model.fingerprint} ".encode())
    digest.update(np.asarray(token_ids, np.int32).tobytes())
    return digest.hexdigest()[:32]


def token_chain(token_ids: Sequence[int] | np.ndarray) -> tuple[str, ...]:
    """A digest of all tokens up to each multiple of CHAIN_TOKENS."""
    ids = np.asarray(token_ids, np.int32)
    digest = hashlib.sha256()
    links = []
    for start in range(0, len(ids) - CHAIN_TOKENS + 1, CHAIN_TOKENS):
        digest.update(ids[start : start + CHAIN_TOKENS].tobytes())
        links.append(digest.hexdigest()[:16])
    return tuple(links)


def write_meta(folder: Path, meta: IndexMeta) -> None:
    """Write the two files that make a folder of layers an index."""
    body = {
        "model": model_json(meta.model),
        "documents": list(meta.documents),
        "n_tokens": meta.n_tokens,
        "n_bytes": meta.n_bytes,
        "chain": list(token_chain(meta.token_ids)),
        "created": meta.created,
    }
    layers = {"token_ids": meta.token_ids.tolist(), "layers": [layer.as_json() for layer in meta.layers]}
    body["windowed"] = any(layer.window is not None for layer in meta.layers)
    write_checked(folder / "layers.json", layers)
    write_checked(folder / "index.json", body)


def read_head(folder: Path) -> IndexHead:
    """Raises DamagedFile, FileNotFoundError."""
    path = folder / "index.json"
    body = read_checked(path)
    return IndexHead(
        folder.name,
        ModelKey(**body["model"]),
        tuple(body["documents"]),
        body["n_tokens"],
        body["n_bytes"],
        tuple(body["chain"]),
        body["windowed"],
        body["created"],
        path.stat().st_mtime,
    )


def read_meta(folder: Path) -> IndexMeta:
    """Raises DamagedFile, FileNotFoundError."""
    head = read_head(folder)
    body = read_checked(folder / "layers.json")
    token_ids = np.asarray(body["token_ids"], np.int32)
    layers = tuple(LayerRecord(**layer) for layer in body["layers"])
    if index_key(head.model, token_ids) != head.key:
        raise DamagedFile(f"{folder} holds other tokens than its name says")
    return IndexMeta(head.model, head.documents, token_ids, layers, head.created)


def write_checked(path: Path, body: dict[str, Any]) -> None:
    """Write JSON under a temporary name with its checksum, sync it, and rename it."""
    partial = path.with_name(path.name + ".partial")
    with open_private(partial) as file:
        file.write(_checked_text(body))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_checked(path: Path) -> dict[str, Any]:
    """What `write_checked` wrote.

    Raises
    ------
    DamagedFile
        If it is altered, incomplete, or of another format version.
    FileNotFoundError
    """
    try:
        data = path.read_bytes()
        body: dict[str, Any] = json.loads(data)["body"]
        whole = data == _checked_text(body)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path} is altered or incomplete") from error
    if not whole:
        raise DamagedFile(f"{path} is altered, incomplete or of another version")
    return body


def _checked_text(body: dict[str, Any]) -> bytes:
    """The one way to write this body: with the format version, and a digest of itself."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"format":{FORMAT_VERSION},"sha256":"{digest}","body":{text}}}\n'.encode()


def model_json(model: ModelKey) -> dict[str, str]:
    """A model key as JSON."""
    return {
        "fingerprint": model.fingerprint,
        "id": model.id,
        "dtype": model.dtype,
        "quantization": model.quantization,
    }
