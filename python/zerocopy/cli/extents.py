"""Divides a checkpoint's file into named extents without gaps, which tell what each byte is."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.catalogue.contents import facts_of
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli.runner import Trouble

_SIZES = 26  # where a local header has the sizes of the name and the extra field, which follow
_ALIGNMENT = 64
_PADDING = b"FB"  # the id of torch's extra field
_LENGTH = 8
_MAX_HOLES = 1000


class MapExtent(NamedTuple):
    """A part of a file.

    Attributes
    ----------
    offset, size : int
        In bytes.
    kind : str
        ``header``, ``padding``, ``tensor``, ``storage``, ``record``, ``pickle``, ``descriptor``, ``directory``,
        ``hole``, ``structure``.
    name : str
        The record's, the storage's or the tensor's; or empty.
    note : str
        A fault: misaligned or unreferenced; or empty.
    """

    offset: int
    size: int
    kind: str
    name: str = ""
    note: str = ""


class FileMap(NamedTuple):
    """A file's format, and its extents from the first byte to the last."""

    container: str
    size: int
    extents: list[MapExtent]


def map_of(file: OpenFile) -> FileMap:
    """Return the map of a file: what each byte is.

    Raises
    ------
    Trouble
        If the file is not a checkpoint, or of a format that cannot be mapped.
    """
    facts = facts_of(file)
    container = facts["container"]
    if container not in _OF:
        raise Trouble(f"map does not support {container} files: it takes {', '.join(_OF)}")
    divide, rest = _OF[container]
    found = sorted(divide(file, facts), key=lambda extent: extent.offset)
    return FileMap(container, file.size, list(_without_gaps(found, file.size, rest)))


def _without_gaps(extents: list[MapExtent], size: int, rest: str) -> Iterator[MapExtent]:
    """Yield extents, and what lies between them."""
    at = 0
    for extent in extents:
        if extent.size == 0:
            continue
        if extent.offset > at:
            yield MapExtent(at, extent.offset - at, rest)
        yield extent
        at = extent.offset + extent.size
    if size > at:
        yield MapExtent(at, size - at, rest)


def _of_zip(file: OpenFile, facts: dict[str, Any]) -> Iterator[MapExtent]:
    storages = {storage.offset: number for number, storage in enumerate(facts["storages"])}
    holes = _holes(facts)
    directory = 0
    for record in _core.zip_records(file.descriptor, file.path):
        directory = max(directory, record.end)
        if record.fault:
            yield MapExtent(record.header, record.end - record.header, "record", record.name, record.fault)
            continue
        data = record.offset
        sizes = file.read(record.header + _SIZES, data - record.header - _SIZES)
        extra = sizes[4 + int.from_bytes(sizes[:2], "little") :]
        begin = data - len(extra)
        yield MapExtent(record.header, begin - record.header, "header", record.name)
        yield MapExtent(begin, len(extra), "padding" if extra[:2] == _PADDING else "header", record.name)
        number = storages.get(data)
        is_stored = not record.is_deflated
        is_data = number is not None or facts["container"] != "pt2"  # whose lists lie among the storages
        whole = _of_record(record, number, is_data)
        yield from _with_holes(whole, holes.get(number, []) if number is not None and is_stored else [])
        data_end = data + record.stored_size
        yield MapExtent(data_end, record.end - data_end, "descriptor", record.name)
    yield MapExtent(directory, facts["end"] - directory, "directory")


def _of_record(record: _core.ZipRecord, storage: int | None, is_data: bool) -> MapExtent:
    folder = record.name.partition("/")[0]
    if not (is_data and record.name.startswith(f"{folder}/data/")):
        kind = "pickle" if record.name.endswith(".pkl") else "record"
        return MapExtent(record.offset, record.stored_size, kind, record.name)
    notes = ["compressed" if record.is_deflated else _misaligned(record.offset)]
    if storage is None:
        notes.append("unreferenced: no tensor uses it")
    return MapExtent(
        record.offset, record.stored_size, "storage", record.name, "; ".join(filter(None, notes))
    )


def _misaligned(offset: int, alignment: int = _ALIGNMENT) -> str:
    past = offset % alignment
    return f"misaligned: {past} past a multiple of {alignment}" if past else ""


def _with_holes(extent: MapExtent, holes: list[tuple[int, int]]) -> Iterator[MapExtent]:
    """Yield an extent in pieces, with the bytes that no tensor shows as holes."""
    at, end = extent.offset, extent.offset + extent.size
    for begin, size in holes:
        if extent.offset + begin > at:
            yield extent._replace(offset=at, size=extent.offset + begin - at)
        yield MapExtent(
            extent.offset + begin, size, "hole", extent.name, "unreferenced: no tensor shows these bytes"
        )
        at = extent.offset + begin + size
    if end > at:
        yield extent._replace(offset=at, size=end - at)


def _holes(facts: dict[str, Any]) -> dict[int, list[tuple[int, int]]]:
    """Return the bytes that no tensor shows, as (begin, size), by the number of the storage."""
    if any(tensor.storage is None for tensor in facts["tensors"]):
        return {}  # The parts of sparse and quantized tensors have no names, and may lie in any storage.
    shown: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tensor in facts["tensors"]:
        if tensor.nbytes:
            reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
            end = tensor.begin + reach * (tensor.nbytes // math.prod(tensor.shape))
            shown[tensor.storage].append((tensor.begin, end))
    holes = {}
    for number, spans in shown.items():
        found, at = [], 0
        for begin, end in sorted(spans):
            if begin > at:
                found.append((at, begin - at))
            at = max(at, end)
        if (size := facts["storages"][number].nbytes) > at:
            found.append((at, size - at))
        holes[number] = found[:_MAX_HOLES]
    return holes


def _of_safetensors(file: OpenFile, facts: dict[str, Any]) -> Iterator[MapExtent]:
    (length,) = struct.unpack("<Q", file.read(0, _LENGTH))
    header = file.read(_LENGTH, length)
    text = len(header.rstrip(b" "))
    yield MapExtent(0, _LENGTH, "header", "", "the length of the JSON")
    yield MapExtent(_LENGTH, text, "header", "", "the JSON")
    yield MapExtent(_LENGTH + text, length - text, "padding")
    for tensor in facts["tensors"]:
        item = tensor.nbytes // math.prod(tensor.shape) if tensor.nbytes else 1
        note = _misaligned(tensor.offset, item)
        yield MapExtent(tensor.offset, tensor.nbytes, "tensor", tensor.name, note)


def _of_legacy(file: OpenFile, facts: dict[str, Any]) -> Iterator[MapExtent]:
    holes = _holes(facts)
    placed = sorted(enumerate(facts["storages"]), key=lambda item: item[1].offset)
    if placed:
        yield MapExtent(0, placed[0][1].offset - _LENGTH, "pickle", "", "five pickles")
    for number, storage in placed:
        yield MapExtent(storage.offset - _LENGTH, _LENGTH, "header", storage.key, "the number of elements")
        note = _misaligned(storage.offset)
        whole = MapExtent(storage.offset, storage.nbytes, "storage", storage.key, note)
        yield from _with_holes(whole, holes.get(number, []))


def _of_hdf5(file: OpenFile, facts: dict[str, Any]) -> Iterator[MapExtent]:
    for storage in facts["storages"]:
        if not storage.is_deflated and storage.size and storage.offset:
            note = _misaligned(storage.offset)
            yield MapExtent(storage.offset, storage.size, "storage", storage.key, note)


#: Divides a file of each format; and the kind of all other bytes.
_OF = {
    "zip": (_of_zip, "hole"),
    "torchscript": (_of_zip, "hole"),
    "pt2": (_of_zip, "hole"),
    "safetensors": (_of_safetensors, "hole"),
    "legacy": (_of_legacy, "pickle"),
    "hdf5": (_of_hdf5, "structure"),
}
