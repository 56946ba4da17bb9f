"""Chooses how the bytes of a file are read: by the caller, the environment, or the file system."""

from __future__ import annotations

import logging
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zerocopy import _core, environment
from zerocopy.errors import Error

if TYPE_CHECKING:
    from zerocopy import _C

BACKENDS = ("auto", "mmap", "pread", "direct")

# Requests of 4 MiB at once. A fast disk needs 16; more hide the latency of a network.
LOCAL_THREADS, NETWORK_THREADS = 16, 32

# Share of the free memory. Reading ahead in a larger file would evict its beginning again.
_MAX_AHEAD = 0.8

log = logging.getLogger("zerocopy")


class ReadStrategy(NamedTuple):
    """The way in which a file is opened.

    Attributes
    ----------
    name : {"whole", "ahead", "windows", "pread", "direct"}
        Mapped; mapped and read ahead; mapped in windows; read; read past the page cache.
    threads : int
        Number of threads that may read at once.
    reason : str
        Why "auto" chose this way. Empty if the caller chose it.
    """

    name: str
    threads: int
    reason: str = ""


def backend_of(backend: str, mmap: bool | None) -> str:
    """Return the backend: that of the argument, else that of the environment, else the default."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if mmap is None:
        chosen = backend if backend != "auto" else os.environ.get("ZEROCOPY_BACKEND") or "auto"
        if chosen not in BACKENDS:
            raise ValueError(f"ZEROCOPY_BACKEND must be one of {', '.join(BACKENDS)}, not {chosen!r}")
        return chosen
    wanted = ("mmap",) if mmap else ("pread", "direct")
    if backend not in ("auto", *wanted):
        raise ValueError(f"mmap={mmap} and backend={backend!r} contradict each other")
    return backend if backend in wanted else wanted[0]


def strategy_for(file: bytes | int, backend: str, *, windows: bool) -> ReadStrategy:
    """Choose how to open a file, given as path or descriptor. `windows` permits mapping it in parts."""
    if backend in ("pread", "direct"):
        return ReadStrategy(backend, environment.threads(LOCAL_THREADS))
    mapped = "windows" if windows else "whole"
    if backend == "mmap":
        return ReadStrategy(mapped, environment.threads(LOCAL_THREADS))
    try:
        kind, network = _file_system_of(file)
        size = os.stat(file).st_size if network else 0
    except OSError:  # opening the file raises it again
        return ReadStrategy(mapped, environment.threads(LOCAL_THREADS))
    if not network:
        reason = f"mapped, since it lies on a local file system ({kind})"
        return ReadStrategy(mapped, environment.threads(LOCAL_THREADS), reason)
    threads = environment.threads(NETWORK_THREADS)
    if windows:
        return ReadStrategy(
            mapped, threads, f"mapped part by part as it is used, on a network file system ({kind})"
        )
    if size > _MAX_AHEAD * _free_memory():
        reason = f"mapped and not read ahead, since it lies on a network file system ({kind}) and memory has no room"
        return ReadStrategy(mapped, threads, reason)
    reason = f"mapped and read ahead by {threads} threads, since it lies on a network file system ({kind})"
    return ReadStrategy("ahead", threads, reason)


def threads_for(file: bytes) -> int:
    """Return the number of threads that may read a file at once."""
    try:
        _, network = _file_system_of(file)
    except OSError:
        network = False
    return environment.threads(NETWORK_THREADS if network else LOCAL_THREADS)


def note(name: str, archive: _C.Archive | None, strategy: ReadStrategy) -> None:
    """Log at INFO what "auto" chose, and what the file or its file system does not permit."""
    if not log.isEnabledFor(logging.INFO):
        return
    if archive is not None and strategy.name == "direct" and not archive.is_direct:
        log.info("%s: read by pread, since its file system refuses O_DIRECT", name)
    if strategy.reason:
        others = Counter() if archive is None else _not_mapped(archive)
        but = "".join(f"; {number} of its storages {how}" for how, number in others.items())
        log.info("%s: %s%s", name, strategy.reason, but)


def _not_mapped(archive: _C.Archive) -> Counter[str]:
    """Count the storages that are not mapped."""
    if archive.is_torchscript:
        return Counter()
    try:
        storages = archive.explain()
    except (Error, pickle.UnpicklingError):  # loading the file raises it again
        return Counter()
    return Counter(storage.how for storage in storages if storage.how != "mapped")


def _file_system_of(file: bytes | int) -> tuple[str, bool]:
    return _core.file_system_of_descriptor(file) if isinstance(file, int) else _core.file_system_of_path(file)


def _free_memory() -> float:
    """Return the bytes that are available without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return float("inf")
