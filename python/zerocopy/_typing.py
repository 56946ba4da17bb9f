"""Types of arguments in public signatures, so that a type checker finds a wrong one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch


class Buffer(Protocol):
    """An object with the buffer protocol; ``collections.abc.Buffer`` needs Python 3.12."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a view of the bytes."""


class Array(Protocol):
    """A NumPy array, for type checkers. Before Python 3.12, NumPy's types do not declare it a buffer."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Address, shape and dtype."""


class ReadableFile(Protocol):
    """A file object that is open in binary mode, for reading."""

    def read(self, size: int = ..., /) -> bytes:
        """Return the next bytes."""


class WritableFile(Protocol):
    """A file object that is open in binary mode, for writing."""

    def write(self, data: Any, /) -> object:
        """Write bytes."""


FilePath: TypeAlias = str | os.PathLike[str]
Bytes: TypeAlias = Buffer | Array
File: TypeAlias = FilePath | ReadableFile | Bytes
Device: TypeAlias = "torch.device | str | int | None"
MapLocation: TypeAlias = "torch.device | str | Mapping[str, Any] | Callable[[Any, str], Any] | None"
Backend: TypeAlias = Literal["auto", "mmap", "pread", "direct"]
Mode: TypeAlias = Literal["c", "r", "r+"]
Unknown: TypeAlias = Literal["refuse", "stub"]
GdsMode: TypeAlias = Literal["direct", "compat"]
