"""Checkpoints as other tools leave them: zipped anew, at odd offsets, in another byte order."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from conftest import saved_bytes
from equality import storage_bytes, untyped

#: zlib's level: the default takes five times as long for the tensors of these tests.
QUICKLY = 1


def rezip(content: bytes, compression: int = zipfile.ZIP_STORED, **changes: bytes | None) -> bytes:
    """Return a torch archive written anew by Python's zipfile, which aligns nothing.

    `changes` are contents of records (``byteorder=b"big"``), given or added; None leaves one out.
    """
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(out, "w", compression, compresslevel=QUICKLY) as target,
    ):
        names = source.namelist()
        root = names[0].partition("/")[0]
        contents = {name: source.read(name) for name in names}
        contents.update((f"{root}/{name}", data) for name, data in changes.items())
        for name, data in contents.items():
            if data is not None:
                target.writestr(zipfile.ZipInfo(name), data, compression, QUICKLY)  # without the time of day
    return out.getvalue()


def big_endian(tensors: Sequence[torch.Tensor], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of tensors, each with a storage of its own, as a big-endian machine writes it."""
    changes = {f"data/{i}": _swapped(tensor) for i, tensor in enumerate(tensors)}
    return rezip(saved_bytes(list(tensors)), compression, byteorder=b"big", **changes)


def _swapped(tensor: torch.Tensor) -> bytes:
    data = storage_bytes(untyped(tensor))
    unit = tensor.element_size() // (2 if tensor.dtype.is_complex else 1)
    return b"".join(data[i : i + unit][::-1] for i in range(0, len(data), unit))


def payload_offset(path: Path, record: str) -> int:
    """Return where in the file the data of a record begins."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        name = next(name for name in archive.namelist() if name.partition("/")[2] == record)
        file.seek(archive.getinfo(name).header_offset + 26)
        lengths = struct.unpack("<HH", file.read(4))
        return file.tell() + sum(lengths)


def deflated(path: Path) -> Path:
    """Write the archive anew, with every record deflated."""
    packed = path.with_name("deflated.pt")
    with (
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=QUICKLY) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return packed
