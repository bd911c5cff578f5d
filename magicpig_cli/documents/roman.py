"""Roman numerals, as headings count with them."""

from __future__ import annotations

import re

_NUMERAL = re.compile(r"m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})", re.IGNORECASE)
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}


def roman_value(numeral: str) -> int | None:
    """The number that a Roman numeral up to 3,999 stands for, in either case; None if it is none."""
    if not numeral or not _NUMERAL.fullmatch(numeral):
        return None
    values = [_VALUES[letter] for letter in numeral.lower()]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < after else value for value, after in pairs)
