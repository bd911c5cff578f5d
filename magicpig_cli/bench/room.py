"""Whether a measurement fits this machine: asked of every context before the first is measured.

A model's context takes what reading it would take (`models.plan`), though most of it is generated. One layer
alone takes its keys and values, their copies for dense attention, and its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.room import available_room, plan_options
from magicpig_cli.errors import DoesNotFit
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.models.plan import MemoryPlan, PlanOptions, plan_memory
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.shape import catalog_shapes

# Copies of keys and values that dense attention reads, in float32 (`yardsticks.DenseContender`).
_DENSE_COPIES = 2
# Arrays of one head in float32 that are alive at once while keys are generated (`keys.generate_keys`).
_GENERATED = 6


def layer_bytes(layer: LayerShape, n_keys: int, params: LshParams) -> int:
    """Host memory at the peak of generating and measuring one layer (`keys`, `kernel`).

    Parameters
    ----------
    layer : LayerShape
    n_keys : int
    params : LshParams
    """
    # Of a whole model's plan only what is kept of its one layer counts, so any will do.
    shape = replace(catalog_shapes()[0], layer=layer, windows=(None,))
    options = PlanOptions(n_bits=params.n_bits, n_tables=params.n_tables, dense_layers=())
    plan = plan_memory(shape, n_keys, options)
    generating = _GENERATED * 4 * n_keys * layer.head_dim
    measuring = plan.host.tables + _DENSE_COPIES * plan.host.kv
    return plan.host.runtime + plan.host.kv + max(generating, measuring)


def require_layer(
    name: str, layer: LayerShape, contexts: list[int], params_at: Callable[[int], LshParams]
) -> None:
    """Refuse to measure one layer at a context for which there is no memory.

    Parameters
    ----------
    name : str
        Of the shape.
    layer : LayerShape
    contexts : list of int
    params_at : callable
        LshParams of a context.

    Raises
    ------
    DoesNotFit
        With what is needed, what there is, and what to do.
    """
    available = available_room(torch.device("cpu")).host_bytes

    def needed(ctx: int) -> int:
        return layer_bytes(layer, ctx, params_at(ctx))

    _require(f"one layer of {name}", max(contexts), needed, available, "host memory")


def require_model(engine: Engine, contexts: list[int], params_at: Callable[[int], LshParams]) -> None:
    """Refuse to measure whole decode steps at a context for which there is no memory; as `require_layer`."""
    shape, settings = engine.loaded.shape, engine.settings
    if shape is None:
        return
    chosen = settings.dense_layers
    layers = dense_layers(engine.n_layers) if chosen is None else chosen

    def planned(ctx: int) -> MemoryPlan:
        options = plan_options(Lsh(params_at(ctx), layers), settings, engine.device)
        return plan_memory(shape, ctx, options)

    available = available_room(engine.device)
    subject, ctx = f"whole steps of {shape.id}", max(contexts)
    _require(subject, ctx, lambda n: planned(n).host.total, available.host_bytes, "host memory")
    if available.device_bytes is not None:
        _require(subject, ctx, lambda n: planned(n).device.total, available.device_bytes, "the GPU's memory")


def _require(subject: str, ctx: int, needed: Callable[[int], int], available: int, where: str) -> None:
    if needed(ctx) <= available:
        return
    low, high = 0, ctx
    while high - low > 1000:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= available else (low, middle)
    fitting = low // 1000 * 1000
    advice = f"keep --ctx within {fitting:,}" if fitting else "use a machine with more memory"
    raise DoesNotFit(
        f"measuring {subject} at {ctx:,} keys takes {needed(ctx) / 1e9:,.1f} GB of {where}, of which "
        f"{available / 1e9:,.1f} GB are available; {advice}"
    )
