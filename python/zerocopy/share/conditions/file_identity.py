"""Identify files, and see whether they changed. A program cannot set the time of an inode's last change."""

from __future__ import annotations

import functools
import os

Identity = tuple[int, int, int, int, int]


def identity(status: os.stat_result) -> Identity:
    """Return the identity of a file's state: device, inode, size, times of modification and of the inode's change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_same(one: Identity, other: Identity, within_boot: bool) -> bool:
    """Return whether two identities are of one unchanged file.

    Device numbers are compared only if both identities are from the same boot.
    """
    return one[1:] == other[1:] and (one[0] == other[0] or not within_boot)


@functools.cache
def boot() -> str:
    """Return the identity of this boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""
