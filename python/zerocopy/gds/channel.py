"""The way between an open file and storages: by cuFile where it takes both, else plainly."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self, SupportsIndex

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver, staging

log = logging.getLogger("zerocopy")

_AT_ONCE = 1 << 30  # bytes: then signals are looked for


class Part(NamedTuple):
    """Bytes of a file that belong into a storage."""

    offset: int
    storage: torch.UntypedStorage
    begin: int
    size: int


def untyped(storage: Any) -> torch.UntypedStorage:
    """Return what the user gave for a storage as one of bytes."""
    if isinstance(storage, torch.storage.TypedStorage):
        return _torch.untyped(storage)
    if not isinstance(storage, torch.UntypedStorage):
        raise TypeError(f"expected a torch.UntypedStorage, got {type(storage).__name__}")
    return storage


class Channel:
    """A context manager: what it ends with is that cuFile forgets the file. Its maker keeps the descriptor open.

    Parameters
    ----------
    descriptor, name : int, str
        Of the file.
    strict : bool
        Whether it is an UnsupportedError where cuFile does not take what it should.

    Attributes
    ----------
    native : _C.GdsFile or None
        cuFile's handle of the file.
    reason : str
        Why cuFile is not used; empty where it is.
    """

    def __init__(self, descriptor: int, name: str, *, strict: bool = False) -> None:
        self._descriptor, self._name, self._strict = descriptor, name, strict
        self.reason = "it is not registered"
        self.native: _C.GdsFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.deregister()

    def register(self) -> None:
        """Have cuFile know the file. UnsupportedError, OSError: it does not take it."""
        if self.native is None:
            self.native = _C.GdsFile.open(driver.opened().driver, self._descriptor, self._name)
            self.reason = ""

    def register_if_taken(self) -> None:
        """Have cuFile know the file, or note why it does not."""
        try:
            self.register()
        except (UnsupportedError, OSError) as error:
            self._give_up(error)

    def deregister(self) -> None:
        """Have cuFile forget the file."""
        self.native, self.reason = None, "it is not registered"

    def read(self, storage: torch.UntypedStorage, offset: int) -> None:
        """Fill a storage."""
        self.read_all([Part(offset, storage, 0, storage.nbytes())])

    def read_all(self, parts: Iterable[Part]) -> None:
        """Fill parts of storages. Raises FormatError where the file ends, OSError."""
        by_device: dict[torch.device, list[Part]] = {}
        for part in parts:
            if part.size:
                by_device.setdefault(part.storage.device, []).append(part)
        for device, those in by_device.items():
            for group in _groups(those):
                self._read_group(device, group)

    def write(self, storage: torch.UntypedStorage, offset: int) -> None:
        """Write a storage's bytes."""
        if self.native is not None and driver.takes(storage):
            try:
                with driver.ready(storage.device):
                    self.native.write(storage, offset)
                return
            except UnsupportedError as error:
                self._give_up(error)
        staging.write(self._descriptor, self._name, offset, storage)

    def _read_group(self, device: torch.device, group: list[Part]) -> None:
        if self.native is not None and driver.takes(group[0].storage):
            for part in group:
                part.storage.data_ptr()  # one that shares memory until it is written to gets its own now
            try:
                with driver.ready(device):
                    self.native.read_all(
                        [(part.offset, part.storage, part.begin, part.size) for part in group]
                    )
                return
            except UnsupportedError as error:
                self._give_up(error)
        for part in group:
            staging.read(self._descriptor, self._name, *part)

    def _give_up(self, error: Exception) -> None:
        self.deregister()
        self.reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._strict:
            raise UnsupportedError(f"{self._name}: without cuFile: {self.reason}") from None
        log.info("%s: without cuFile: %s", self._name, self.reason)


def _groups(parts: list[Part]) -> Iterator[list[Part]]:
    """Yield parts, cut and in groups of no more than so many bytes."""
    group: list[Part] = []
    room = _AT_ONCE
    for offset, storage, begin, size in parts:
        done = 0
        while done < size:
            step = min(size - done, room)
            group.append(Part(offset + done, storage, begin + done, step))
            done += step
            room -= step
            if not room:
                yield group
                group, room = [], _AT_ONCE
    if group:
        yield group


def checked_offset(offset: SupportsIndex) -> int:
    """Return the offset of a file, as numbers of NumPy are too. Raises ValueError if it is none."""
    try:
        found = operator.index(offset)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 63:
        raise ValueError(f"expected an offset in a file, got {offset!r}")
    return found
