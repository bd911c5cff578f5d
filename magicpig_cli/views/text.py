"""Small pieces of text that every view needs: harmless, short, in units a person reads."""

from __future__ import annotations

import re

# C0 but tab and newline, DEL, C1: what can move a cursor, ring, or rename a window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Overrides that make a terminal show other text than there is (Unicode TR 36, bidirectional controls).
_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """`text` with control characters spelled out (`\\x1b`); nothing in it steers a terminal any more."""
    if text.isprintable():
        return text
    spelled = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return _OVERRIDES.sub(lambda match: f"\\u{ord(match[0]):04x}", spelled)


def duration(seconds: float) -> str:
    """`0.4 s`, `38 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float) -> str:
    """`2.1 %`, `63 %`."""
    value = 100 * share
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def count(n: int, noun: str) -> str:
    """`1 token`, `6,012 tokens`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
