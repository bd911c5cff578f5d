"""Results of an evaluation for people: one table per kind of measurement."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def render(outcome: dict[str, Any]) -> RenderableType:
    """Scores by task, output error, and divergence, whichever was measured."""
    results = outcome["results"]
    scored = [r for r in results if r["score"] is not None]
    parts: list[RenderableType] = []
    if scored:
        parts += [_scores(scored), Text()]
    error = [r for r in results if r["relative_error"] is not None]
    if error:
        parts += [_errors(error), Text()]
    judged = [r for r in error if r["within_twice_estimate"] is not None or r["tolerance"] is not None]
    if judged:
        parts += [_estimates(judged), Text()]
    kl = [r for r in results if r["kl_mean"] is not None]
    if kl:
        parts += [_divergences(kl), Text()]
    settings = outcome["settings"]
    parts.append(
        Text(
            f"{outcome['model']}, {settings['ctx']:,} tokens, text: {settings['text']}; layers "
            f"{', '.join(map(str, settings['dense_layers'])) or 'none'} exact in all "
            "methods; intervals are 95 %"
        )
    )
    return Group(*parts)


def _scores(results: list[dict[str, Any]]) -> Table:
    tasks = list(dict.fromkeys(r["task"] for r in results))
    table = Table(title="Scores, % (samples)", title_justify="left", pad_edge=False)
    _name_columns(table)
    for task in tasks:
        table.add_column(task, justify="right")
    table.add_column("mean", justify="right")
    for name, group in _grouped(results):
        found = {r["task"]: r for r in group}
        cells = [_score(found[task]) if task in found else "" for task in tasks]
        mean = sum(r["score"] for r in group) / len(group)
        whole = f"{mean * 100:.0f}" if len(group) == len(tasks) else ""
        table.add_row(*_names(name), *_shares(group), *cells, whole)
    return table


def _score(result: dict[str, Any]) -> str:
    low, high = result["score_low"] * 100, result["score_high"] * 100
    return f"{result['score'] * 100:.0f} [{low:.0f}, {high:.0f}] ({result['samples']})"


def _errors(results: list[dict[str, Any]]) -> Table:
    title = "Relative L2 error of head outputs against exact attention"
    table = Table(title=title, title_justify="left", pad_edge=False)
    _name_columns(table)
    for column in ("mean", "95 %", "median", "90th percentile", "samples"):
        table.add_column(column, justify="right")
    for name, (r,) in _grouped(results):
        interval = (
            ""
            if r["relative_error_low"] is None
            else (f"{r['relative_error_low']:.3f} to {r['relative_error_high']:.3f}")
        )
        table.add_row(
            *_names(name),
            *_shares([r]),
            f"{r['relative_error']:.3f}",
            interval,
            f"{r['relative_error_median']:.3f}",
            f"{r['relative_error_p90']:.3f}",
            str(r["samples"]),
        )
    return table


def _estimates(results: list[dict[str, Any]]) -> Table:
    title = "What methods know of their own error"
    table = Table(title=title, title_justify="left", pad_edge=False)
    _name_columns(table)
    for column in (
        "true within 2 x estimate",
        "estimate / true",
        "true within tolerance",
        "more keys",
        "all",
    ):
        table.add_column(column, justify="right")
    for name, (r,) in _grouped(results):
        ratio = r["estimate_over_error_median"]
        table.add_row(
            *_names(name),
            *_shares([r]),
            _percent(r["within_twice_estimate"]),
            "" if ratio is None else f"{ratio:.2f}",
            _percent(r["within_tolerance"]),
            _percent(r["heads_resampled_share"]),
            _percent(r["heads_exact_share"]),
        )
    return table


def _divergences(results: list[dict[str, Any]]) -> Table:
    title = "KL divergence of next-token distributions from exact attention, nats"
    table = Table(title=title, title_justify="left", pad_edge=False)
    _name_columns(table)
    for column in ("mean", "maximum", "perplexity", "samples"):
        table.add_column(column, justify="right")
    for name, (r,) in _grouped(results):
        table.add_row(
            *_names(name),
            *_shares([r]),
            f"{r['kl_mean']:.4f}",
            f"{r['kl_max']:.3f}",
            f"{r['perplexity']:.2f}",
            str(r["samples"]),
        )
    return table


def _name_columns(table: Table) -> None:
    table.add_column("method")
    table.add_column("budget", justify="right")
    table.add_column("per head", justify="right")
    table.add_column("keys read", justify="right")


def _shares(results: list[dict[str, Any]]) -> list[str]:
    """What a query head attended to, and what was read for all heads of a group together; means."""
    cells = []
    for name in ("keys_touched_share", "keys_read_share"):
        shares = [r[name] for r in results if r[name] is not None]
        cells.append(_percent(sum(shares) / len(shares) if shares else None))
    return cells


# Method, budget, tolerance.
_Name = tuple[str, float | None, float | None]


def _names(name: _Name) -> tuple[str, str]:
    method, budget, tolerance = name
    return method, _percent(budget) if tolerance is None else f"error {tolerance:g}"


def _grouped(results: list[dict[str, Any]]) -> list[tuple[_Name, list[dict[str, Any]]]]:
    groups: dict[_Name, list[dict[str, Any]]] = {}
    for result in results:
        name = result["method"], result["budget"], result["tolerance"]
        groups.setdefault(name, []).append(result)
    return list(groups.items())


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.3g} %"
