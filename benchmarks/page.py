"""The page of results, made from the JSON of runs: ``python -m benchmarks.page``.

``python -m benchmarks --publish NAME`` puts a run's JSON into ``benchmarks/results``. Each file there becomes a section
of ``docs/results.md`` and a picture. ``tests/project/test_results.py`` holds the page to the files.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression
from typing import Any

from .engine.report import Line, ceiling_text, heading, quantity, times

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
_TIMED = ("ready", "consume", "cold-consume", "second", "attach")  # "touch" and "cold" are in the JSON
_INTRODUCTION = """# Results

`python -m benchmarks.page` makes this page from the runs in `benchmarks/results`. Do not edit it.
[benchmarks.md](benchmarks.md) says what the columns are, and how it is measured.
[benchmark-cases.md](reference/benchmark-cases.md) lists the files and rows.

A time is the median of the rounds. A ratio is the median of the rounds' ratios, the peer's time
over zerocopy's: above 1, zerocopy takes less. `ready` alone says little about a loader that maps,
so `consume`, which reads every byte, stands beside it. The rows `floor/...` compare with the least
that a loader can do with the file.
"""

_ABOUT_GROWTH = """![Times of growing checkpoints, on logarithmic axes](images/growth.svg)

Times are until `load` returns. In the table of processes, they are until all processes have loaded
512 MiB and touched every page. `torch` is `torch.load(weights_only=True)`, mapped where the release
supports it. In the first table, each tensor has four numbers. In the second, the file has 512
tensors and is sparse. In the third, dicts are nested to that depth. The exponent is that of a power
law, fitted to the larger half of the sizes.
"""


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and content of each run that is kept. A suite that has a run of its own is in no other."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    for name, content in found.items():
        if "lines" in content:
            others = found.keys() - {name}
            lines = [line for line in content["lines"] if line["case"].partition("/")[0] not in others]
            yield name, content | {"lines": lines}


def text() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *(_section(name, content) for name, content in runs()), _growth()])


def _growth() -> str:
    """Return the section of how cost grows."""
    content = json.loads((RESULTS / "growth.json").read_text())
    lines = ["## How cost grows", "", *_about(content), "", _ABOUT_GROWTH]
    for name, points in content["series"].items():
        measures = list(dict.fromkeys(key for point in points for key in point if key != name))
        ends = (points[0], points[-1])
        rows = [(f"{point[name]:,}", *(_growing(key, point.get(key)) for key in measures)) for point in ends]
        powers = exponents(name, points)
        last = ("exponent", *(f"{powers[key]:.2f}" if key in powers else "" for key in measures))
        lines += _table((name, *measures), [*rows, last])
    return "\n".join(lines)


def exponents(name: str, points: list[dict[str, float]]) -> dict[str, float]:
    """Return the power with which each measure grows, by the least squares of logarithms, over the larger half."""
    found = {}
    for key in dict.fromkeys(key for point in points for key in point):
        known = [(point[name], point[key]) for point in points if key in point]
        upper = [(math.log(x), math.log(y)) for x, y in known[len(known) // 2 :]]
        if key != name and len(upper) > 1:
            found[key] = linear_regression(*zip(*upper, strict=True)).slope
    return found


def _growing(key: str, value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if "MB" in key else quantity(value, "s")


def _section(name: str, content: dict[str, Any]) -> str:
    lines: list[Line] = content["lines"]
    return "\n".join(
        [
            f"## {name}",
            "",
            *_about(content),
            "",
            f"![Ratios of {name}](images/results-{name}.svg)",
            "",
            *_times(lines),
            *_titled("Other quantities", ("case", "column", "zerocopy", "peer"), _quantities(lines)),
        ]
    )


def _about(content: dict[str, Any]) -> list[str]:
    """Say where a run was made."""
    ceiling = (
        f" In the same run, {ceiling_text(content['ceiling_gb_s'])}." if "ceiling_gb_s" in content else ""
    )
    return textwrap.wrap(f"{heading(content['environment'])}.{ceiling}", 100)


def _titled(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"### {title}", "", *_table(header, rows)] if rows else []


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [header, ("---",) * len(header), *rows]
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


def _times(lines: list[Line]) -> list[str]:
    """Return a table for the cases of the same timed columns, with these side by side."""
    cases: dict[str, dict[str, Line]] = {}
    for line in lines:
        if line["column"] in _TIMED:
            cases.setdefault(line["case"], {})[line["column"]] = line
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for case, found in cases.items():
        columns = tuple(column for column in _TIMED if column in found)
        peer = next(iter(found.values()))["peer_side"] or ""
        row = f"`{case}`", peer, *(_time(found[column]) for column in columns)
        tables.setdefault(columns, []).append(row)
    return [line for columns, rows in tables.items() for line in _table(("case", "peer", *columns), rows)]


def _time(line: Line) -> str:
    ours = quantity(line["ours"], line["unit"])
    return f"{ours}, {times(line['ratio'])}" if line["ratio"] else ours


def _quantities(lines: list[Line]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{line['case']}`",
            line["column"],
            quantity(line["ours"], line["unit"]),
            quantity(line["peer"], line["unit"]),
        )
        for line in lines
        if line["column"] not in (*_TIMED, "touch", "cold")
    ]


def publish(name: str, content: dict[str, Any]) -> None:
    """Keep a run, without the single rounds and the folders of its files."""
    lines = [
        {key: value for key, value in line.items() if key != "checked" and not key.endswith("_rounds")}
        for line in content["lines"]
    ]
    (RESULTS / f"{name}.json").write_text(json.dumps(content | {"lines": lines}, indent=1) + "\n")


def main() -> int:
    """Write the page and its pictures; return 0."""
    from .engine.plot import write_plot

    PAGE.write_text(text())
    for name, content in runs():
        print(write_plot(IMAGES / f"results-{name}.svg", content["lines"], heading(content["environment"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
