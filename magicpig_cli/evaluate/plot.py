"""Output error against the share of keys read, as an SVG file. Needs matplotlib (extra `eval`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magicpig_cli.errors import MagicPigError


def plot_error(outcome: dict[str, Any], path: Path) -> None:
    """One line per method, from the results of the task `error`; written to `path`.

    Raises
    ------
    MagicPigError
        If the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    lines: dict[str, list[tuple[float, float]]] = {}
    for result in outcome["results"]:
        at_budget = result["method"] != "dense" and result["tolerance"] is None
        if result["relative_error"] is not None and at_budget:
            point = (result["keys_read_share"] * 100, result["relative_error"])
            lines.setdefault(result["method"], []).append(point)
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    for (method, points), marker in zip(lines.items(), "osD^v<>pP*X" * 2, strict=False):
        shares, errors = zip(*sorted(points), strict=True)
        width = 2.4 if method == "lsh" else 1.2
        axes.plot(shares, errors, marker=marker, markersize=4, linewidth=width, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set_xlabel("keys read for any head of a group, % of those stored between sinks and recent tokens")
    axes.set_ylabel("relative L2 error of a head's output, mean")
    settings = outcome["settings"]
    axes.set_title(f"{outcome['model']}, {settings['ctx']:,} tokens", loc="left", fontsize=10)
    axes.grid(which="both", alpha=0.25)
    if lines:
        axes.legend(fontsize=8, frameon=False)
    # Without a date and with a fixed salt, the same results make the same file.
    with matplotlib.rc_context({"svg.hashsalt": "magicpig", "svg.fonttype": "none"}):
        try:
            figure.savefig(path, format="svg", metadata={"Date": None})
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise MagicPigError(f"--plot could not write {path}: {reason}; name another file") from error
