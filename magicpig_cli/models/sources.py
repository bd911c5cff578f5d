"""From the name of a model to a folder that can be loaded: alias, hub id, folder or .gguf file.

The first thing that `Engine.load` does. Whatever has to be fetched or unpacked is done here, and
whatever is damaged is refused here, before any weight is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from magicpig_cli.errors import DamagedFile, ModelUnavailable, UsageError
from magicpig_cli.models.cachedir import find_cached, new_entry, remove_entry
from magicpig_cli.models.catalog import DEFAULT_WITH_GPU, EMBEDDED, CatalogEntry, find_entry, near_names
from magicpig_cli.models.embedded import cached_embedded, embedded_folder
from magicpig_cli.models.folder_check import check_folder
from magicpig_cli.models.gguf_file import read_gguf
from magicpig_cli.models.gguf_unpack import (
    Packing,
    Progress,
    folder_bytes,
    layer_packing,
    no_packing,
    unpack_gguf,
)
from magicpig_cli.models.hub import cached_folder, hub_folder

Notice = Callable[[str], None]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pth", ".pt")
# Of a user's GGUF file, enough to tell it from another: see `_fingerprint`.
_FINGERPRINT_BYTES = 1 << 20
# Rises when the unpacked form changes, so that older cache entries are not used.
_UNPACK_VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is whole and on this disk.

    Attributes
    ----------
    folder : Path
        config.json, safetensors and tokenizer.
    id : str
        What to call it: an alias, a hub id, or the path as given.
    """

    folder: Path
    id: str


def resolve(name: str, *, offline: bool, device_kind: str, progress: Progress, notice: Notice) -> ModelSource:
    """Find a model, fetching and unpacking it if need be.

    Parameters
    ----------
    name : str
        `auto`, an alias of the catalog, a hub id, a folder of safetensors, or a .gguf file.
    offline : bool
        Never ask the network.
    device_kind : str
        `cuda` or `cpu`: what `auto` chooses by, and whether matrices of a .gguf file stay packed.
    progress : callable
        Gets (phase, bytes done, bytes in all or None) while something is fetched or unpacked.
    notice : callable
        Gets sentences that a person should read.

    Raises
    ------
    UsageError
        If no model can be meant by `name`.
    ModelUnavailable, DamagedFile, MagicPigError
        If it cannot be had, is not whole, or cannot be kept on this disk.
    """
    if name == "auto":
        name = DEFAULT_WITH_GPU if device_kind == "cuda" else EMBEDDED
    entry = find_entry(name)
    if entry is not None and entry.name == EMBEDDED:
        return ModelSource(embedded_folder(offline=offline, progress=progress, notice=notice), entry.name)
    if entry is not None:
        return ModelSource(hub_folder(entry.hub_id, offline=offline, progress=progress), entry.hub_id)
    if not name:
        raise UsageError("the model's name is empty; see `magicpig models ls`")
    path = Path(os.path.expanduser(name))
    packing = layer_packing if device_kind == "cuda" else no_packing
    # The functions of os.path, as they are false for names that no file can have.
    if os.path.isdir(path):
        return _from_folder(path, name, packing, progress, notice)
    if os.path.exists(path):
        return _from_file(path, name, packing, progress, notice)
    if _HUB_ID.fullmatch(name) and not name.lower().endswith((".gguf", ".safetensors")):
        return ModelSource(hub_folder(name, offline=offline, progress=progress), name)
    raise UsageError(_unknown(name, path))


def on_disk(entry: CatalogEntry) -> Path | None:
    """The folder of a catalogued model if it is whole and on this disk."""
    folder = cached_embedded() if entry.name == EMBEDDED else cached_folder(entry.hub_id)
    if folder is None:
        return None
    try:
        check_folder(folder)
    except DamagedFile:
        return None
    return folder


def _from_folder(
    folder: Path, name: str, packing: Packing, progress: Progress, notice: Notice
) -> ModelSource:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs and not (folder / "config.json").exists():
        if len(ggufs) > 1:
            listing = ", ".join(path.name for path in ggufs[:5])
            raise UsageError(f"the folder {name} holds {len(ggufs)} GGUF files ({listing}); name one of them")
        return _from_file(ggufs[0], str(ggufs[0]), packing, progress, notice)
    check_folder(folder)
    return ModelSource(folder.absolute(), name)


def _from_file(path: Path, name: str, packing: Packing, progress: Progress, notice: Notice) -> ModelSource:
    if path.suffix.lower() == ".safetensors":
        raise UsageError(f"{name} is one file of a model; name its folder ({path.parent}) instead")
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf and path.suffix.lower() != ".gguf":
        raise UsageError(
            f"{name} is neither a folder of safetensors nor a .gguf file; see `magicpig models ls`"
        )
    return ModelSource(_unpacked(path, packing, progress, notice), name)


def _unpacked(path: Path, packing: Packing, progress: Progress, notice: Notice) -> Path:
    form = "" if packing is no_packing else "-packed"
    relative = f"models/{_safe(path.stem)}-{_fingerprint(path)}-{_UNPACK_VERSION}{form}"
    cached = find_cached(relative)
    if cached is not None:
        try:
            check_folder(cached)
            return cached
        except DamagedFile as damage:
            notice(f"the unpacked copy of {path.name} is damaged and is made anew: {damage.sentence}")
            remove_entry(cached)
    n_bytes = folder_bytes(read_gguf(path), packing)
    with new_entry(relative, n_bytes, notice) as partial:
        if partial is not None:
            unpack_gguf(path, partial, progress, packing)
            notice(f"{path.name} was unpacked once ({n_bytes / 1e9:.1f} GB) and is kept in {partial.parent}")
    folder = find_cached(relative)
    if folder is None:
        raise ModelUnavailable(f"the unpacked copy of {path.name} vanished from the cache; try again")
    return folder


def _fingerprint(path: Path) -> str:
    """Tells this content from another without reading gigabytes at every start.

    The head holds configuration and vocabulary, the tail some weights; size and time of change tell
    the rest. A copy of the file with another time is merely unpacked once more.
    """
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_FINGERPRINT_BYTES))
        file.seek(max(0, status.st_size - _FINGERPRINT_BYTES))
        digest.update(file.read())
    return digest.hexdigest()[:12]


def _safe(stem: str) -> str:
    return re.sub(r"[^\w.-]+", "_", stem)[:80]


def _unknown(name: str, path: Path) -> str:
    looks_like_path = (
        name.startswith(("/", ".", "~")) or name.count("/") > 1 or path.suffix in _MODEL_SUFFIXES
    )
    if looks_like_path and os.path.isdir(path.parent):
        entries = [entry.name for entry in path.parent.iterdir()]
        near = [str(path.parent / match) for match in get_close_matches(path.name, entries, n=2)]
        hint = f"did you mean {' or '.join(near)}?" if near else "check the path, or see `magicpig models ls`"
        return f"there is no model folder or .gguf file {name}; {hint}"
    near = near_names(name)
    if near and not looks_like_path:
        return f"there is no model {name!r}; did you mean {' or '.join(near)}? See `magicpig models ls`"
    return (
        f"there is no model {name!r}; use a name of `magicpig models ls`, a hub id such as "
        "Qwen/Qwen3-4B-Instruct-2507, a folder of safetensors, or a .gguf file"
    )
