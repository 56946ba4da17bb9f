"""Finds, without torch, how far two checkpoints hold the same bytes.

Importing torch takes most of the time and memory of a comparison whose result is "the same".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.cli import output, pickles
from zerocopy.cli.reading import OpenFile, Trouble
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder

_PIECE = 1 << 17  # bytes of each file that are compared at once: both buffers stay in the processor's cache
_COMPARED = ("zip", "legacy", "safetensors")
_METADATA = [((b"collections", b"OrderedDict"), b"_metadata")]  # of a state dict


class EqualBytes(NamedTuple):
    """How far two checkpoints are equal. Their pickles or headers are, so all names, dtypes, shapes and values are.

    Parameters
    ----------
    tensors : int
        Tensors of each checkpoint.
    end : int
        All storages of the first file that end here or before are equal to those of the second.
    is_all : bool
        Whether all storages are.
    """

    tensors: int
    end: int
    is_all: bool


class _Storage(NamedTuple):
    key: str
    dtype: str
    is_deflated: bool
    stored_size: int


def compare(a: str, b: str) -> EqualBytes | None:
    """Return how far two checkpoints are equal; None if nothing is known, whatever the reason.

    Files that name a global of the program's are not compared, because what they hold is only known when they are
    loaded. Nor are folders, indices of shards, and files that cannot be read.
    """
    found = [model_folder.located(path) if os.path.isdir(path) else path for path in (a, b)]  # noqa: PTH112
    if not all(isinstance(path, str) for path in found):
        return None
    try:
        with contextlib.closing(OpenFile(found[0])) as one, contextlib.closing(OpenFile(found[1])) as other:
            before = _states(one, other)
            result = _compare(one, other)
            return result if before == _states(one, other) else None
    except (Trouble, Error, OSError, UnpicklingError):
        return None


def _states(*files: OpenFile) -> list[tuple[int, int, int]]:
    """Return what changes when a file does, or when another takes its place."""
    found = [state for file in files for state in (os.fstat(file.descriptor), os.stat(file.path))]  # noqa: PTH116
    return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in found]


def _compare(a: OpenFile, b: OpenFile) -> EqualBytes | None:
    facts, others = _facts(a), _facts(b)
    if facts is None or others is None or facts["container"] != others["container"]:
        return None
    records, other_records = facts["storages"], others["storages"]
    if list(map(_as_storage, records)) != list(map(_as_storage, other_records)):
        return None
    if list(_structure(a, facts)) != list(_structure(b, others)):
        return None
    tensors = len(_core.contents(a.descriptor, a.path)["tensors"])
    if os.path.samestat(os.fstat(a.descriptor), os.fstat(b.descriptor)):
        return EqualBytes(tensors, a.size, True)
    progress = output.Progress("zerocopy diff:", sum(record.stored_size for record in records))
    end = 0
    try:
        for record, other in sorted(
            zip(records, other_records, strict=True), key=lambda pair: pair[0].offset
        ):
            if not _are_equal(a, record.offset, b, other.offset, record.stored_size):
                return EqualBytes(tensors, end, False)
            end = record.offset + record.stored_size
            progress.add(record.stored_size)
    finally:
        progress.end()
    return EqualBytes(tensors, a.size, True)


def _facts(file: OpenFile) -> dict[str, Any] | None:
    """Return what the loader finds in a file that names only what zerocopy itself makes; else None."""
    if _core.container(file.descriptor, file.path) not in _COMPARED:
        return None
    facts = _core.examine(file.descriptor, file.path, pickles.MAX_GLOBALS)
    if facts["container"] not in _COMPARED:  # a TorchScript archive is a zip too
        return None
    is_plain = not any(facts[kind] for kind in ("foreign", "called", "created", "changed", "odd"))
    return facts if is_plain and facts["attributes"] in ([], _METADATA) else None


def _as_storage(record: Any) -> _Storage:
    return _Storage(record.key, record.dtype, record.is_deflated, record.stored_size)


def _structure(file: OpenFile, facts: dict[str, Any]) -> Iterator[bytes]:
    """Yield what says where tensors lie in the storages, and all other values."""
    if facts["container"] == "zip":
        for record in sorted(_core.zip_records(file.descriptor, file.path), key=lambda record: record.name):
            name = record.name.partition("/")[2]
            if name in ("data.pkl", "byteorder"):
                yield name.encode()
                yield file.read(record.offset, record.stored_size)
        return
    end = 0  # of the storage before
    for record in sorted(facts["storages"], key=lambda record: record.offset):
        yield file.read(end, record.offset - end)
        end = record.offset + record.stored_size
    yield file.read(end, file.size - end)


def _are_equal(a: OpenFile, begin: int, b: OpenFile, other: int, size: int) -> bool:
    # bytearray compares by memcmp, and reads into two small buffers need no page faults.
    buffers = bytearray(_PIECE), bytearray(_PIECE)
    for done in range(0, size, _PIECE):
        length = min(_PIECE, size - done)
        if length < len(buffers[0]):
            buffers = bytearray(length), bytearray(length)
        if os.preadv(a.descriptor, [buffers[0]], begin + done) != length:
            raise Trouble("the file became shorter")
        if os.preadv(b.descriptor, [buffers[1]], other + done) != length:
            raise Trouble("the file became shorter")
        if buffers[0] != buffers[1]:
            return False
    return True
