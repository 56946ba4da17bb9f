"""File systems on loop devices: one that reads 128 KiB ahead, as most disks are set, and one that shares blocks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SECTORS_AHEAD = (128 << 10) // 512
SMALLEST = {"ext4": 16 << 20, "xfs": 300 << 20}


@functools.cache
def why_not(kind: str = "ext4") -> str:
    """Say why no such file system can be had here, or return an empty string."""
    if os.geteuid() != 0:
        return "mounting takes root"
    if shutil.which(f"mkfs.{kind}", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        return f"mkfs.{kind} is not installed"
    try:
        with tempfile.TemporaryDirectory() as folder, mounted(Path(folder), SMALLEST[kind], kind):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be mounted: {error}"


@contextlib.contextmanager
def mounted(folder: Path, size: int, kind: str = "ext4") -> Iterator[Path]:
    """Make a file system of that many bytes in a file of a folder, and mount it for a block."""
    image, place = folder / "loop.img", folder / "loop"
    with image.open("wb") as file:
        file.truncate(size)
    place.mkdir()
    try:
        _run(f"mkfs.{kind}", "-q", "-f" if kind == "xfs" else "-F", image)
        device = _run("losetup", "--find", "--show", image)
        try:
            _run("blockdev", "--setra", str(SECTORS_AHEAD), device)
            _run("mount", device, place)
            try:
                yield place
            finally:
                _run("umount", "-l", place)
        finally:
            _run("losetup", "--detach", device)
    finally:
        image.unlink()
        place.rmdir()


@functools.cache
def place_of(path: str) -> str:
    """Return a copy of a file there, until the program ends."""
    original = Path(path)
    place = _folder_for(original, original.stat().st_size * 11 // 10 + (64 << 20), "ext4")
    return str(shutil.copyfile(original, place / original.name))


@functools.cache
def aligned_place_of(path: str) -> str:
    """Return a checkpoint saved anew on XFS, its storages in blocks of their own, and room for two more of it."""
    import zerocopy

    original = Path(path)
    place = _folder_for(original, original.stat().st_size * 33 // 10 + SMALLEST["xfs"], "xfs")
    zerocopy.save(zerocopy.load(original), place / original.name, alignment=4096)
    return str(place / original.name)


def _folder_for(original: Path, size: int, kind: str) -> Path:
    """Return where such a file system is, until the program ends."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=original.parent)))
    return stack.enter_context(mounted(folder, size, kind))


def _run(*command: str | Path) -> str:
    path = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    return done.stdout.strip()
