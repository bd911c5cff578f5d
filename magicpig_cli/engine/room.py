"""Whether a reading fits this machine: asked when its length is known, before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.lsh_published import LshPublished
from magicpig_cli.models.machine import room
from magicpig_cli.models.plan import PlanOptions, Room, plan_memory, require_room
from magicpig_cli.models.shape import ModelShape

if TYPE_CHECKING:
    from magicpig_cli.engine.engine import EngineSettings


def require_reading(
    shape: ModelShape | None,
    capacity: int,
    method: AttentionMethod,
    settings: EngineSettings,
    device: torch.device,
) -> None:
    """Refuse a reading for which there is no memory.

    Parameters
    ----------
    shape : ModelShape or None
        None, of a model that did not come from files, is not checked.
    capacity : int
        Tokens of prompt and answer.
    method : AttentionMethod
        As it will run.
    settings : EngineSettings
    device : torch.device
        Where the model computes.

    Raises
    ------
    DoesNotFit
        With what is needed, what there is, and what to do.
    """
    if shape is None:
        return
    options = plan_options(method, settings, device)
    require_room(plan_memory(shape, capacity, options), options, available_room(device))


def plan_options(method: AttentionMethod, settings: EngineSettings, device: torch.device) -> PlanOptions:
    """What decides a plan, told from a method as it will run; see `require_reading`."""
    options = PlanOptions(
        device.type,
        settings.dtype,
        method.name,
        chunk_tokens=settings.chunk_tokens,
        quantization=settings.quantize,
        budget=settings.budget,
        dense_layers=getattr(method, "dense_layers", None),
    )
    if isinstance(method, Lsh | LshPublished):
        return replace(options, n_bits=method.params.n_bits, n_tables=method.params.n_tables)
    return options


def available_room(device: torch.device) -> Room:
    """Memory for a whole plan on this machine and the device that the model computes on."""
    return room(device.index if device.type == "cuda" else None)
