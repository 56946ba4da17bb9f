"""The facts that figures depend on: releases, processor, kernel, file system."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def describe(folder: Path) -> dict[str, Any]:
    """Describe the machine and the file system that ``folder`` lies on."""
    return {
        "zerocopy": _zerocopy_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _first(r"model name\s*:\s*(.+)", "/proc/cpuinfo"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory() / 2**30, 1),
        "huge_pages": _first(r"\[(\w+)\]", "/sys/kernel/mm/transparent_hugepage/enabled"),
        "file_system": _file_system(folder),
    }


def memory() -> int:
    """Return the bytes of memory that this process may fill, the page cache it causes among them.

    That is the machine's, or less where a control group sets a limit: its own or one above it.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            if controllers
            else ("/sys/fs/cgroup", "memory.max")
        )
        inner = Path(root + group)
        for folder in (inner, *inner.parents):
            text = (folder / name).read_text().strip() if (folder / name).exists() else "max"
            limits += [int(text)] if text.isdigit() else []
    return min(limits)


def _zerocopy_version() -> str:
    try:
        import zerocopy
    except ImportError:
        return "not installed"
    return getattr(zerocopy, "__version__", "unknown")


def _first(pattern: str, path: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"


def _file_system(folder: Path) -> str:
    """Return the type of the mount whose path is the longest part of the folder's."""
    mounts = (line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    inside = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(inside)[1] if inside else "unknown"
