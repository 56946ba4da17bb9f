"""Write a checkpoint record by record: of holes in the file, so that 16 GiB cost no disk and no time, or of numbers.

The layout is that of ``torch.save``::

    [local header | data.pkl] [local header | hole] ... [local header | version] [directory] [zip64 end] [end]

Every record is stored, and its data begins at a multiple of 64. Zip: APPNOTE.TXT 4.3.7 (local header),
4.3.12 (directory), 4.3.14 to 4.3.16 (ends), 4.5.3 (zip64 field).
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .shapes import Entry, Shape

ALIGNMENT = 64
UTF8_NAMES, DAY_ONE, VERSION = 0x800, 0x21, 45
TOO_LARGE_16, TOO_LARGE_32 = 0xFFFF, 0xFFFFFFFF
PADDING_FIELD = 0x4246  # "FB", the field torch.save pads with


def write_sparse_checkpoint(path: Path, nbytes: int, tensors: int = 64) -> None:
    """Write a state dict of ``tensors`` float32 vectors, ``nbytes`` in all, mostly holes in the file.

    The first numbers of each vector are its own, so that two vectors mixed up are seen.
    """
    numel = nbytes // tensors // 4
    write_checkpoint(path, ((f"layers.{i}.weight", (numel,)) for i in range(tensors)))


def write_checkpoint(path: Path, entries: Iterable[Entry], pattern: bytes = b"") -> None:
    """Write a state dict of float32 tensors, which need not fit in memory, by their names and shapes.

    The first numbers of each are its own; behind them the pattern is repeated, or there is a hole.
    """
    shapes = dict(entries)
    with path.open("wb") as file:
        directory = [_write_record(file, *record, pattern) for record in _records(shapes)]
        start = file.tell()
        file.write(b"".join(directory))
        file.write(_ends(len(directory), start, file.tell() - start))


def _records(shapes: dict[str, Shape]) -> Iterator[tuple[str, bytes, int, int]]:
    """Yield name, first bytes, size and checksum of each record."""
    state = OrderedDict((name, _Tensor(str(i), shape)) for i, (name, shape) in enumerate(shapes.items()))
    for name, data in (("data.pkl", _pickled(state)), ("byteorder", b"little")):
        yield name, data, len(data), zlib.crc32(data)
    for i, shape in enumerate(shapes.values()):
        # No checksum, as stock torch writes when told not to compute it: no loader checks those of storages.
        yield f"data/{i}", struct.pack("<4f", *range(i + 1, i + 5)), prod(shape) * 4, 0
    yield "version", b"3\n", 2, zlib.crc32(b"3\n")


class _Storage:
    """Stands for a storage in the pickle: becomes a persistent id."""

    def __init__(self, key: str, numel: int) -> None:
        self.persistent_id = ("storage", torch.FloatStorage, key, "cpu", numel)


class _Tensor:
    """Stands for a tensor in the pickle: becomes what torch.save writes for one."""

    def __init__(self, key: str, shape: Shape) -> None:
        self.key, self.shape = key, shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        storage = _Storage(self.key, prod(self.shape))
        return torch._utils._rebuild_tensor_v2, (storage, 0, self.shape, strides, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> Any:
        return value.persistent_id if isinstance(value, _Storage) else None


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def _write_record(file: BinaryIO, name: str, head: bytes, size: int, checksum: int, pattern: bytes) -> bytes:
    """Write one local header and its data; return the record's entry in the directory."""
    offset, encoded = file.tell(), f"archive/{name}".encode()
    padding = -(offset + 30 + len(encoded) + 4) % ALIGNMENT
    extra = struct.pack("<HH", PADDING_FIELD, padding) + bytes(padding)
    common = struct.pack("<HHHHHIIIH", VERSION, UTF8_NAMES, 0, 0, DAY_ONE, checksum, size, size, len(encoded))
    file.write(b"PK\x03\x04" + common + struct.pack("<H", len(extra)) + encoded + extra + head)
    end = file.tell() + size - len(head)
    while pattern and file.tell() < end:
        file.write(memoryview(pattern)[: end - file.tell()])
    file.truncate(file.seek(end))
    # Only where the offset needs it: torch 1.13 takes the mark of a far record for an offset past the end.
    far = struct.pack("<HHQ", 1, 8, offset) if offset >= TOO_LARGE_32 else b""
    tail = struct.pack("<HHHHII", len(far), 0, 0, 0, 0, min(offset, TOO_LARGE_32))
    return b"PK\x01\x02" + struct.pack("<H", VERSION) + common + tail + encoded + far


def _ends(entries: int, start: int, size: int) -> bytes:
    """Return the two ends of the directory, 64-bit and old, and the locator between them."""
    wide = struct.pack("<QHHIIQQQQ", 44, VERSION, VERSION, 0, 0, entries, entries, size, start)
    locator = struct.pack("<IQI", 0, start + size, 1)
    old = struct.pack("<HHHHIIH", 0, 0, TOO_LARGE_16, TOO_LARGE_16, TOO_LARGE_32, TOO_LARGE_32, 0)
    return b"PK\x06\x06" + wide + b"PK\x06\x07" + locator + b"PK\x05\x06" + old
