"""Values that people give options: parsed, or refused in one sentence, before anything heavy is imported."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Sequence

import typer

from magicpig_cli.errors import UsageError

# Models that stretch further than this are not published, and positions mean little there.
_FARTHEST_STRETCH = 32


def whole(text: object) -> int:
    """A whole number; typer's own parser takes `1_0` and says less."""
    if not re.fullmatch(r"[+-]?[0-9]+", str(text)):
        raise typer.BadParameter(f"{str(text)!r} is not a whole number")
    return int(str(text))


def number(text: object) -> float:
    """A number; whether it makes sense is checked with the others."""
    try:
        return float(str(text))
    except ValueError:
        raise typer.BadParameter(f"{str(text)!r} is not a number") from None


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """`0,16` as numbers, `none` as no layer, None (the model's own choice) as it is.

    Raises
    ------
    UsageError
    """
    if text is None:
        return None
    if text.strip().lower() == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,4}", part) for part in parts):
        raise UsageError(f"--dense-layers is {text!r}, but must be layer numbers such as 0,16, or none")
    return tuple(sorted({int(part) for part in parts}))


def rope_factor(text: str | None) -> float | None:
    """`yarn:2` as 2.0, None as it is.

    Raises
    ------
    UsageError
    """
    if text is None:
        return None
    found = re.fullmatch(r"yarn:([0-9]{1,3}(?:\.[0-9]{1,6})?)", text.strip().lower())
    if found is None or not 1 < float(found[1]) <= _FARTHEST_STRETCH:
        raise UsageError(
            f"--rope is {text!r}, but must be yarn:N such as yarn:2, with N above 1 and at most "
            f"{_FARTHEST_STRETCH}"
        )
    return float(found[1])


def check_bits(model: str, quantize: str) -> None:
    """Refuse a `--quantize` that is unknown, cannot be had, or is asked of a .gguf file.

    Raises
    ------
    UsageError
    """
    from magicpig_cli.models.bits import QUANTIZATIONS, check_quantization, refuse_gguf

    one_of("--quantize", quantize, QUANTIZATIONS)
    refuse_gguf(model, quantize)
    check_quantization(quantize)


def plain_text(name: str, argument: str) -> str:
    """An argument as Unicode text, whatever the locale made of its bytes.

    Raises
    ------
    UsageError
        If its bytes are not UTF-8.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeError:
            raise UsageError(f"{name} is not valid UTF-8 text; check the terminal's encoding") from None
    return argument


def check_share(name: str, value: float) -> None:
    """Refuse what is no share.

    Raises
    ------
    UsageError
    """
    if not 0 < value <= 1:
        raise UsageError(f"{name} is {value:g}, but must be a share above 0 and at most 1, such as 0.05")


def check_tolerance(value: float) -> None:
    """Refuse what is no error to keep to.

    Raises
    ------
    UsageError
    """
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"--tolerance is {value:g}, but must be above 0, such as 0.1")


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices, and name the one that was meant.

    Raises
    ------
    UsageError
    """
    if value in choices:
        return
    close = difflib.get_close_matches(value.lower(), choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; choose one of {', '.join(choices)}"
    raise UsageError(f"there is no {name} {value!r}{hint}")


def between(name: str, value: int | None, low: int, high: int | None) -> None:
    """Refuse what is out of range; None is an option that was not given.

    Raises
    ------
    UsageError
    """
    if value is None or (value >= low and (high is None or value <= high)):
        return
    limits = f"at least {low}" if high is None else f"between {low:,} and {high:,}"
    raise UsageError(f"{name} is {value:,}, but must be {limits}")
