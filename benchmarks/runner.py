"""Runs one case: makes and warms its files, checks the results, measures, and judges the goals."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .cases import Goal, MemoryCase, Side, TimeCase
from .files import Files, warm
from .kernels import Kernels
from .loaders import LOADERS
from .measure import interleave
from .memory import private_memory
from .objects import difference, spans_of

MOST_READ = 4 << 30  # a larger file is compared with torch.load's mapping of it


@dataclass(frozen=True)
class Settings:
    """What the command line chose."""

    rounds: int
    columns: tuple[str, ...]
    quick: bool


class DifferentError(Exception):
    """A loader returned something else than torch.load."""


def missing(case: TimeCase | MemoryCase) -> str:
    """Say why a case cannot run here, or return an empty string."""
    reasons = [LOADERS[side.loader].missing() for side in (case.ours, case.peer)]
    return next(filter(None, reasons), "")


def run_case(
    case: TimeCase | MemoryCase, files: Files, kernels: Kernels, settings: Settings
) -> list[dict[str, Any]]:
    """Run a case and return one line of the table for each of its columns."""
    common = {"case": case.name, "our_side": str(case.ours), "peer_side": str(case.peer)}
    if isinstance(case, MemoryCase):
        lines = [_memory_line(case, files, settings)]
    else:
        lines = _time_lines(case, files, kernels, settings)
    return [common | line | _judged(case.goals, line, settings) for line in lines]


def _time_lines(case: TimeCase, files: Files, kernels: Kernels, settings: Settings) -> list[dict[str, Any]]:
    ours, peer = _path(case.ours, files), _path(case.peer, files)
    checked = [_check(side, files, case.check_ends) for side in dict.fromkeys((case.ours, case.peer))]
    nbytes = sum(size for _, size in spans_of(_load(case.ours, ours)))
    lines = []
    for column in (column for column in case.columns if column in settings.columns):
        for path in {ours, peer}:
            warm(Path(path))
        series = interleave(
            lambda: _load(case.ours, ours),
            lambda: _load(case.peer, peer),
            column,
            kernels,
            settings.rounds,
            more=not settings.quick,
        )
        lines.append({"column": column, "unit": "s", "bytes": nbytes, "checked": checked} | series.summary())
    return lines


def _memory_line(case: MemoryCase, files: Files, settings: Settings) -> dict[str, Any]:
    copies = [max(2, count // 10) if settings.quick else count for count in case.copies]
    checked = [_check(side, files, False) for side in (case.ours, case.peer)]
    ours, peer = (
        private_memory(side.loader, files.path(side.file), count)
        for side, count in zip((case.ours, case.peer), copies, strict=True)
    )
    return {
        "column": "private",
        "unit": "B",
        "checked": checked,
        "ours": ours["per_copy"],
        "peer": peer["per_copy"],
        "ratio": peer["per_copy"] / max(1.0, ours["per_copy"]),
        "ours_detail": ours,
        "peer_detail": peer,
    }


def _path(side: Side, files: Files) -> str:
    return str(files.path(side.file))


def _load(side: Side, path: str) -> Any:
    return LOADERS[side.loader].load(path)


def _check(side: Side, files: Files, only_ends: bool) -> str:
    """Compare with torch.load and say how; what memory cannot hold, only where torch.load can map it."""
    if side.loader == "torch":
        return f"{side}: is the reference"
    file = files.path(side.file.replace(".h5", ".pt"))
    reference = "torch-mmap" if file.stat().st_size > MOST_READ else "torch"
    if reason := LOADERS[reference].missing():
        return f"{side}: not compared, {reason}"
    theirs = LOADERS[reference].load(str(file))
    if found := difference(_load(side, _path(side, files)), theirs, only_ends=only_ends):
        raise DifferentError(f"{side}: {found}")
    return f"{side}: structure and {'ends of storages' if only_ends else 'every byte'} equal"


def _judged(goals: tuple[Goal, ...], line: dict[str, Any], settings: Settings) -> dict[str, Any]:
    goal = next((goal for goal in goals if goal.column == line["column"]), None)
    if goal is None:
        return {"goal": None, "met": None}
    judged = torch_release() >= goal.since and not settings.quick
    value = line["ours"] / 1e6 if goal.column == "private" else line["ratio"]
    return {"goal": asdict(goal) | {"text": str(goal)}, "met": goal.met(value) if judged else None}


def torch_release() -> tuple[int, int]:
    """Return major and minor number of the running torch."""
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)
