"""From finished items to results: means over samples, with intervals that say how much chance is in them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import Any

_Z = 1.959964  # 95 %
_RESAMPLES = 2000
# Samples from which drawing again says something.
_FEWEST = 5


def summarize(items: Iterable[dict[str, Any]], ctx: int) -> list[dict[str, Any]]:
    """One result per task, method, budget and tolerance, in the order in which they first come.

    A field that a task does not measure is None.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for item in items:
        key = (item["task"], item["method"], item["budget"], item.get("tolerance"))
        groups.setdefault(key, []).append(item)
    return [_result(key, group, ctx) for key, group in groups.items()]


def _result(key: tuple[Any, ...], group: list[dict[str, Any]], ctx: int) -> dict[str, Any]:
    task, method, budget, tolerance = key
    scores, errors = _values(group, "score"), _values(group, "relative_error")
    low, high = wilson(scores) if scores else (None, None)
    error_low, error_high = bootstrap(errors) if len(errors) >= _FEWEST else (None, None)
    likelihood = _mean(_values(group, "negative_log_likelihood"))
    return {
        "task": task,
        "method": method,
        "budget": budget,
        "tolerance": tolerance,
        "ctx": ctx,
        "samples": len(group),
        "score": _mean(scores),
        "score_low": low,
        "score_high": high,
        "keys_touched_share": _share(group, "keys"),
        "keys_read_share": _share(group, "rows"),
        "relative_error": _mean(errors),
        "relative_error_low": error_low,
        "relative_error_high": error_high,
        "relative_error_median": _mean(_values(group, "relative_error_median")),
        "relative_error_p90": _mean(_values(group, "relative_error_p90")),
        "relative_error_by_layer_and_head": _by_layer(group),
        "heads_resampled_share": _of(group, "heads_resampled", "heads_judged"),
        "heads_exact_share": _of(group, "heads_exact", "heads_judged"),
        "within_tolerance": _of(group, "outputs_within_tolerance", "outputs"),
        "within_twice_estimate": _of(group, "outputs_within_twice_estimate", "outputs_estimated"),
        "estimate_over_error_median": _mean(_values(group, "estimate_over_error_median")),
        "kl_mean": _mean(_values(group, "kl_mean")),
        "kl_max": max(_values(group, "kl_max"), default=None),
        "perplexity": None if likelihood is None else math.exp(likelihood),
    }


def wilson(scores: list[float]) -> tuple[float, float]:
    """A 95 % interval of a mean of values between 0 and 1 (Wilson's score interval).

    For recalls between 0 and 1 it is wider than need be: none spreads more than right and wrong do.
    """
    n, p = len(scores), sum(scores) / len(scores)
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of a mean, by drawing samples again (percentiles, always the same draws)."""
    random = Random(0)
    means = sorted(sum(random.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    return means[round(0.025 * _RESAMPLES)], means[round(0.975 * _RESAMPLES) - 1]


def _share(group: list[dict[str, Any]], what: str) -> float | None:
    """Touched of offered, by (query head, key) pairs or by keys; exact attention reads all."""
    if group[0]["method"] == "dense":
        return 1.0
    return _of(group, f"{what}_touched", f"{what}_offered")


def _of(group: list[dict[str, Any]], part: str, whole: str) -> float | None:
    """A ratio of sums over the items that know both."""
    known = [item for item in group if part in item and whole in item]
    total = sum(item[whole] for item in known)
    return sum(item[part] for item in known) / total if total else None


def _values(group: list[dict[str, Any]], name: str) -> list[float]:
    return [item[name] for item in group if item.get(name) is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _by_layer(group: list[dict[str, Any]]) -> dict[str, list[float]] | None:
    """Means over samples, per layer and query head."""
    name = "relative_error_by_layer_and_head"
    tables = [item[name] for item in group if item.get(name)]
    if not tables:
        return None
    return {
        layer: [sum(heads) / len(heads) for heads in zip(*(table[layer] for table in tables), strict=True)]
        for layer in tables[0]
    }
