"""docs/reference/objects.md: a table whose columns are written, and checked, by the releases that they are about."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from kinds import CATALOG

PATH = Path(__file__).parents[2] / "docs" / "reference" / "objects.md"
RELEASES = ("1.13", "2.13")
MODES = ("weights_only", "trusting")
UNKNOWN = "?"
ABSENT = "not in this release"

_TITLE = "# What loads, and how\n"
_COLUMNS = ["object", *(f"{release}, {mode}" for release in RELEASES for mode in MODES)]
_LEGEND = """
Each object was saved by the release at the head of the column, or made by hand where that release could not have
written it, then loaded by its `torch.load` and by `zerocopy.load` and compared: structure, values, dtypes, strides,
flags, classes, attributes and ties. "weights_only" is `weights_only=True`, "trusting" is `weights_only=False`.

| in the table | means |
|---|---|
| zero-copy | equal, and every storage lies in the mapping of the file |
| copied | equal; the storages are in private memory |
| partly copied | equal; some storages are in the mapping, others in private memory |
| zero-copy where aligned | equal; what happens to lie at a multiple of its element size is mapped |
| as torch packs it | equal; torch copies the data into a form that depends on the processor |
| loads | equal, and there are no data that could be mapped |
| refused | with `weights_only=True` both readers refuse what the file names or does |
| refused (torch runs it) | a program, which zerocopy never runs with `weights_only=True` |
| not yet | torch loads it, zerocopy says `UnsupportedError` |
| (torch refuses) | zerocopy loads it with `weights_only=True`, torch does not: zerocopy builds it itself |
| (torch cannot) | zerocopy loads it, torch of that release fails |
| (torch differs) | zerocopy loads what was saved, torch of that release something else |
| torch cannot load | torch of that release saves it and fails to load it; so does zerocopy |
| torch cannot save | that release fails to save it |

"allowed" objects are those whose classes were given to `zerocopy.safe_globals`, and to torch's where it has one.

`tests/loading/test_objects.py` makes this table and fails where it is wrong. After a change run it with
`ZEROCOPY_UPDATE_DOCS=1`, once on each release: it writes the columns of that release and leaves the others.
"""


def release() -> str | None:
    """Return the name of the running release's columns, or None if the table has none for it."""
    found = ".".join(torch.__version__.split(".")[:2])
    return found if found in RELEASES else None


def read() -> dict[str, list[str]]:
    """Return the cells of each row, by the name of the object."""
    if not PATH.exists():
        return {}
    rows = (line[2:-2].split(" | ") for line in PATH.read_text().splitlines() if line.startswith("| "))
    return {name: cells for name, *cells in rows if len(cells) == len(_COLUMNS) - 1 and name != "object"}


def column(weights_only: bool) -> int:
    """Return which of a row's cells is about the running release."""
    return RELEASES.index(release()) * len(MODES) + (0 if weights_only else 1)


def write(measured: dict[tuple[str, bool], str]) -> None:
    """Write the table, with what was measured in the running release's columns and the others as they are."""
    before = read()
    sections = []
    for group in CATALOG:
        rows = []
        for kind in group.kinds:
            cells = list(before.get(kind.name, [UNKNOWN] * (len(_COLUMNS) - 1)))
            for weights_only in (True, False):
                cells[column(weights_only)] = measured.get(
                    (kind.name, weights_only), cells[column(weights_only)]
                )
            rows.append(" | ".join([kind.name, *cells]))
        head = [" | ".join(_COLUMNS), "|".join(["---"] * len(_COLUMNS))]
        table = [f"| {head[0]} |", f"|{head[1]}|", *(f"| {row} |" for row in rows)]
        sections.append("\n".join([f"\n## {group.title}\n", *table, ""]))
    PATH.write_text(_TITLE + _LEGEND + "".join(sections))


def order() -> list[str]:
    """Return the names of the rows as they stand in the file."""
    return list(read())


def is_well_formed(name: str) -> bool:
    """Return whether a name can be a cell of the table."""
    return re.fullmatch(r"[^|\n]+", name) is not None and name == name.strip()
