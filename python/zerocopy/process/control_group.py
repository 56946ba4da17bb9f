"""Memory of the control group (cgroup) of this process: what a container is charged with, and its limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # version 1 writes the largest number of pages for "unlimited"


class ControlGroup(NamedTuple):
    """The kernel's account of a control group.

    Attributes
    ----------
    path : str
        The folder of the group, below ``/sys/fs/cgroup``.
    charged : int
        Bytes that the group is charged with: memory of its processes, and the page cache that they brought in.
    page_cache : int or None
        The part of them that is page cache, which the kernel takes back when memory is wanted.
    limit : int or None
        The most that the group or a group around it may be charged with; None without a limit.
    """

    path: str
    charged: int
    page_cache: int | None
    limit: int | None


class _Version(NamedTuple):
    folder: str
    charged: str
    limit: str
    page_cache: tuple[str, ...]  # names in memory.stat, the best first


_VERSIONS = {
    2: _Version("", "memory.current", "memory.max", ("file",)),
    1: _Version("memory", "memory.usage_in_bytes", "memory.limit_in_bytes", ("total_cache", "cache")),
}


def control_group(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> ControlGroup | None:
    """Return the memory of this process's control group, or None where the kernel shows none."""
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1 if "memory" in controllers.split(",") else 0
        if version and (found := _read(root / _VERSIONS[version].folder, path, _VERSIONS[version])):
            return found
    return None


def _read(root: Path, path: str, version: _Version) -> ControlGroup | None:
    # A container may see its own group as the root, although /proc names the group as the host does.
    for group in (root / path.lstrip("/"), root):
        charged = _number(group / version.charged)
        if charged is None:
            continue
        around = [group, *(each for each in group.parents if each.is_relative_to(root))]
        limits = [limit for each in around if (limit := _number(each / version.limit)) is not None]
        limit = min((limit for limit in limits if limit < _NO_LIMIT), default=None)
        return ControlGroup(str(group), charged, _page_cache(group / "memory.stat", version), limit)
    return None


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _page_cache(file: Path, version: _Version) -> int | None:
    try:
        entries = dict(
            line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines() if " " in line
        )
    except (OSError, UnicodeDecodeError):
        return None
    for name in version.page_cache:
        if (text := entries.get(name, "").strip()).isdigit():
            return int(text)
    return None
