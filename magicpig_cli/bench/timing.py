"""Timing of contenders that take turns, so that a machine that slows down slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one contender: median, minimum and maximum of its repeats."""

    median_ms: float
    min_ms: float
    max_ms: float

    @classmethod
    def of(cls, times_ms: list[float]) -> Timing:
        return cls(median(times_ms), min(times_ms), max(times_ms))


def take_turns(contenders: Mapping[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Call every contender once per round, in order.

    Parameters
    ----------
    contenders : mapping
        Name to a function of the round's number.
    rounds : int
        Measured rounds; one more comes before them and is not counted.

    Returns
    -------
    dict
        Milliseconds of each round by name, in order, so that ratios can be taken within a round.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            started = perf_counter()
            contender(turn)
            elapsed = (perf_counter() - started) * 1e3
            if turn:
                times[name].append(elapsed)
    return times


def ratio(upper: list[float], lower: list[float]) -> float:
    """Median over rounds of upper / lower."""
    return median(a / b for a, b in zip(upper, lower, strict=True))
