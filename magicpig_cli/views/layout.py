"""Lays out one frame of the live screen from the figures of a track. Pure: sizes in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from magicpig_cli.views.screen import Row, Size, Span
from magicpig_cli.views.text import byte_size, count, duration, harmless, percent
from magicpig_cli.views.track import Track
from magicpig_cli.views.wrap import Wrapped

# Columns of the panels, with their borders, and the narrowest screen that has room for them.
PANEL_COLUMNS = 34
_GAP = 2
_WIDE = 76
_BAR_COLUMNS = 30


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What is drawn with; plain ASCII where the locale has nothing better."""

    bar: str
    bar_rest: str
    done: str
    dot: str
    ellipsis: str
    spark: str
    spinner: str
    corners: tuple[str, str, str, str]  # top left, top right, bottom left, bottom right
    horizontal: str
    vertical: str


UNICODE = Glyphs("━", "─", "✓", " · ", "…", "▁▂▃▄▅▆▇█", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", ("╭", "╮", "╰", "╯"), "─", "│")
ASCII = Glyphs("#", "-", "*", " | ", "~", "_.:-=+*#", "|/-\\", ("+", "+", "+", "+"), "-", "|")


def frame(
    track: Track, answer: Wrapped | None, size: Size, glyphs: Glyphs, clock_s: float, idle_s: float
) -> list[Row]:
    """Rows of the screen.

    Parameters
    ----------
    track : Track
    answer : Wrapped or None
        The answer so far; None where it is not part of this screen. Its width is set here.
    size : Size
    glyphs : Glyphs
    clock_s : float
        Seconds since the beginning, which turns the spinner.
    idle_s : float
        Seconds since the last event, which the time left has run down by.
    """
    width = max(10, size.columns - 1)
    limit = max(1, size.rows - 1)
    head = _header(track, width, glyphs)
    phases = _phases(track, width, glyphs, clock_s, idle_s)
    if track.phase not in ("decode", "done"):
        return [*head, Row(), *phases][:limit] if limit > len(head) + len(phases) else phases[-limit:]
    if limit < 8:
        head, phases = [], []
    elif limit < 16:
        phases = []
    top = [*head, *phases, Row()] if head else []
    room = limit - len(top)
    if width >= _WIDE:
        return [*top, *_side_by_side(track, answer, width, room, glyphs)]
    return [*top, *_stacked(track, answer, width, room, glyphs)]


def _header(track: Track, width: int, glyphs: Glyphs) -> list[Row]:
    parts = []
    names = [document.name for document in track.documents]
    if names:
        parts.append(harmless(names[0]) if len(names) == 1 else count(len(names), "document"))
    if track.prompted:
        parts.append(count(track.prompted.document_tokens, "token"))
    if track.loaded:
        model, device = track.loaded.model, track.loaded.device
        parts.append(harmless(model.id))
        parts.append(
            f"{device.kind}, {count(device.threads, 'thread')}" if device.kind == "cpu" else device.name
        )
    if track.prompted:
        info = track.prompted.attention
        lsh = info.n_bits is not None and info.n_tables is not None
        parts.append(f"{info.method} K={info.n_bits} L={info.n_tables}" if lsh else info.method)
    rows = []
    for i, line in enumerate(_packed(["magicpig", *parts], glyphs.dot, width)[:3]):
        spans = (Span("magicpig", "title"), Span(line[len("magicpig") :])) if i == 0 else (Span(line),)
        rows.append(Row(_cut(spans, width, glyphs)))
    return rows


def _phases(track: Track, width: int, glyphs: Glyphs, clock_s: float, idle_s: float) -> list[Row]:
    rows = []
    turn = glyphs.spinner[int(clock_s * 8) % len(glyphs.spinner)]
    if track.loaded:
        rows.append(_done(f"model loaded in {duration(track.loaded.load_s)}", glyphs))
    elif track.loading and track.loading.total_bytes:
        done, total = track.loading.done_bytes, track.loading.total_bytes
        figures = f"{byte_size(done)} of {byte_size(total)}"
        rows += _bar(harmless(track.loading.phase), done / total, figures, width, glyphs)
    else:
        what = harmless(track.loading.phase) if track.loading else "starting"
        rows.append(Row((Span(turn, "accent"), Span(f" {what}"))))
    if track.prefilled:
        text = (
            f"{count(track.prefilled.prompt_tokens, 'token')} read in "
            f"{duration(track.prefilled.prefill_s)} ({track.prefilled.tokens_per_s:,.0f} tokens/s)"
        )
        rows.append(_done(text, glyphs))
        if track.phase == "prefill":
            rows.append(Row((Span(turn, "accent"), Span(" answering"))))
    elif track.prefill:
        parts = []
        if track.prefill_tokens_per_s:
            parts.append(f"{track.prefill_tokens_per_s:,.0f} tokens/s")
        left = track.prefill_left_s(idle_s)
        if left is not None:
            parts.append(f"{duration(left)} left")
        rows += _bar("reading", track.prefill.fraction, glyphs.dot.join(parts), width, glyphs)
    elif track.loaded:
        rows.append(Row((Span(turn, "accent"), Span(" preparing"))))
    return [Row(_cut(row.left, width, glyphs)) for row in rows]


def _done(text: str, glyphs: Glyphs) -> Row:
    return Row((Span(glyphs.done, "good"), Span(f" {text}", "dim")))


def _bar(label: str, share: float, figures: str, width: int, glyphs: Glyphs) -> list[Row]:
    """One row, or two where the figures have no room beside the bar."""
    share = min(1.0, max(0.0, share))
    lead, number = f"{label} ", f" {100 * share:3.0f} %"
    room = width - cell_len(lead) - len(number)
    beside = room - cell_len(figures) - 2
    bar_columns = max(4, min(_BAR_COLUMNS, beside if beside >= 10 else room))
    filled = round(share * bar_columns)
    spans = (
        Span(lead),
        Span(glyphs.bar * filled, "accent"),
        Span(glyphs.bar_rest * (bar_columns - filled), "dim"),
        Span(number, "bold"),
    )
    if beside >= 10:
        return [Row((*spans, Span(f"  {figures}")))]
    return [Row(spans), Row((Span(figures),))]


def _side_by_side(track: Track, answer: Wrapped | None, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """Answer at the left, panels at the right."""
    left_columns = width - PANEL_COLUMNS - _GAP
    panels = _panels(track, room, glyphs)
    lines: list[str] = []
    if answer is not None:
        answer.resize(left_columns)
        lines = answer.tail(room)
    column = left_columns + _GAP
    rows = []
    for i in range(max(len(lines), len(panels))):
        left = (Span(lines[i]),) if i < len(lines) else ()
        rows.append(Row(left, column, panels[i]) if i < len(panels) else Row(left))
    return rows


def _stacked(track: Track, answer: Wrapped | None, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """Answer above, figures packed into a few rows below."""
    figures = _packed(_figures(track, glyphs), glyphs.dot, width)
    strip = [Row(_cut((Span(line, "dim"),), width, glyphs)) for line in figures[: max(1, min(4, room // 3))]]
    if answer is None:
        return strip
    answer.resize(width)
    n_lines = max(0, room - len(strip) - 1)
    lines = [Row((Span(line),)) for line in answer.tail(n_lines)]
    return [*lines, *([Row()] if n_lines else []), *strip]


def _figures(track: Track, glyphs: Glyphs) -> list[str]:
    """The panels' content in words, the most telling first."""
    figures = [count(track.generated_tokens, "token")]
    if track.step_ms is not None:
        figures.append(f"{track.step_ms:.1f} ms/token {sparkline(track, 12, glyphs)}")
    if track.attention_ms is not None and track.attention_share is not None:
        figures.append(f"CPU attention {track.attention_ms:.1f} ms {percent(track.attention_share)}")
    if track.sampled_share is not None:
        figures.append(f"sampled {percent(track.sampled_share)}")
    if track.estimated_error is not None:
        figures.append(f"error {percent(track.estimated_error)}")
    figures += [f"{name} {amount}" for name, amount in _memory(track)]
    return figures


def _memory(track: Track) -> list[tuple[str, str]]:
    memory = track.memory
    if memory is None:
        return []
    lines = [("weights", byte_size(memory.weight_bytes)), ("keys, values", byte_size(memory.kv_bytes))]
    if memory.table_bytes:
        lines.append(("tables", byte_size(memory.table_bytes)))
    lines.append(("host", f"{byte_size(memory.host_bytes)} of {byte_size(memory.host_total_bytes)}"))
    if memory.device_bytes is not None and memory.device_total_bytes is not None:
        free = memory.device_total_bytes - memory.device_bytes
        lines.append(("GPU", f"{byte_size(memory.device_bytes)}, {byte_size(free)} free"))
    return lines


def _panels(track: Track, room: int, glyphs: Glyphs) -> list[tuple[Span, ...]]:
    """Panels with borders; without where the screen is low."""
    inner = PANEL_COLUMNS - 4
    speed = [("tokens", f"{track.generated_tokens:,}")]
    if track.step_ms is not None:
        speed.append(("ms/token", f"{track.step_ms:.1f}"))
    attention: list[tuple[str, str]] = []
    if track.attention_ms is not None and track.attention_share is not None:
        attention.append(("ms/token", f"{track.attention_ms:.1f}"))
        attention.append(("of the step", percent(track.attention_share)))
    if track.retrieve_ms is not None and track.attend_ms is not None:
        attention.append(("retrieve, attend", f"{track.retrieve_ms:.1f}, {track.attend_ms:.1f}"))
    if track.sampled_share is not None:
        attention.append(("sampled keys", percent(track.sampled_share)))
    if track.estimated_error is not None:
        attention.append(("estimated error", percent(track.estimated_error)))
    spark = sparkline(track, inner, glyphs)
    boxes: list[tuple[str, list[tuple[str, str]]]] = [
        ("speed", speed),
        ("CPU attention", attention),
        ("memory", _memory(track)),
    ]
    boxes = [(title, lines) for title, lines in boxes if lines]
    bordered = sum(len(lines) + 2 for _, lines in boxes) + bool(spark) <= room
    rows: list[tuple[Span, ...]] = []
    for title, lines in boxes:
        body: list[tuple[Span, ...]] = [_pair(name, value, inner) for name, value in lines]
        if title == "speed" and spark:
            body.append((Span(set_cell_size(spark, inner), "accent"),))
        rows += _boxed(title, body, glyphs) if bordered else body
    return rows[:room]


def _pair(name: str, value: str, inner: int) -> tuple[Span, ...]:
    space = max(1, inner - cell_len(name) - cell_len(value))
    return Span(name, "dim"), Span(" " * space), Span(value)


def _boxed(title: str, body: list[tuple[Span, ...]], glyphs: Glyphs) -> list[tuple[Span, ...]]:
    top_left, top_right, bottom_left, bottom_right = glyphs.corners
    side = glyphs.horizontal
    lead = f"{top_left}{side} "
    rest = PANEL_COLUMNS - len(lead) - len(title) - 2
    rows: list[tuple[Span, ...]] = [
        (Span(lead, "dim"), Span(title, "bold"), Span(f" {side * rest}{top_right}", "dim"))
    ]
    wall = glyphs.vertical
    rows += [(Span(f"{wall} ", "dim"), *spans, Span(f" {wall}", "dim")) for spans in body]
    rows.append((Span(f"{bottom_left}{side * (PANEL_COLUMNS - 2)}{bottom_right}", "dim"),))
    return rows


def sparkline(track: Track, columns: int, glyphs: Glyphs) -> str:
    """Recent milliseconds per token as little bars, from zero to the slowest shown."""
    values = [step.step_ms for step in tuple(track.steps)[-columns:]]
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    levels = len(glyphs.spark) - 1
    return "".join(glyphs.spark[round(levels * value / top)] for value in values)


def _packed(parts: Sequence[str], separator: str, width: int) -> list[str]:
    """Parts in lines, as many in each as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + cell_len(separator) + cell_len(part) <= width:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return lines


def _cut(spans: Sequence[Span], width: int, glyphs: Glyphs) -> tuple[Span, ...]:
    """Spans that fit; a cut shows."""
    kept: list[Span] = []
    used = 0
    for span in spans:
        cells = cell_len(span.text)
        if used + cells > width:
            rest = set_cell_size(span.text, max(0, width - used - 1))
            return (*kept, Span(rest + glyphs.ellipsis, span.style))
        kept.append(span)
        used += cells
    return tuple(kept)
