"""Files on a file system that answers late."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader
from ..system.far import place_of, why_not


def _by(backend: str) -> Callable[[str], Any]:
    def load(path: str) -> Any:
        import zerocopy

        return zerocopy.load(path, backend=backend)

    return load


def _touch(path: str) -> None:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        _ = view[:: mmap.PAGESIZE]


LOADERS: dict[str, Loader] = {
    "far-auto": Loader("zerocopy.load, FUSE 5 ms,", _by("auto"), why_not, place=place_of),
    "far-direct": Loader("zerocopy.load(direct), FUSE 5 ms,", _by("direct"), why_not, place=place_of),
    "far-touch": Loader("touching a mapping, FUSE 5 ms,", _touch, why_not, place=place_of, expected=None),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(
            f"far/{ours}",
            Side(f"far-{ours}", "far.pt"),
            Side("far-touch", "far.pt"),
            columns=("cold-consume",),
            most_rounds=5,
        )
        for ours in ("auto", "direct")
    ),
)
