"""The picture: ratios on a logarithmic axis. Only here does matplotlib load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {
    "ready": "#1b6ca8",
    "touch": "#e08e0b",
    "consume": "#5a9367",
    "cold": "#7b5ea7",
    "attach": "#b0413e",
}


def write_plot(path: Path, lines: list[dict[str, Any]], subtitle: str) -> str:
    """Draw the timed lines; return what became of it, in words."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is not installed"
    timed = [line for line in lines if line["column"] in COLOURS and line["ratio"]]
    if not timed:
        return "no plot: nothing was timed"
    figure = Figure(figsize=(9, 1.4 + 0.32 * len(timed)), layout="constrained")
    axes = figure.subplots()
    for row, line in enumerate(timed):
        _draw(axes, row, line)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(timed)), [f"{line['case']}  {line['column']}" for line in timed])
    axes.set_ylim(len(timed) - 0.4, -0.6)
    axes.set_xlabel("peer's time over zerocopy's: median of rounds; black: least to greatest")
    axes.set_title(subtitle, fontsize="small")
    write_svg(figure, path)
    return f"plot: {path}"


def write_svg(figure: Any, path: Path) -> None:
    """Write a picture whose letters stay text, and which is the same for the same figures."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Any, row: int, line: dict[str, Any]) -> None:
    ratio = line["ratio"]
    axes.barh(row, ratio - 1, left=1, color=COLOURS[line["column"]], height=0.7)
    axes.hlines(row, line["ratio_min"], line["ratio_max"], color="black", linewidth=0.8)
    axes.annotate(f" {ratio:,.3g}x", (max(ratio, line["ratio_max"], 1), row), va="center", fontsize="small")
