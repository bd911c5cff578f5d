"""Characters that the live screen is drawn with."""

from __future__ import annotations

from dataclasses import dataclass


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
