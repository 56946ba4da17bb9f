"""Runs one case: makes and warms its files, checks the results, and measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..data.files import Files
from ..data.objects import difference, spans_of
from ..rows import LOADERS
from ..system.pagecache import cached_bytes, drop, mapping_of, warm, why_it_stays
from . import clients
from .cases import Case, ClientsCase, MemoryCase, Side, TimeCase, UseCase
from .kernels import Kernels
from .loader import needs_module
from .measure import READING, interleave
from .memory import private_memory
from .use import measure_use

MAX_READ = 4 << 30  # a larger file is compared with torch.load's mapping of it


@dataclass(frozen=True)
class Settings:
    """Options of the command line."""

    rounds: int
    columns: tuple[str, ...]
    quick: bool


class DifferentError(Exception):
    """A loader returned something else than torch.load."""


def missing(case: Case, files: Files) -> str:
    """Say why a case cannot run here, or return an empty string."""
    if isinstance(case, UseCase):  # ours is measured without a peer, too
        reason = LOADERS[case.ours.loader].missing()
        return reason or (why_it_stays(files.folder) if "read" in case.columns else "")
    reasons = [LOADERS[side.loader].missing() for side in sides(case)]
    # Such a file is made by the package, whoever then reads it.
    reasons += [needs_module("safetensors")() for side in sides(case) if side.file.endswith(".safetensors")]
    if isinstance(case, TimeCase) and any(_is_cold(column) for column in case.columns):
        reasons.append(why_it_stays(files.folder))
    return next(filter(None, reasons), "")


def sides(case: Case) -> list[Side]:
    """Return our side, and the peer's if there is one that can run here."""
    peer = case.peer
    if isinstance(case, UseCase) and peer and LOADERS[peer.loader].missing():
        peer = None
    return [case.ours, *([peer] if peer else [])]


def run_case(case: Case, files: Files, kernels: Kernels, settings: Settings) -> list[dict[str, Any]]:
    """Run a case and return one line of the table for each of its columns."""
    common = {
        "case": case.name,
        "file": case.ours.file,
        "our_side": str(case.ours),
        "peer_side": str(case.peer or ""),
    }
    common["checked"] = [
        _check(side, files, isinstance(case, TimeCase) and case.check_ends)
        for side in dict.fromkeys(sides(case))
    ]
    if isinstance(case, MemoryCase):
        lines = [_memory_line(case, files, settings)]
    elif isinstance(case, UseCase):
        lines = _use_lines(case, files)
    elif isinstance(case, ClientsCase):
        lines = [_clients_line(case, files)]
    else:
        lines = _time_lines(case, files, kernels, settings)
    return [common | line for line in lines]


def _time_lines(case: TimeCase, files: Files, kernels: Kernels, settings: Settings) -> list[dict[str, Any]]:
    paths = [files.path(side.file) for side in sides(case)]
    places = [Path(LOADERS[side.loader].place(str(files.path(side.file)))) for side in sides(case)]
    calls = [_call(side, files) for side in sides(case)]
    lines = []
    for column in (column for column in case.columns if column in settings.columns):
        for path in set(paths):
            warm(path)
        if column == "attach":
            lines.append(_attach_line(case, files, settings))
            continue
        timed = [partial(mapping_of, place) for place in places] if column == "second" else calls
        series = interleave(
            timed[0],
            timed[1] if len(timed) > 1 else None,
            column,
            kernels,
            min(settings.rounds, case.most_rounds),
            more=not settings.quick,
            before=partial(_before, case, column, places, calls, kernels),
        )
        nbytes = (
            sum(size for _, size in spans_of(timed[0]())) if column in READING else paths[0].stat().st_size
        )
        lines.append({"column": column, "unit": "s", "bytes": nbytes} | series.summary())
    return lines


def _attach_line(case: TimeCase, files: Files, settings: Settings) -> dict[str, Any]:
    """Time one load of a fresh client each, in turn."""
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(clients.clients_of(side.loader, files.path(side.file)))
            for side in sides(case)
        ]
        rounds = min(settings.rounds, case.most_rounds)
        series = clients.interleave(found[0], found[1] if len(found) > 1 else None, rounds)
    nbytes = files.path(case.ours.file).stat().st_size
    return {"column": "attach", "unit": "s", "bytes": nbytes} | series.summary()


def _clients_line(case: ClientsCase, files: Files) -> dict[str, Any]:
    path = files.path(case.ours.file)
    warm(path)
    with clients.clients_of(case.ours.loader, path) as ask:
        ask("attach")
        found = ask(case.column)
    unit = "B" if case.column == "pss" else "/s"
    return {"column": case.column, "unit": unit, "ours": found, "peer": None, "ratio": None}


def _is_cold(column: str) -> bool:
    return column.startswith("cold") or column == "second"


def _before(
    case: TimeCase,
    column: str,
    paths: list[Path],
    calls: list[Callable[[], Any]],
    kernels: Kernels,
    side: int,
) -> None:
    """Take the files out of the page cache; let a side bring its own there again if another reader is timed."""
    LOADERS[sides(case)[side].loader].settle()
    if not _is_cold(column):
        return
    for path in set(paths):
        drop(path)
        if left := cached_bytes(path):
            raise DifferentError(f"{path}: {left} bytes stayed in the page cache")
    if column == "second":
        loaded = calls[side]()
        kernels.touch(*kernels.prepare(spans_of(loaded)))


def _memory_line(case: MemoryCase, files: Files, settings: Settings) -> dict[str, Any]:
    copies = [max(2, count // 10) if settings.quick else count for count in case.copies]
    ours, peer = (
        private_memory(side.loader, files.path(side.file), count)
        for side, count in zip((case.ours, case.peer), copies, strict=True)
    )
    return {
        "column": "private",
        "unit": "B",
        "ours": ours["per_copy"],
        "peer": peer["per_copy"],
        "ratio": peer["per_copy"] / max(1.0, ours["per_copy"]),
        "ours_detail": ours,
        "peer_detail": peer,
    }


def _use_lines(case: UseCase, files: Files) -> list[dict[str, Any]]:
    found = []
    for side in sides(case):
        path = files.path(side.file)
        warm(path)
        found.append(measure_use(side.loader, path, case.columns))
    ours, peer = found[0], (found[1] if len(found) > 1 else None)
    return [
        {
            "column": column,
            "unit": "B",
            "ours": ours[column],
            "peer": peer[column] if peer else None,
            "ratio": peer[column] / max(1, ours[column]) if peer else None,
            "ours_detail": ours,
            "peer_detail": peer,
        }
        for column in case.columns
    ]


def _call(side: Side, files: Files) -> Callable[[], Any]:
    return LOADERS[side.loader].call(str(files.path(side.file)))


def _check(side: Side, files: Files, only_ends: bool) -> str:
    """Compare with torch.load and say how; what memory cannot hold, only where torch.load can map it."""
    loader = LOADERS[side.loader]
    if side.loader == loader.reference:
        return f"{side}: is the reference"
    if loader.expected is None:
        return f"{side}: reads the file, returns nothing"
    is_torchs = loader.reference == "torch"
    file = files.path(f"{side.file.partition('.')[0]}.pt" if is_torchs else side.file)  # of the same tensors
    reference = "torch-mmap" if file.stat().st_size > MAX_READ else loader.reference
    if reason := LOADERS[reference].missing():
        return f"{side}: not compared, {reason}"
    try:
        whole = LOADERS[reference].load(str(file))
    except RuntimeError as error:
        if reference == "torch":
            raise
        return (
            f"{side}: not compared, torch.load: {error}"  # a writable mapping larger than memory is refused
        )
    theirs = loader.expected(whole)
    if found := difference(loader.real(_call(side, files)()), theirs, only_ends=only_ends):
        raise DifferentError(f"{side}: {found}")
    return f"{side}: structure and {'ends of storages' if only_ends else 'every byte'} equal"
