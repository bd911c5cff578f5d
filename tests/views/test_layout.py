"""Frames for every size of screen."""

from __future__ import annotations

import re

import pytest
from recorded import GPU, loading, memory, prefilling, request

from magicpig_cli.engine.events import Event, LoadProgress, Token
from magicpig_cli.views.glyphs import ASCII, UNICODE
from magicpig_cli.views.layout import frame
from magicpig_cli.views.panels import sparkline
from magicpig_cli.views.screen import Size
from magicpig_cli.views.track import Track
from magicpig_cli.views.wrap import Wrapped

ANSWER = "The letter is hidden behind the third stone of the well, 漢字 and all. " * 20


def drawn(events: list[Event], size: Size, answer: str = "") -> list[str]:
    track, wrapped = Track(), Wrapped(80)
    for event in events:
        track.fold(event)
    wrapped.feed(answer)
    rows = frame(track, wrapped, size, UNICODE, 1.0, 0.0)
    for row in rows:
        assert row.cells < size.columns, row
        left = sum(len(span.text) for span in row.left)
        assert not row.right or left <= row.column
    assert len(rows) < max(2, size.rows)
    return ["".join(span.text for span in (*row.left, *row.right)) for row in rows]


@pytest.mark.parametrize("columns", [20, 40, 60, 75, 76, 77, 100, 250])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 12, 24, 60])
def test_every_phase_fits_every_screen(columns: int, rows: int) -> None:
    events = list(request(["It"] * 80))
    for n in (0, 1, 2, 3, 10, 60, 122, 123, 124, 125, 126, 200, len(events)):
        drawn(events[:n], Size(columns, rows), ANSWER)


def test_reading_shows_speed_and_time_left() -> None:
    events = [*loading(), *list(prefilling())[:60]]
    text = "\n".join(drawn(events, Size(100, 30)))
    assert "book.txt · 6,012 tokens · SmolLM2-135M-Instruct · cpu, 2 threads · lsh K=8 L=75 M=2" in text
    assert "719 tokens/s" in text
    assert "left" in text


def test_fetching_shows_bytes() -> None:
    text = "\n".join(drawn([LoadProgress("fetching the model", 49_000_000, 98_000_000)], Size(100, 30)))
    assert "fetching the model" in text
    assert " 50 %" in text
    assert "49 MB of 98 MB" in text


def test_panels_stand_right_of_the_answer() -> None:
    text = "\n".join(drawn(list(request(["It"] * 80)), Size(100, 30), ANSWER))
    for part in (
        "speed",
        "CPU attention",
        "retrieve, attend",
        "sampled keys",
        "6.4 %",
        "2.1 %",
        "tables",
        "92 MB",
    ):
        assert part in text


def test_a_gpu_is_shown_with_its_free_memory() -> None:
    text = "\n".join(
        drawn([*loading(GPU), *prefilling(), memory(GPU), *request(["It"] * 9)][:-1], Size(100, 30))
    )
    assert "host" in text
    events = [*request(["It"] * 9), memory(GPU)]
    text = "\n".join(drawn(events, Size(100, 30)))
    assert "5.02 GB, 7.86 GB free" in text
    assert re.search("static KV +305 MB", text)


def test_a_narrow_screen_keeps_the_end_of_the_answer_and_the_figures() -> None:
    lines = drawn(list(request(["It"] * 80)), Size(40, 20), ANSWER + "the end.")
    text = "\n".join(lines)
    assert "the end." in text
    assert "ms/token" in text
    assert "sampled 6.4 %" in text


def test_ascii_where_there_is_nothing_better() -> None:
    track = Track()
    for event in request(["It"] * 20):
        track.fold(event)
    for row in frame(track, Wrapped(80), Size(100, 30), ASCII, 0.0, 0.0):
        assert all(span.text.isascii() for span in (*row.left, *row.right))


def test_the_sparkline_starts_at_zero() -> None:
    track = Track()
    for event in request(["It"] * 5):
        track.fold(event)
    assert len(sparkline(track, 3, UNICODE)) == 3
    assert sparkline(track, 5, UNICODE)[-1] == "█"
    assert sparkline(Track(), 5, UNICODE) == ""


@pytest.mark.parametrize(("columns", "boxed"), [(107, True), (106, False), (40, False)])
def test_without_an_answer_the_panels_stand_side_by_side(columns: int, boxed: bool) -> None:
    track = Track()
    for event in request(["It"] * 80):
        track.fold(event)
    rows = frame(track, None, Size(columns, 30), UNICODE, 0.0, 0.0)
    assert all(row.cells < columns for row in rows)
    text = "\n".join("".join(span.text for span in row.left) for row in rows)
    assert ("╭─ speed" in text) is boxed
    assert ("╭─ speed" in text) is any("speed" in line and "memory" in line for line in text.splitlines())
    assert "22.0" in text
    assert "sampled" in text


def test_panels_side_by_side_keep_their_form_from_the_first_token_on() -> None:
    events = list(request(["It"] * 9))
    first = next(i for i, event in enumerate(events) if isinstance(event, Token))
    for n in (first + 1, first + 3, len(events)):
        track = Track()
        for event in events[:n]:
            track.fold(event)
        rows = frame(track, None, Size(100, 30), UNICODE, 0.0, 0.0)
        assert not any("╭" in span.text for row in rows for span in row.left)
