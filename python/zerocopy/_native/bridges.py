"""Choice of a bridge to the running torch: in the package, compiled by the user, or without torch's headers."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy import _C, environment
from zerocopy._native.stamp import (
    Stamp,
    file_names,
    is_whole,
    libraries_in,
    mismatch,
    running_stamp,
    stamp_in,
)
from zerocopy.errors import UnsupportedError

_log = logging.getLogger("zerocopy")

#: The folder that setup.py copies bridges to.
PACKAGE = Path(__file__).parents[1]
ADVICE = "To compile a bridge for it, run: zerocopy build-bridge"


class BridgeInfo(NamedTuple):
    """The bridge in use."""

    kind: str  #: "prebuilt", "built" by ``zerocopy build-bridge``, or "portable"
    path: Path | None  #: None of the portable bridge, which is a part of the extension
    torch: str  #: the version of PyTorch that is running
    refused: tuple[str, ...]  #: each other bridge that was looked at, and why it was not taken

    def __str__(self) -> str:
        chosen = self.kind if self.path is None else f"{self.kind}, {self.path}"
        return f"{chosen} (refused: {'; '.join(self.refused)})" if self.refused else chosen


def cache_path(stamp: Stamp) -> Path:
    """Return where ``zerocopy build-bridge`` puts the bridge of a stamp.

    The name has all that a bridge depends on, so that releases of torch, Python and zerocopy can share the folder.
    Raises RuntimeError if the user has no home.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # a relative one would load code from the working directory
        cache = Path.home() / ".cache"
    name = f"libzerocopy_bridge-{stamp.torch}-{stamp.cxx11_abi}-{stamp.python}-{stamp.abi}.so"
    return cache / "zerocopy" / "bridges" / name


def choose() -> BridgeInfo:
    """Load the first bridge that fits the running torch, and log which one it is."""
    running = running_stamp(_C.bridge_abi())
    refused: list[str] = []
    info = BridgeInfo("portable", None, running.torch, ())
    if environment.bridge() == "auto":
        for kind, path in _candidates(running):
            if reason := _refusal(path, running, exact=kind == "built"):
                refused.append(f"{path}: {reason}")
            else:
                info = BridgeInfo(kind, path, running.torch, ())
                break
        else:
            _log.warning(
                "zerocopy has no compiled bridge to PyTorch %s, and makes each tensor some microseconds slower "
                "by Python's calls (%s). %s",
                running.torch,
                "; ".join(refused),
                ADVICE,
            )
    info = info._replace(refused=tuple(refused))
    _log.debug("bridge to PyTorch %s: %s", running.torch, info)
    return info


def _candidates(running: Stamp) -> Iterator[tuple[str, Path]]:
    prebuilt = [PACKAGE / name for name in file_names(running.torch, running.cxx11_abi)]
    for path in [path for path in prebuilt if path.exists()] or prebuilt[:1]:
        yield "prebuilt", path
    with contextlib.suppress(RuntimeError):
        yield "built", cache_path(running)


def _refusal(path: Path, running: Stamp, *, exact: bool) -> str:
    """Load a bridge, and return why that cannot be done; an empty string if it is loaded."""
    try:
        if exact and not all(_is_safe(place.stat()) for place in (path, path.parent)):
            return "others than this user can write to it or to its folder"
        content = path.read_bytes()
    except OSError as error:
        return "there is none" if isinstance(error, FileNotFoundError) else str(error.strerror)
    found = stamp_in(content)
    if reason := mismatch(found, running, exact=exact):
        return reason
    if not is_whole(content):
        return "the file is truncated"
    for name in libraries_in(content):
        if not _is_loaded(name):  # the dynamic linker would load a second torch into the process
            return f"it is linked to {name}, which is not a library of this PyTorch"
    try:
        _C.load_bridge(os.fsencode(path), str(found))
    except UnsupportedError as error:
        return str(error)
    return ""


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _is_safe(status: os.stat_result) -> bool:
    """Return whether nobody but this user and root can have written a file that is about to be executed."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
