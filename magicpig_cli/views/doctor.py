"""What `doctor` found, as a page for people: the machine, and the plan of one model as a table."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from magicpig_cli.amounts import byte_size

_WIDTH = 100


def page(report: dict[str, Any]) -> str:
    """The object of `doctor --json` as text.

    Parameters
    ----------
    report : dict
        See `cli.doctor.survey`.
    """
    out = StringIO()
    console = Console(file=out, width=_WIDTH, force_terminal=False, no_color=True, markup=False, emoji=False)
    console.print(_machine(report))
    console.print()
    console.print(Text(_title(report["plan"])))
    console.print(_plan(report["plan"]))
    console.print()
    for line in _verdict(report["plan"]):
        console.print(Text(line))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _machine(report: dict[str, Any]) -> Table:
    machine, versions, cache = report["machine"], report["versions"], report["cache"]
    table = Table(show_header=False, box=None, pad_edge=False)
    sets = " ".join(machine["instruction_sets"]) or "none known"
    table.add_row("processor", f"{machine['cpu']}, {machine['cores']} threads")
    table.add_row("instruction sets", sets)
    table.add_row(
        "host memory",
        f"{byte_size(machine['host_bytes'])}, {byte_size(machine['host_free_bytes'])} available",
    )
    for device in machine["devices"]:
        free = f"{byte_size(device['bytes'])}, {byte_size(device['free_bytes'])} free"
        table.add_row("GPU", f"{device['name']}, {free}")
    if not machine["devices"]:
        built = "built without CUDA" if versions["cuda"] is None else f"built for CUDA {versions['cuda']}"
        table.add_row("GPU", f"none that torch sees (torch is {built})")
    names = ("magicpig", "python", "torch", "transformers", "numba")
    table.add_row("versions", ", ".join(f"{name} {versions[name]}" for name in names if name in versions))
    table.add_row("cache", f"{cache['path']}, {byte_size(cache['bytes'])}")
    return table


def _title(plan: dict[str, Any]) -> str:
    method = f", K={plan['n_bits']} L={plan['n_tables']}" if plan["n_tables"] else ""
    bits = plan.get("quantization", "none")
    weights = "" if bits == "none" else f", weights in {bits}"
    return f"{plan['model']}, {plan['ctx']:,} tokens of document and answer{method}{weights}"


def _plan(plan: dict[str, Any]) -> Table:
    device, host = plan["device"], plan["host"]
    table = Table(pad_edge=False)
    on_gpu = device["kind"] != "cpu"
    columns = ("GPU", "host") if on_gpu else ("host",)
    table.add_column("what")
    for name in columns:
        table.add_column(name, justify="right")

    def row(name: str, on_device: int | None, on_host: int | None) -> None:
        cells = [on_device, on_host] if on_gpu else [on_host if on_device is None else on_device]
        table.add_row(name, *("" if cell is None else byte_size(cell) for cell in cells))

    row("weights", device["weights"], None)
    if on_gpu:
        row("keys and values of dense layers", device["static_kv"], None)
    row("keys and values", None, host["kv"])
    row("hash tables", None, host["tables"])
    row("hidden states of the document", device["hidden_states"], None)
    row("one layer, one chunk", device["activations"], None)
    row("overhead of the device" if on_gpu else "gaps in the heap", device["overhead"], None)
    row("program and libraries", None, host["runtime"])
    table.add_section()
    row("in all", device["total"] if on_gpu else None, host["total"])
    row("available", device["available"] if on_gpu else None, host["available"])
    return table


def _verdict(plan: dict[str, Any]) -> list[str]:
    if plan["fits"]:
        lines = [f"It fits. The longest document and answer here: {plan['longest_ctx']:,} tokens."]
    elif plan["ctx"] > plan["context_tokens"]:
        lines = [f"It does not fit: {plan['model']} reads at most {plan['context_tokens']:,} tokens."]
    else:
        lines = ["It does not fit."]
    return [*lines, *(f"  - {words}" for words in plan["advice"])]
