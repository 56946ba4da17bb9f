"""Parts of attacks on the less common kinds of tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import assembler
import torch
from assembler import Code, call, checkpoint, get, name, pickle, put, storage, tensor

from attacks.attack import Attack, Expected

UTILS = "torch._utils"
BYTES = bytes(range(64))
SCALES = (0.5, 0.25, 0.125, 0.0625)
#: Storages that each file builds on.
STORAGES = {
    "0": assembler.DATA,
    "bytes": BYTES,
    "scales": struct.pack("<4d", *SCALES),
    "huge": struct.pack("<2d", 1e300, -1e300),
    "narrow": struct.pack("<2i", 0, 2),
}
#: Of four bytes in the file, and of 256 GiB where a function copies it.
REPEATED = tensor(None, 0, (2**36,), (0,))
FLOATS = torch.arange(16.0)


def longs(key: str, values: tuple[int, ...] | Code, size: tuple[int, ...] = (), *, item: str = "q") -> Code:
    """Return a tensor of integers, whose storage :func:`file` has to be given; or `values`, if they are code."""
    if isinstance(values, Code):
        return values
    size = size or (len(values),)
    strides = tuple(math.prod(size[i + 1 :]) for i in range(len(size)))
    kind = {"q": "LongStorage", "i": "IntStorage"}[item]
    return tensor(storage(key, kind, numel=len(values)), 0, size, strides)


def file(value: Code, integers: Mapping[str, tuple[int, ...] | Code]) -> bytes:
    """Return a checkpoint of `value`, with the storages of the integer tensors in it."""
    packed = {
        key: struct.pack(f"<{len(values)}q", *values)
        for key, values in integers.items()
        if not isinstance(values, Code)
    }
    return checkpoint(pickle(value), STORAGES | packed)


def doubled(times: int, item: Any = 1) -> Code:
    """Return a list of a list twice, of a list twice, ...: a few bytes each, and 2^times items to whoever looks."""
    made = put([item], 0)
    for i in range(times):
        made = put(Code(assembler.EMPTY_LIST + assembler.MARK + made + get(i) + assembler.APPENDS), i + 1)
    return made


def layout(title: Any = "torch.sparse_coo") -> Code:
    return call(name("torch.serialization", "_get_layout"), title)


def floats(count: int = 2) -> Code:
    return tensor(None, 0, (count,), (1,))


def attacks(
    make: Callable[..., bytes], expected: Expected, cases: Mapping[str, Mapping[str, Any]], **more: Any
) -> Iterable[Attack]:
    """Yield an attack for each case: its name, and what `make` is to be called with."""
    for title, fields in cases.items():
        yield Attack(title, lambda fields=fields: make(**fields), expected, **more)
