"""Finds the file system of a file and the disks beneath, for GPUDirect Storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from zerocopy._native import _C

_SYS = Path("/sys")
_DEEPEST = 8  # device mapper over md over ... disks

#: The bit of cuFile's status that says whether the driver serves such a place: of local file systems by the kind of
#: their disks, of others by their own.
_BITS = {
    "Lustre": 0,
    "NFS": 2,
    "GPFS": 3,
    "NVMe": 4,
    "NVMe over fabrics": 5,
    "SCSI": 6,
    "BeeGFS": 9,
}
_LOCAL = ("ext4", "XFS")


class Site(NamedTuple):
    """The file system and the disks of a file.

    Attributes
    ----------
    file_system : str
        Its name.
    kind : str
        The kind that cuFile must support: the file system, or "NVMe", "SCSI", ... of local disks. Empty if
        GPUDirect Storage does not know it.
    said : str
        Both, for people.
    """

    file_system: str
    kind: str
    said: str

    def is_served(self, status: int) -> bool:
        """Return whether a driver of that status serves it."""
        return self.kind in _BITS and bool(status >> _BITS[self.kind] & 1)


def site_of(path: str | os.PathLike[str]) -> Site:
    """Return where a file or a folder lies."""
    name, _ = _C.file_system_of_path(os.fsencode(path))
    if name not in _LOCAL:
        return Site(name, name if name in _BITS else "", name or "a file system without a name")
    kinds = disks_of(os.stat(path).st_dev)  # noqa: PTH116  as it is, not resolved
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return Site(name, kind, f"{name} on {kind or 'a disk of another kind than NVMe and SCSI'}")
    return Site(name, "", f"{name} on " + (" and ".join(sorted(kinds)) or "no disk that the system names"))


def disks_of(device: int) -> set[str]:
    """Return the kinds of the disks beneath a block device; "" is any that cuFile does not know."""
    return _disks(_SYS / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}", _DEEPEST)


def _disks(block: Path, depth: int) -> set[str]:
    try:
        block = block.resolve(strict=True)
    except OSError:
        return set()
    if (block / "partition").exists():
        block = block.parent
    below = sorted((block / "slaves").iterdir()) if (block / "slaves").is_dir() else []
    if below:
        return {kind for slave in below for kind in _disks(slave, depth - 1)} if depth else {""}
    if block.name.startswith("nvme"):
        return {_nvme(block)}
    return {"SCSI" if block.name.startswith("sd") else ""}


def _nvme(block: Path) -> str:
    """Return whether a disk is in this machine. Of several paths to one the disk itself says nothing."""
    for folder in (block / "device", block / "device" / "device"):
        try:
            transport = (folder / "transport").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        return "NVMe" if transport == "pcie" else "NVMe over fabrics"
    return ""
