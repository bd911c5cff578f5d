"""The shape of a model by its name, without fetching, unpacking or loading anything: what `doctor` plans."""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from magicpig_cli.errors import DamagedFile, ModelUnavailable, UsageError
from magicpig_cli.models.architectures import check_architecture, read_config
from magicpig_cli.models.catalog import (
    CATALOG,
    DEFAULT_WITH_GPU,
    EMBEDDED,
    entry_of_hub_id,
    find_entry,
    near_names,
)
from magicpig_cli.models.gguf_config import transformers_config
from magicpig_cli.models.gguf_file import read_gguf
from magicpig_cli.models.gguf_unpack import layer_packing
from magicpig_cli.models.shape import ModelShape, shape_of_config, shape_of_entry, shape_of_folder

# A GGUF keeps its vocabulary in itself; unpacked, it takes about this much per token.
_BYTES_PER_TOKEN = 72


def find_shape(name: str, device_kind: str) -> ModelShape:
    """The shape of a model.

    Parameters
    ----------
    name : str
        `auto`, an alias, a hub id, a folder or a .gguf file.
    device_kind : str
        cpu or cuda: what `auto` chooses by.

    Raises
    ------
    UsageError
        If no model can be meant, or its architecture is not supported.
    ModelUnavailable
        If it is on the hub only and not in the catalogue.
    DamagedFile
        If its files contradict themselves.
    """
    if name == "auto":
        name = DEFAULT_WITH_GPU if device_kind == "cuda" else EMBEDDED
    entry = find_entry(name) or entry_of_hub_id(name)
    if entry is not None:
        return shape_of_entry(entry)
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / "config.json").exists():
            return _of_gguf(ggufs[0])
        return shape_of_model_folder(path, name)
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise UsageError(f"{name} is neither a folder of safetensors nor a .gguf file")
        return _of_gguf(path)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _of_hub(name)
    near = near_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `magicpig models ls`"
    raise UsageError(f"there is no model {name!r}; {hint}")


def shape_of_model_folder(folder: Path, model_id: str) -> ModelShape:
    """The shape of a folder whose architecture is supported; raises as `find_shape`."""
    if not (folder / "config.json").is_file():
        raise DamagedFile(f"the model folder {folder} has no config.json; name a folder with a whole model")
    config = read_config(folder)
    check_architecture(config, model_id)
    return shape_of_folder(folder, model_id, config)


def _of_gguf(path: Path) -> ModelShape:
    from transformers import AutoConfig

    file = read_gguf(path)
    values: dict[str, Any] = dict(transformers_config(file, None)[0])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    tensors = {tensor.name.replace("blk.", "model.layers.", 1): tensor.shape for tensor in file.tensors}
    packed = [tensor for tensor in file.tensors if layer_packing(tensor)]
    return replace(
        shape_of_config(config, str(path), tensors, _BYTES_PER_TOKEN * config.vocab_size),
        linear_parameters=0,  # quantised already
        packed_parameters=sum(prod(tensor.shape) for tensor in packed),
        packed_bytes=sum(tensor.n_bytes for tensor in packed),
    )


def _of_hub(hub_id: str) -> ModelShape:
    from magicpig_cli.models.hub import cached_folder

    folder = cached_folder(hub_id)
    if folder is not None and (folder / "config.json").is_file():
        return shape_of_model_folder(folder, hub_id)
    known = ", ".join(entry.name for entry in CATALOG)
    raise ModelUnavailable(
        f"{hub_id} is not on this disk, so its size is not known; fetch it with `magicpig models pull "
        f"{hub_id}`, or plan one of {known}"
    )
