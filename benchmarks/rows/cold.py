"""Files that are not in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module
from ..system import loop
from ..system.pagecache import mapping_of, read_past, read_through


def _prefetching(path: str) -> Any:
    import zerocopy

    state = zerocopy.load(path)
    zerocopy.prefetch(state)
    return state


LOADERS: dict[str, Loader] = {
    "zerocopy-prefetch": Loader("zerocopy.load, prefetch", _prefetching, needs_module("zerocopy")),
    "loop-prefetch": Loader(
        "zerocopy.load, prefetch, 128 KiB read-ahead,", _prefetching, loop.why_not, place=loop.place_of
    ),
    "loop-mapping": Loader(
        "a mapping, 128 KiB read-ahead,",
        lambda path: mapping_of(Path(path)),
        loop.why_not,
        place=loop.place_of,
        expected=None,
    ),
    "disk-direct": Loader("O_DIRECT, 16 at once,", lambda path: read_past(Path(path)), expected=None),
    "disk": Loader("read()", lambda path: read_through(Path(path)), expected=None),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(
            f"cold/{peer}",
            Side("zerocopy-prefetch", "llm.pt"),
            Side(peer, "llm.pt"),
            columns=("cold-consume",),
            most_rounds=5,
        )
        for peer in ("torch", "torch-mmap", "disk-direct")
    ),
    TimeCase(
        "second/mapping",
        Side("loop-prefetch", "llm.pt"),
        Side("loop-mapping", "llm.pt"),
        columns=("second",),
        most_rounds=5,
    ),
)
