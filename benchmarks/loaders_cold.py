"""Loaders of files that are not in memory, or far away."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import loop
from .far import place_of, why_not
from .loader import Loader, needs_module
from .pagecache import mapping_of, read_past, read_through


def _prefetching(path: str) -> Any:
    import zerocopy

    state = zerocopy.load(path)
    zerocopy.prefetch(state)
    return state


def _by(backend: str) -> Callable[[str], Any]:
    def load(path: str) -> Any:
        import zerocopy

        return zerocopy.load(path, backend=backend)

    return load


def _touch(path: str) -> None:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        _ = view[:: mmap.PAGESIZE]


COLD: dict[str, Loader] = {
    "zerocopy-prefetch": Loader("zerocopy.load, prefetch", _prefetching, needs_module("zerocopy")),
    "far-auto": Loader("zerocopy.load, FUSE 5 ms,", _by("auto"), why_not, place=place_of),
    "far-direct": Loader("zerocopy.load(direct), FUSE 5 ms,", _by("direct"), why_not, place=place_of),
    "far-touch": Loader("touching a mapping, FUSE 5 ms,", _touch, why_not, place=place_of, expected=None),
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
