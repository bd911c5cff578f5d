"""Models from huggingface.co: the copy on this disk if it is whole, else a download that can be watched.

A whole copy is used without asking the network. Tokens come from the hub's own login
(`hf auth login` or HF_TOKEN); none pass through here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from magicpig_cli.errors import DamagedFile, MagicPigError, ModelUnavailable
from magicpig_cli.models import hub_child
from magicpig_cli.models.cachedir import disk_full
from magicpig_cli.models.catalog import CATALOG, EMBEDDED
from magicpig_cli.models.children import STALL_S, ChildResult, bytes_under, run_watched
from magicpig_cli.models.folder_check import check_folder
from magicpig_cli.models.gguf_unpack import Progress
from magicpig_cli.models.proxy import proxy_in_use


def hub_folder(hub_id: str, *, offline: bool, progress: Progress) -> Path:
    """The folder of a model of the hub.

    Raises
    ------
    ModelUnavailable
        If it is not on this disk and offline, gated, missing or unreachable.
    DamagedFile
        If it is incomplete even after the download.
    """
    cached = cached_folder(hub_id)
    if cached is not None:
        try:
            check_folder(cached)
            return cached
        except DamagedFile as damage:
            if offline or _offline_by_environment():
                raise DamagedFile(
                    f"the copy of {hub_id} on this disk is not whole and --offline forbids to complete it: "
                    f"{damage.sentence}"
                ) from damage
    if offline or _offline_by_environment():
        raise ModelUnavailable(
            f"{hub_id} is not on this disk and the network is not to be asked (--offline or HF_HUB_OFFLINE); "
            f"run `magicpig models pull {hub_id}` once with a network. {_local_choices()}"
        )
    folder = _download(hub_id, progress)
    check_folder(folder)
    return folder


def cached_folder(hub_id: str) -> Path | None:
    """Where the hub's own cache has it, whole or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                hub_id,
                local_files_only=True,
                allow_patterns=list(hub_child.WANTED),
                ignore_patterns=list(hub_child.UNWANTED),
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _download(hub_id: str, progress: Progress) -> Path:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    blobs = cache / f"models--{hub_id.replace('/', '--')}" / "blobs"
    progress("fetching", bytes_under(blobs), None)
    with tempfile.TemporaryDirectory(prefix="magicpig-") as scratch:
        plan = Path(scratch) / "bytes"
        result = run_watched(
            # -P: the script's own folder is no place to import from
            [sys.executable, "-P", hub_child.__file__, hub_id, str(plan)],
            [blobs],
            lambda n_bytes: progress("fetching", n_bytes, _planned(plan)),
            {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
            STALL_S,
        )
        planned = _planned(plan)
    answer = _answer(result)
    if "folder" in answer:
        return Path(answer["folder"])
    raise _refusal(hub_id, answer, cache, planned)


def _planned(plan: Path) -> int | None:
    try:
        return int(plan.read_text())
    except (OSError, ValueError):
        return None


def _answer(result: ChildResult) -> dict[str, str]:
    if result.stalled:
        return {"error": "unreachable", "message": f"nothing arrived for {STALL_S:.0f} seconds"}
    try:
        answer: dict[str, str] = json.loads(result.output.strip().splitlines()[-1])
        return answer
    except (ValueError, IndexError):
        lines = result.errors.strip().splitlines() or [f"the download ended with status {result.status}"]
        return {"error": "unreachable", "message": lines[-1]}


def _refusal(hub_id: str, answer: dict[str, str], cache: Path, planned: int | None) -> MagicPigError:
    kind = answer["error"]
    reason = next(
        (line.strip() for line in answer["message"].splitlines() if line.strip()), "no reason given"
    )
    if kind == "full":
        return disk_full(cache, planned or 0)
    if kind == "gated":
        return ModelUnavailable(
            f"{hub_id} is gated: ask for access at https://huggingface.co/{hub_id}, then sign in with "
            f"`hf auth login` and try again. {_local_choices()}"
        )
    if kind == "missing":
        return ModelUnavailable(
            f"there is no model {hub_id} on huggingface.co, or it is private and you are not signed in "
            f"(`hf auth login`); check the name, or see `magicpig models ls`"
        )
    return ModelUnavailable(
        f"{hub_id} could not be fetched from the hub: {reason[:200].rstrip('.')}; check the network"
        f"{proxy_in_use()} and try again, what has arrived is kept. {_local_choices()}"
    )


def _local_choices() -> str:
    """What can be had without that model: those on this disk, and the small one."""
    here = [entry.name for entry in CATALOG if entry.name != EMBEDDED and cached_folder(entry.hub_id)]
    names = " or ".join([*here, f"{EMBEDDED} (small)"])
    return f"Without it: --model {names}, a folder of safetensors, or a .gguf file"


def _offline_by_environment() -> bool:
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
