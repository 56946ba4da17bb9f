"""File systems of a test's own, in a file or in memory. Mounting takes root: without, the test is skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_PATH = f"{os.environ['PATH']}:/sbin:/usr/sbin"
_OPTIONS = {"ext4": ["-O", "^has_journal"]}  # which takes more than all of a small one


@contextlib.contextmanager
def file_system(folder: Path, kind: str, size: int) -> Iterator[Path]:
    """Mount a file system of that many bytes, by a loop device unless it is a tmpfs, and give an empty folder of it."""
    place, image = folder / f"{kind}-mounted", folder / f"{kind}.img"
    place.mkdir()
    if kind == "tmpfs":
        mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place]
    else:
        make = shutil.which(f"mkfs.{kind}", path=_PATH)
        if make is None:
            pytest.skip(f"it takes mkfs.{kind}")
        with image.open("wb") as file:
            file.truncate(size)
        subprocess.run([make, "-q", *_OPTIONS.get(kind, ()), image], check=True, capture_output=True)
        mount = ["mount", "-o", "loop", image, place]
    try:
        with _mounted(mount, place):
            (place / "empty").mkdir()
            yield place / "empty"
    finally:
        image.unlink(missing_ok=True)


@contextlib.contextmanager
def overlay(folder: Path) -> Iterator[Path]:
    """Mount an overlay file system, as containers have, and give its empty folder."""
    lower, upper, work, place = (folder / name for name in ("lower", "upper", "work", "merged"))
    for path in (lower, upper, work, place):
        path.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with _mounted(["mount", "-t", "overlay", "-o", options, "none", place], place):
        yield place


@contextlib.contextmanager
def _mounted(mount: list[str | Path], place: Path) -> Iterator[None]:
    mounted = subprocess.run(mount, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(path: Path) -> None:
    """Write a file that takes what room its file system still has."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
