"""Where a reading stands, noted beside its finished layers, so that an interrupted one goes on from there.

Written on an interruption, and now and then before one, since a killed process says nothing. A note
counts only if it and its tensors are whole; the one before it stays until then.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.index_bytes import bytes_of, require_whole
from magicpig_cli.store.index_folder import RESUME
from magicpig_cli.store.index_layer import dtype_name
from magicpig_cli.store.index_meta import read_checked, write_checked
from magicpig_cli.store.index_record import LayerRecord, file_head, open_private

# Read at once where a file's checksum is taken.
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a reading stands.

    Attributes
    ----------
    layers : dict of int to LayerRecord
        Those that are finished.
    numbers : dict of str to int
        What the engine needs to go on.
    tensors : dict of str to sequence of torch.Tensor
        Likewise, each in parts along its first axis; one part each when it was read.
    model_id, documents, n_tokens
        For people, as in `index_meta.IndexMeta`.
    """

    layers: dict[int, LayerRecord]
    numbers: dict[str, int]
    tensors: Mapping[str, Sequence[torch.Tensor]]
    model_id: str
    documents: tuple[str, ...]
    n_tokens: int


def write_resume_tensors(folder: Path, resume: Resume) -> tuple[Path, int]:
    """Write the tensors under a name of their own; gives it with their checksum. Raises OSError."""
    numbers = [int(path.stem.split("-")[1]) for path in folder.glob("resume-*.safetensors")]
    path = folder / f"resume-{1 + max(numbers, default=0)}.safetensors"
    return path, _write_tensors(path, resume.tensors)


def write_resume_note(folder: Path, resume: Resume, tensors: Path, checksum: int) -> None:
    """Let a note, whose tensors are on the disk, take the place of the one before. Raises OSError."""
    body: dict[str, Any] = {
        "layers": {str(layer): record.as_json() for layer, record in resume.layers.items()},
        "numbers": dict(resume.numbers),
        "model": resume.model_id,
        "documents": list(resume.documents),
        "n_tokens": resume.n_tokens,
        "tensors": tensors.name,
        "checksum": checksum,
    }
    write_checked(folder / RESUME, body)
    for path in folder.glob("resume-*.safetensors"):
        if path != tensors:
            path.unlink(missing_ok=True)


def read_resume(folder: Path) -> Resume | None:
    """The note in a folder, None if there is none.

    Raises
    ------
    DamagedFile
        If it or its tensors are damaged.
    """
    try:
        body = read_checked(folder / RESUME)
    except FileNotFoundError:
        return None
    path = folder / body["tensors"]
    try:
        require_whole(_checksum(path) == body["checksum"], path)
        tensors = {name: [tensor] for name, tensor in load_file(path).items()}
    except FileNotFoundError:
        raise DamagedFile(f"{folder} has lost a file") from None
    except SafetensorError as error:
        raise DamagedFile(f"{folder} cannot be read: {error}") from error
    layers = {int(layer): LayerRecord(**record) for layer, record in body["layers"].items()}
    documents = tuple(body["documents"])
    return Resume(layers, body["numbers"], tensors, body["model"], documents, body["n_tokens"])


def _write_tensors(path: Path, tensors: Mapping[str, Sequence[torch.Tensor]]) -> int:
    """A safetensors file, written part by part: hidden states of a long text are gigabytes, and fit once."""
    header: dict[str, Any] = {}
    end = 0
    for name, parts in tensors.items():
        start, end = end, end + sum(part.numel() * part.element_size() for part in parts)
        shape = [sum(part.shape[0] for part in parts), *parts[0].shape[1:]]
        header[name] = {"dtype": dtype_name(parts[0].dtype), "shape": shape, "data_offsets": [start, end]}
    head = file_head(header, 8)
    checksum = zlib.crc32(head)
    with open_private(path) as file:
        file.write(head)
        for parts in tensors.values():
            for part in parts:
                data = bytes_of(part.detach().cpu().contiguous().view(torch.uint8).numpy())
                checksum = zlib.crc32(data, checksum)
                file.write(data)
    return checksum


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum
