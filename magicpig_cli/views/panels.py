"""The figures of decoding: speed, CPU attention and memory, as panels or in words where there is no room.

Pure: a track and sizes in, rows of spans out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from magicpig_cli.amounts import byte_size
from magicpig_cli.views.glyphs import Glyphs
from magicpig_cli.views.screen import Row, Span
from magicpig_cli.views.text import count, percent
from magicpig_cli.views.track import Track

# Columns of a panel with its borders.
PANEL_COLUMNS = 34
GAP = 2
_INNER = PANEL_COLUMNS - 4
_N_PANELS = 3

Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    lines: tuple[Spans, ...]


def column(track: Track, room: int, glyphs: Glyphs) -> list[Spans] | None:
    """Panels one below the other; None if they take more than `room` rows."""
    rows: list[Spans] = []
    for panel in _panels(track, glyphs):
        rows += _boxed(panel, len(panel.lines), glyphs)
    return rows if len(rows) <= room else None


def band(track: Track, width: int, room: int, glyphs: Glyphs) -> list[Row] | None:
    """Panels side by side, where the answer goes elsewhere; None if there is no room for them."""
    panels = _panels(track, glyphs)
    height = max((len(panel.lines) for panel in panels), default=0)
    # Room for all of them, though some have nothing to tell yet: what is drawn must not change its form.
    across = _N_PANELS * (PANEL_COLUMNS + GAP) - GAP
    if not panels or across > width or height + 2 > room:
        return None
    boxes = [_boxed(panel, height, glyphs) for panel in panels]
    blank = Span(" " * GAP)
    rows = []
    for parts in zip(*boxes, strict=True):
        spans: list[Span] = []
        for part in parts:
            spans += [*([blank] if spans else []), *part]
        rows.append(Row(tuple(spans)))
    return rows


def figures(track: Track, glyphs: Glyphs) -> list[str]:
    """The panels' content in words, the most telling first."""
    words = [count(track.generated_tokens, "token")]
    if track.step_ms is not None:
        words.append(f"{track.step_ms:.1f} ms/token {sparkline(track, 12, glyphs)}")
    if track.attention_ms is not None and track.attention_share is not None:
        words.append(f"CPU attention {track.attention_ms:.1f} ms {percent(track.attention_share)}")
    if track.sampled_share is not None:
        words.append(f"sampled {percent(track.sampled_share)}")
    if track.estimated_error is not None:
        words.append(f"error {percent(track.estimated_error)}")
    if track.exact_share is not None and track.resampled_share is not None:
        words.append(f"more, all keys {percent(track.resampled_share)}, {percent(track.exact_share)}")
    words += [f"{name} {amount}" for name, amount in _memory(track)]
    return words


def sparkline(track: Track, columns: int, glyphs: Glyphs) -> str:
    """Recent milliseconds per token as little bars, from zero to the slowest shown."""
    values = [step.step_ms for step in tuple(track.steps)[-columns:]]
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    levels = len(glyphs.spark) - 1
    return "".join(glyphs.spark[round(levels * value / top)] for value in values)


def _panels(track: Track, glyphs: Glyphs) -> list[_Panel]:
    """Those that have something to tell."""
    spark = sparkline(track, _INNER, glyphs)
    lines = [(Span(set_cell_size(spark, _INNER), "accent"),)] if spark else []
    panels = [
        _Panel("speed", (*_pairs(_speed(track)), *lines)),
        _Panel("CPU attention", _pairs(_attention(track))),
        _Panel("memory", _pairs(_memory(track))),
    ]
    return [panel for panel in panels if panel.lines]


def _speed(track: Track) -> list[tuple[str, str]]:
    pairs = [("tokens", f"{track.generated_tokens:,}")]
    if track.step_ms is not None:
        pairs.append(("ms/token", f"{track.step_ms:.1f}"))
    return pairs


def _attention(track: Track) -> list[tuple[str, str]]:
    pairs = []
    if track.attention_ms is not None and track.attention_share is not None:
        pairs.append(("ms/token", f"{track.attention_ms:.1f}"))
        pairs.append(("of the step", percent(track.attention_share)))
    if track.retrieve_ms is not None and track.attend_ms is not None:
        pairs.append(("retrieve, attend", f"{track.retrieve_ms:.1f}, {track.attend_ms:.1f}"))
    if track.sampled_share is not None:
        pairs.append(("sampled keys", percent(track.sampled_share)))
    if track.estimated_error is not None:
        pairs.append(("estimated error", percent(track.estimated_error)))
    if track.exact_share is not None and track.resampled_share is not None:
        pairs.append(("more, all keys", f"{percent(track.resampled_share)}, {percent(track.exact_share)}"))
    return pairs


def _memory(track: Track) -> list[tuple[str, str]]:
    memory = track.memory
    if memory is None:
        return []
    pairs = [("weights", byte_size(memory.weight_bytes)), ("keys, values", byte_size(memory.kv_bytes))]
    if memory.table_bytes:
        pairs.append(("tables", byte_size(memory.table_bytes)))
    pairs.append(("host", f"{byte_size(memory.host_bytes)} of {byte_size(memory.host_total_bytes)}"))
    if memory.device_bytes is not None and memory.device_total_bytes is not None:
        free = memory.device_total_bytes - memory.device_bytes
        pairs.append(("GPU", f"{byte_size(memory.device_bytes)}, {byte_size(free)} free"))
        if memory.device_kv_bytes:
            pairs.append(("static KV", byte_size(memory.device_kv_bytes)))
    return pairs


def _pairs(pairs: Sequence[tuple[str, str]]) -> tuple[Spans, ...]:
    """Names at the left, values at the right."""
    lines = []
    for name, value in pairs:
        space = max(1, _INNER - cell_len(name) - cell_len(value))
        lines.append((Span(name, "dim"), Span(" " * space), Span(value)))
    return tuple(lines)


def _boxed(panel: _Panel, height: int, glyphs: Glyphs) -> list[Spans]:
    """A panel in its borders, filled up to `height` lines."""
    top_left, top_right, bottom_left, bottom_right = glyphs.corners
    side, wall = glyphs.horizontal, glyphs.vertical
    lead = f"{top_left}{side} "
    rest = PANEL_COLUMNS - len(lead) - len(panel.title) - 2
    rows: list[Spans] = [
        (Span(lead, "dim"), Span(panel.title, "bold"), Span(f" {side * rest}{top_right}", "dim"))
    ]
    lines = [*panel.lines, *[(Span(" " * _INNER),)] * (height - len(panel.lines))]
    rows += [(Span(f"{wall} ", "dim"), *spans, Span(f" {wall}", "dim")) for spans in lines]
    rows.append((Span(f"{bottom_left}{side * (PANEL_COLUMNS - 2)}{bottom_right}", "dim"),))
    return rows
