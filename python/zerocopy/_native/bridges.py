"""Choice of a bridge to the running torch: in the package, compiled by the user, or without torch's headers."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy import _C, environment
from zerocopy._native.stamp import Stamp, file_name, mismatch, read_stamp, running_stamp
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
    _log.debug("bridge to PyTorch %s: %s", running.torch, info.path or info.kind)
    return info._replace(refused=tuple(refused))


def _candidates(running: Stamp) -> Iterator[tuple[str, Path]]:
    yield "prebuilt", PACKAGE / file_name(running.torch, running.cxx11_abi)
    with contextlib.suppress(RuntimeError):
        yield "built", cache_path(running)


def _refusal(path: Path, running: Stamp, *, exact: bool) -> str:
    """Load a bridge, and return why that cannot be done; an empty string if it is loaded."""
    try:
        if exact and not _is_safe(path.stat()):
            return "others than this user can write to it"
        found = read_stamp(path)
    except OSError as error:
        return "there is none" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if reason := mismatch(found, running, exact=exact):
        return reason
    try:
        _C.load_bridge(os.fsencode(path), str(found))
    except UnsupportedError as error:
        return str(error)
    return ""


def _is_safe(status: os.stat_result) -> bool:
    """Return whether nobody but this user and root can have written a file that is about to be executed."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
