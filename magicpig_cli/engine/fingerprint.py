"""Which numbers a model computes, as a short string: an index made by one model must not serve another.

Reading gigabytes of weights at every start would cost more than an index saves, so of each tensor only
some bytes are read, and sizes and times of the files tell the rest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

# Read at the beginning, the middle and the end of each tensor.
_SAMPLE_BYTES = 256
# A safetensors header is at most so long (the format's own limit).
_MAX_HEADER_BYTES = 100_000_000
# Told by transformers of itself; the same model has others after an update, or in another folder.
_INCIDENTAL = {"transformers_version", "_name_or_path", "_commit_hash"}


def model_fingerprint(folder: Path, config: Any, dtype: str, quantization: str) -> str:
    """A digest of everything that decides a model's keys and values.

    Parameters
    ----------
    folder : Path
        With the weights as safetensors.
    config : transformers configuration
        As loaded: what was changed while loading counts.
    dtype, quantization : str
        How weights are kept.
    """
    settings = {k: v for k, v in config.to_dict().items() if k not in _INCIDENTAL}
    digest = hashlib.sha256(json.dumps([settings, dtype, quantization], sort_keys=True, default=str).encode())
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        digest.update(f"\n{path.name} {status.st_size} {status.st_mtime_ns} ".encode())
        with path.open("rb") as file:
            _add_samples(digest, file)
    return digest.hexdigest()


def _add_samples(digest: Any, file: BinaryIO) -> None:
    length = int.from_bytes(file.read(8), "little")
    header = file.read(min(length, _MAX_HEADER_BYTES))
    digest.update(header)
    tensors = json.loads(header)
    for name in sorted(tensors):
        if name == "__metadata__":
            continue
        start, stop = tensors[name]["data_offsets"]
        for at in (start, (start + stop) // 2, max(start, stop - _SAMPLE_BYTES)):
            file.seek(8 + length + at)
            digest.update(file.read(min(_SAMPLE_BYTES, stop - at)))
