"""Makes the stream that torch.save wrote before 1.6 part by part, so that a test can get any part of it wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from assembler import DATA, NUMEL, Code, call, code, name, ordered_dict, persistent, pickle

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
SYS_INFO = {
    "protocol_version": VERSION,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


def storage(
    key: Any = "0", kind: str = "FloatStorage", location: Any = "cpu", numel: Any = NUMEL, view: Any = None
) -> Code:
    """Return a storage as a legacy file names it; `view` is ``(key, offset, size)`` of a part of it."""
    return persistent("storage", name("torch", kind), key, location, numel, view)


def tensor(over: Any = None, offset: Any = 0, size: Any = (NUMEL,), stride: Any = (1,)) -> Code:
    """Return a call of torch's rebuild function."""
    arguments = (storage() if over is None else over, offset, size, stride, False, ordered_dict())
    return call(name("torch._utils", "_rebuild_tensor_v2"), *arguments)


def data(content: bytes = DATA, count: int = NUMEL) -> bytes:
    """Return what a storage is in the file: a number of elements, and bytes."""
    return struct.pack("<q", count) + content


def checkpoint(
    obj: Any = None,
    *,
    keys: Any = ("0",),
    storages: Iterable[bytes] | None = None,
    magic: Any = MAGIC,
    version: Any = VERSION,
    sys_info: Any = None,
    proto: int = 2,
) -> bytes:
    """Return a file. `magic`, `version`, `sys_info` and `keys` are values, or :class:`Code` of them."""
    parts = (
        magic,
        version,
        SYS_INFO if sys_info is None else sys_info,
        {"weight": tensor()} if obj is None else obj,
        list(keys) if isinstance(keys, tuple) else keys,
    )
    pickles = b"".join(pickle(code(part), proto=proto) for part in parts)
    return pickles + b"".join((data(),) if storages is None else storages)
