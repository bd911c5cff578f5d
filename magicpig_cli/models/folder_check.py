"""Whether a folder holds a whole model, told from its headers in milliseconds, before anything is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from magicpig_cli.errors import DamagedFile

_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")


def check_folder(folder: Path) -> None:
    """Refuse a folder that is no complete model.

    Raises
    ------
    DamagedFile
        Naming the file, the numbers, and what to do.
    """
    _read_json(folder / "config.json", folder)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise DamagedFile(
            f"the model folder {folder} has no tokenizer ({' or '.join(_TOKENIZERS[:3])}); fetch it whole"
        )
    if (folder / _INDEX).is_file():
        _check_shards(folder)
        return
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise DamagedFile(
            f"the model folder {folder} holds no weights (*.safetensors){_what_instead(folder)}"
        )
    for path in weights:
        tensor_names(path)


def tensor_names(path: Path) -> set[str]:
    """Names in a safetensors file, whose size must be what its header describes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        n_header = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if n_header > size - 8:
            raise DamagedFile(f"{path} is cut short inside its header ({size:,} bytes); fetch it again")
        try:
            header = json.loads(file.read(n_header))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = 8 + n_header + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamagedFile(
                f"{path} has a header that cannot be read ({size:,} bytes); fetch it again"
            ) from error
    if size != end:
        fault = "is cut short" if size < end else "has bytes past its end"
        raise DamagedFile(
            f"{path} {fault}: its header describes {end:,} bytes, the file has {size:,}; fetch it again"
        )
    return set(entries)


def _check_shards(folder: Path) -> None:
    index = _read_json(folder / _INDEX, folder)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DamagedFile(f"{folder / _INDEX} has no weight_map; fetch it again")
    shards = sorted(set(places.values()))
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise DamagedFile(
            f"the model folder {folder} lacks {len(missing)} of its {len(shards)} weight files "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}); fetch the missing ones"
        )
    for shard in shards:
        named = {name for name, place in places.items() if place == shard}
        absent = sorted(named - tensor_names(folder / shard))
        if absent:
            raise DamagedFile(
                f"{folder / shard} lacks {len(absent)} tensors that the index names, such as {absent[0]}; "
                "fetch the index and the weights from the same place again"
            )


def _read_json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedFile(f"the model folder {folder} has no {path.name}{_what_instead(folder)}") from None
    except (ValueError, OSError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is no JSON object; fetch it again")
    return value


def _what_instead(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")) or any(folder.glob("*.pt")):
        pickles = "; its weights are PyTorch pickles, which can run code and are not read: "
        return pickles + "convert them to safetensors"
    if any(folder.glob("*.incomplete")) or any(folder.glob("*.part")):
        return "; its download was not finished: fetch it again"
    return "; name a folder with config.json, a tokenizer and safetensors"
