"""Identify files, and see whether they changed. A program cannot set the time of an inode's last change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

Identity = tuple[int, int, int, int, int]
#: Paths, and what is known of the files there; None: there is none.
Files = dict[str, Identity | None]

_MAX_IN_FOLDER = 10_000
_stat = os.stat  # Path's takes five times as long, and the server asks about every file of a result


def identity(status: os.stat_result) -> Identity:
    """Return what changes with a file: device, inode, size, when it was modified and when its inode was."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def identity_at(path: str) -> Identity | None:
    """Return which file is at a path, behind links; None where there is none."""
    try:
        return identity(_stat(path))
    except (OSError, ValueError):
        return None


def is_regular(path: str) -> bool:
    """Return whether there is a file at a path, and not something else."""
    try:
        return stat.S_ISREG(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def note(path: str, files: Files) -> bool:
    """Note a file, of a folder all that are in it, or that there is none, and return whether there is anything."""
    try:
        status = _stat(path)
    except (FileNotFoundError, NotADirectoryError):
        files[path] = None
        return False
    except (OSError, ValueError):  # no path at all
        return False
    if stat.S_ISREG(status.st_mode):
        files[path] = identity(status)
    elif stat.S_ISDIR(status.st_mode):
        for found in _within(path):
            files[found] = identity_at(found)
    return True


def _within(folder: str) -> Iterator[str]:
    """Yield a folder's own path and those of what is in it; of a very large one not all."""
    yield folder
    count = 0
    for where, folders, names in os.walk(folder):
        for name in sorted((*folders, *names)):
            count += 1
            if count > _MAX_IN_FOLDER:
                return
            yield f"{where}/{name}"


def are_same(files: Files, known: Mapping[str, Identity | None]) -> bool:
    """Return whether files are what they were. Identities in `known` are not read again."""
    return all(
        (known[path] if path in known else identity_at(path)) == before for path, before in files.items()
    )


def namespace() -> list[int]:
    """Return what two processes have in common that find the same files by the same absolute paths."""
    root = _stat("/")
    try:
        mounts = _stat("/proc/self/ns/mnt").st_ino
    except OSError:  # /proc is not there
        mounts = 0
    return [mounts, root.st_dev, root.st_ino]
