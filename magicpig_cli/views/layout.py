"""Lays out one frame of the live screen from the figures of a track. Pure: sizes in, rows out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from magicpig_cli.amounts import byte_size
from magicpig_cli.engine.events import Prefilled
from magicpig_cli.views.glyphs import Glyphs
from magicpig_cli.views.panels import GAP, PANEL_COLUMNS, band, column, figures
from magicpig_cli.views.screen import Row, Size, Span
from magicpig_cli.views.text import count, duration, harmless
from magicpig_cli.views.track import Track
from magicpig_cli.views.wrap import Wrapped

# The narrowest screen that has room for panels beside an answer.
_WIDE = 76
# Longer lines are hard to read.
_LONGEST_LINE = 110
_BAR_COLUMNS = 30


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
    # What stands above gives way to panels where the screen is low, and these to a few rows of figures.
    tops = [[*head, *phases, Row()], [*head, Row()], []]
    for top in tops:
        room = limit - len(top)
        panels = band(track, width, room, glyphs) if answer is None else None
        if panels:
            return [*top, *panels]
        boxes = column(track, room, glyphs) if answer is not None and width >= _WIDE else None
        if boxes and answer is not None:
            return [*top, *_side_by_side(answer, boxes, width, room)]
    top = tops[0] if limit >= 16 else tops[1] if limit >= 8 else tops[2]
    return [*top, *_stacked(track, answer, width, limit - len(top), glyphs)]


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
        lsh = info.n_bits is not None
        hashing = f" K={info.n_bits} L={info.n_tables} M={info.min_collisions}" if lsh else ""
        parts.append(f"{info.method}{hashing}")
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
        rows.append(_done(_read(track.prefilled, track, width - 2), glyphs))
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


def _read(prefilled: Prefilled, track: Track, width: int) -> str:
    text = f"{count(prefilled.computed_tokens, 'token')} read in {duration(prefilled.prefill_s)}"
    more = f" ({prefilled.tokens_per_s:,.0f} tokens/s)"
    if track.known_tokens:
        more = f", {track.known_tokens:,} from {track.known_place}"
    return text + more if len(text + more) <= width else text


def _done(text: str, glyphs: Glyphs) -> Row:
    return Row((Span(glyphs.done, "good"), Span(f" {text}", "dim")))


def _bar(label: str, share: float, figures: str, width: int, glyphs: Glyphs) -> list[Row]:
    """One row, or two where the figures have no room beside the bar."""
    share = min(1.0, max(0.0, share))
    lead, number = f"{label} ", f" {100 * share:3.0f} %"
    room = width - cell_len(lead) - len(number)
    beside = room - cell_len(figures) - 2
    bar_columns = max(4, min(_BAR_COLUMNS, beside if beside >= 10 else room))
    filled = int(share * bar_columns)  # full when it is done, not before
    spans = (
        Span(lead),
        Span(glyphs.bar * filled, "accent"),
        Span(glyphs.bar_rest * (bar_columns - filled), "dim"),
        Span(number, "bold"),
    )
    if beside >= 10:
        return [Row((*spans, Span(f"  {figures}")))]
    return [Row(spans), Row((Span(figures),))]


def _side_by_side(answer: Wrapped, panels: Sequence[tuple[Span, ...]], width: int, room: int) -> list[Row]:
    """Answer at the left, panels at its right."""
    answer.resize(min(_LONGEST_LINE, width - PANEL_COLUMNS - GAP))
    lines = answer.tail(room)
    rows = []
    for i in range(max(len(lines), len(panels))):
        left = (Span(lines[i]),) if i < len(lines) else ()
        rows.append(Row(left, answer.width + GAP, panels[i]) if i < len(panels) else Row(left))
    return rows


def _stacked(track: Track, answer: Wrapped | None, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """Figures in a few rows, which stay where they are, and below them the answer."""
    strip = _strip(track, width, room, glyphs)
    if answer is None:
        return strip
    answer.resize(width)
    n_lines = max(0, room - len(strip) - 1)
    return [*strip, *([Row()] if n_lines else []), *(Row((Span(line),)) for line in answer.tail(n_lines))]


def _strip(track: Track, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    lines = _packed(figures(track, glyphs), glyphs.dot, width)[: max(1, min(4, room // 3))]
    return [Row(_cut((Span(line, "dim"),), width, glyphs)) for line in lines]


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
