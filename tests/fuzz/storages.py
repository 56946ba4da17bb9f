"""Finds the storages of a changed pickle, so that a file can be made to agree with it."""

from __future__ import annotations

import contextlib
import io
import pickle
from typing import Any

SIZES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8,
    "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
    "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16, "QInt8Storage": 1, "QUInt8Storage": 1,
    "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1, "UntypedStorage": 1,
}  # fmt: skip
_MAX_SIZE = 4096  # bytes; more teach nothing


class _NoOpObject:
    """Takes whatever a pickle does to it."""

    def __new__(cls, *args: Any) -> _NoOpObject:
        return object.__new__(cls)

    def _ignore(self, *args: Any) -> None: ...

    __init__ = __setstate__ = __setitem__ = append = extend = update = add = _ignore  # type: ignore[assignment]

    def __call__(self, *args: Any) -> _NoOpObject:
        return self


class _Looking(pickle._Unpickler):  # the one in Python: the other allocates by the numbers in a pickle
    def __init__(self, stream: bytes) -> None:
        super().__init__(io.BytesIO(stream), encoding="latin1")
        self.found: dict[str, tuple[int, int]] = {}

    def find_class(self, module: str, name: str) -> Any:
        return name if name in SIZES else _NoOpObject

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("storage", str(kind), str(key), _, int(numel), *_) if kind in SIZES:
                if 0 <= numel * SIZES[kind] <= _MAX_SIZE:
                    self.found.setdefault(key, (numel, SIZES[kind]))
        return _NoOpObject()


def wanted(stream: bytes) -> dict[str, tuple[int, int]]:
    """Return number and size of the elements of each small storage, by its key, as far as the pickle can be read."""
    looking = _Looking(stream)
    with contextlib.suppress(Exception):  # a broken pickle stops somewhere, in one of many ways
        looking.load()
    return looking.found


def content(numel: int, size: int, old: bytes = b"") -> bytes:
    """Return as many bytes, the old ones first."""
    return (old + bytes(i % 251 for i in range(numel * size)))[: numel * size]
