"""The table and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]

HEADERS = (
    "case",
    "column",
    "zerocopy",
    "peer",
    "ratio",
    "min",
    "max",
    "rounds",
    "of DRAM",
    "of floor",
)


def table(lines: Iterable[Line], ceiling: dict[str, float]) -> str:
    """Lay out one line for each case and column; ratio is the median, over the rounds, of peer over ours.

    Where the least that a loader can do with the same file was timed too (the rows `floor/*`), ours is also shown as a
    multiple of that.
    """
    lines = list(lines)
    floors = {
        (line["file"], line["column"]): line["peer"] for line in lines if line["case"].startswith("floor/")
    }
    return layout([HEADERS, *(_cells(line, ceiling, floors) for line in lines)])


def layout(rows: list[tuple[str, ...]]) -> str:
    """Align rows, the first of which is the heading: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join(_aligned(row, widths) for row in (rows[0], rule, *rows[1:]))


def ceiling_text(ceiling: dict[str, float]) -> str:
    """Say in one line what the machine can do at most."""
    return (
        f"physical ceiling: memcpy {ceiling['memcpy']:.1f} GB/s, "
        f"DRAM read {ceiling['dram_read']:.1f} GB/s by one thread, "
        f"{ceiling['dram_read_all_cores']:.1f} GB/s by {ceiling['cores']:.0f}"
    )


def heading(machine: dict[str, Any]) -> str:
    """Say in one line which releases ran, and where."""
    return (
        f"zerocopy {machine['zerocopy']}, torch {machine['torch']}, Python {machine['python']}, "
        f"Linux {machine['kernel']}, {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['file_system']}"
    )


def checks_text(lines: Iterable[Line]) -> str:
    """Say what every side was compared with before it was timed."""
    checks = dict.fromkeys(check for line in lines for check in line["checked"])
    return "\n".join(["compared with torch.load:", *(f"  {check}" for check in checks)])


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write everything measured, every round of it."""
    path.write_text(json.dumps(content, indent=1) + "\n")


def quantity(value: float | None, unit: str) -> str:
    """Write bytes as megabytes, and seconds as milliseconds below one second."""
    if value is None:
        return ""
    if unit == "/s":
        return f"{value:,.0f} /s"
    if unit == "B":
        return f"{value / 1e6:,.3f} MB"
    return f"{three_digits(value * 1e3)} ms" if value < 0.9995 else f"{three_digits(value)} s"


def three_digits(value: float) -> str:
    """Write a number with the three digits that matter, and more before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def times(ratio: float | None) -> str:
    """Write a ratio."""
    return "" if ratio is None else f"{three_digits(ratio)}x"


def _cells(line: Line, ceiling: dict[str, float], floors: dict[tuple[str, str], float]) -> tuple[str, ...]:
    floor = floors.get((line["file"], line["column"]))
    return (
        line["case"],
        line["column"],
        quantity(line["ours"], line["unit"]),
        quantity(line["peer"], line["unit"]),
        times(line["ratio"]),
        times(line.get("ratio_min")),
        times(line.get("ratio_max")),
        str(line.get("rounds", "")),
        _of_dram(line, ceiling),
        times(line["ours"] / floor) if floor else "",
    )


def _of_dram(line: Line, ceiling: dict[str, float]) -> str:
    """Return our reading of every byte as a share of what one thread can read."""
    if line["column"] != "consume":
        return ""
    return f"{line['bytes'] / line['ours'] / 1e9 / ceiling['dram_read']:.0%}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        cell.ljust(width) if i < 2 or i == len(row) - 1 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()
