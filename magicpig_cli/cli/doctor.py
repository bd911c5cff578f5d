"""`magicpig doctor`: what this machine can hold, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli.cli import exits, options, values
from magicpig_cli.cli.chatter import set_up_libraries
from magicpig_cli.errors import UsageError
from magicpig_cli.views.streams import Output, ReaderGone, Standard, private

if TYPE_CHECKING:
    from magicpig_cli.models.machine import Device, HostMemory
    from magicpig_cli.models.plan import MemoryPlan, Room

EXAMPLES = """\b
Examples:
  magicpig doctor
  magicpig doctor --model llama-3.1-8b --ctx 96000
  magicpig doctor -m llama-3.2-1b --json | jq .plan.longest_ctx"""

_LONGEST_CTX = 100_000_000


def doctor(
    context: typer.Context,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx",
            parser=values.whole,
            metavar="N",
            help="Tokens of document and answer to plan for; default: the most that fit.",
        ),
    ] = None,
    model: options.ModelOption = "auto",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    quantize: options.QuantizeOption = "none",
    rope: options.RopeOption = None,
    attention: options.AttentionOption = "lsh",
    bits: options.BitsOption = None,
    tables: options.TablesOption = None,
    collisions: options.CollisionsOption = None,
    dense_layers: options.DenseLayersOption = None,
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Show what this machine has and what a model would take of it, without loading the model.

    Sizes come from the model's configuration and the headers of its files. Models of
    `magicpig models ls` need not be on this disk. A plan that does not fit says what would.
    """
    engine_options = options.EngineOptions(
        model,
        device,
        dtype,
        attention,
        bits,
        tables,
        dense_layers,
        threads,
        offline=True,
        quantize=quantize,
        rope=rope,
        collisions=collisions,
    ).checked()
    if ctx is not None and not 1 <= ctx <= _LONGEST_CTX:
        raise UsageError(f"--ctx is {ctx:,}, but must be between 1 and {_LONGEST_CTX:,}")
    set_up_libraries(verbose, offline=True)
    standard: Standard = context.obj
    with private(standard.streams, keep_chatter=verbose) as own:
        report = survey(engine_options, ctx)
        try:
            Output(own.out).write(_text(report, as_json))
        except ReaderGone:
            return exits.READER_GONE
    return 0


def survey(engine_options: options.EngineOptions, ctx: int | None) -> dict[str, Any]:
    """The object of `doctor --json`.

    Raises
    ------
    MagicPigError
        If no model can be meant, or it cannot be read.
    """
    from magicpig_cli.engine.threads import available_cores
    from magicpig_cli.models import machine
    from magicpig_cli.models.cachedir import cache_root
    from magicpig_cli.models.plan import PlanOptions, Room, advice, longest_ctx, plan_memory
    from magicpig_cli.models.rotation import stretched
    from magicpig_cli.models.survey import find_shape

    devices = machine.devices()
    chosen = _chosen(engine_options.device, devices)
    kind = "cpu" if chosen is None else "cuda"
    shape = stretched(find_shape(engine_options.model, kind), values.rope_factor(engine_options.rope))
    memory = machine.host_memory()
    room = Room(memory.free_bytes + machine.resident_bytes(), None if chosen is None else chosen.free_bytes)
    wishes = PlanOptions(
        kind,
        engine_options.dtype,
        engine_options.attention,
        engine_options.bits,
        engine_options.tables,
        values.layer_numbers(engine_options.dense_layers),
        quantization=engine_options.quantize,
    )
    longest = longest_ctx(shape, wishes, room)
    plan = plan_memory(shape, ctx or longest or shape.context_tokens, wishes)
    cache = cache_root()
    return {
        "machine": _machine(memory, devices, engine_options.threads or available_cores()),
        "versions": machine.versions(),
        "cache": {"path": str(cache), "bytes": machine.folder_bytes(cache)},
        "plan": {
            "quantization": engine_options.quantize,
            "rope": engine_options.rope,
            **_plan(plan, room, longest, advice(plan, wishes, room)),
        },
    }


def _chosen(name: str, devices: list[Device]) -> Device | None:
    """The GPU that `--device` means, None for the CPU."""
    if name == "cpu" or (name == "auto" and not devices):
        return None
    index = int(name.partition(":")[2] or 0)
    if index >= len(devices):
        raise UsageError(
            f"device {name} was asked for, but torch sees {len(devices)} CUDA GPUs; use `--device cpu`"
        )
    return devices[index]


def _machine(memory: HostMemory, devices: list[Device], cores: int) -> dict[str, Any]:
    from dataclasses import asdict

    from magicpig_cli.models import machine

    return {
        "cpu": machine.cpu_name(),
        "instruction_sets": machine.instruction_sets(),
        "cores": cores,
        "host_bytes": memory.total_bytes,
        "host_free_bytes": memory.free_bytes,
        "devices": [asdict(device) for device in devices],
    }


def _plan(plan: MemoryPlan, room: Room, longest: int, found: list[str]) -> dict[str, Any]:
    device, host = plan.device, plan.host
    in_device = room.host_bytes if room.device_bytes is None else room.device_bytes
    return {
        "model": plan.shape.id,
        "ctx": plan.ctx,
        "context_tokens": plan.shape.context_tokens,
        "fits": plan.fits(room) and plan.ctx <= plan.shape.context_tokens,
        "n_bits": plan.n_bits,
        "n_tables": plan.n_tables,
        "device": {
            "kind": plan.device_kind,
            "weights": device.weights,
            "static_kv": device.static_kv,
            "hidden_states": device.hidden_states,
            "activations": device.activations,
            "overhead": device.overhead,
            "total": device.total,
            "available": in_device,
        },
        "host": {
            "kv": host.kv,
            "tables": host.tables,
            "runtime": host.runtime,
            "computing": host.computing,
            "total": host.total,
            "available": room.host_bytes,
        },
        "longest_ctx": longest,
        "advice": found,
    }


def _text(report: dict[str, Any], as_json: bool) -> str:
    if as_json:
        return json.dumps(report) + "\n"
    from magicpig_cli.views.doctor import page

    return page(report)
