"""Benchmark results for people: one table, and bars of ms/token against context."""

from __future__ import annotations

from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def render(results: list[dict[str, Any]]) -> RenderableType:
    """A table with one column per context, and bars where whole decode steps were measured."""
    parts: list[RenderableType] = [_table(results)]
    if any(result["decode"] for result in results):
        parts += [Text(), _bars(results)]
    parts += [Text(), *_remarks(results)]
    return Group(*parts)


def _table(results: list[dict[str, Any]]) -> Table:
    first = results[0]
    shape = first["shape"]
    title = first["model"] or "one layer"
    table = Table(
        title=f"{title}: {shape['n_q_heads']} query heads, {shape['n_kv_heads']} KV heads, "
        f"head_dim {shape['head_dim']}; {first['threads']} threads",
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("context")
    for result in results:
        table.add_column(f"{result['ctx']:,}", justify="right")

    def row(name: str, *path: str, unit: str = "", scale: float = 1.0, digits: int = 2) -> None:
        values = [_at(result, path) for result in results]
        if any(value is not None for value in values):
            cells = ["" if v is None else f"{v * scale:,.{digits}f}{unit}" for v in values]
            table.add_row(name, *cells)

    names = ("n_bits", "n_tables", "min_collisions")
    table.add_row("K, L, M", *(", ".join(str(result[name]) for name in names) for result in results))
    row("sampled share of keys", "sampled_share", unit=" %", scale=100)
    table.add_section()
    row("hash, per layer", "kernel", "hash_s_per_layer", unit=" s")
    row("hash and sort, per layer", "kernel", "build_s_per_layer", unit=" s")
    row("tables, per layer", "kernel", "table_bytes_per_layer", unit=" MB", scale=1e-6, digits=0)
    table.add_section()
    row("retrieve", "kernel", "retrieve_ms", unit=" ms")
    row("attend", "kernel", "attend_ms", unit=" ms")
    row("step of a layer", "kernel", "step_ms", unit=" ms")
    row("gather floor", "kernel", "gather_floor_ms", unit=" ms")
    row("read all K and V", "kernel", "sequential_read_ms", unit=" ms")
    row("dense attention (torch)", "kernel", "dense_ms", unit=" ms")
    row("step over gather floor", "kernel", "step_over_floor")
    row("dense over step", "kernel", "dense_over_step", digits=1)
    row("error of the output", "kernel", "relative_error", digits=3)
    table.add_section()
    row("decode, sampled", "decode", "ms_per_token", unit=" ms/token", digits=1)
    row("  of it attention", "decode", "cpu_attention_ms_per_token", unit=" ms", digits=1)
    row("  heads with more keys", "decode", "resampled_share", unit=" %", scale=100)
    row("  heads with all keys", "decode", "exact_share", unit=" %", scale=100)
    row("decode, dense", "decode", "dense_ms_per_token", unit=" ms/token", digits=1)
    row("dense over sampled", "decode", "speedup", digits=1)
    row("prefill", "prefill", "tokens_per_s", unit=" tokens/s", digits=0)
    row("peak host memory", "memory", "host_peak_bytes", unit=" MB", scale=1e-6, digits=0)
    return table


def _bars(results: list[dict[str, Any]]) -> Table:
    longest = max(r["decode"]["dense_ms_per_token"] for r in results if r["decode"])
    table = Table.grid(padding=(0, 1))
    for column in ("right", "left", "right", "left"):
        table.add_column(justify=column)  # type: ignore[arg-type]
    for result in results:
        for name, key in (("sampled", "ms_per_token"), ("dense", "dense_ms_per_token")):
            ms = result["decode"][key]
            label = f"{result['ctx']:,}" if name == "sampled" else ""
            table.add_row(label, name, f"{ms:,.1f} ms", Bar(longest, 0, ms, width=40))
    return table


def _remarks(results: list[dict[str, Any]]) -> list[Text]:
    remarks = [f"keys: {results[0]['keys']['description']}"]
    if any(result["beyond_trained_context"] for result in results):
        remarks.append(
            "contexts beyond what the model was trained for: a measurement of speed, not of answers"
        )
    if any(result["prefill"] for result in results):
        remarks.append(f"prefill measured on {results[0]['prefill']['tokens']:,} tokens")
    facts = results[0]["machine"]
    remarks.append(
        f"{facts['cpu']}, Python {facts['python']}, torch {facts['torch']}, numba {facts['numba']}; "
        "times are medians"
    )
    return [Text(remark, style="dim") for remark in remarks]


def _at(result: dict[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = result
    for key in path:
        if value is None:
            return None
        value = value[key]
    return None if value is None else float(value)
