"""Divides a checkpoint's file into named extents, without a gap: what each byte is."""

from __future__ import annotations

import struct
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from zerocopy.catalogue.contents import facts_of
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli.runner import Trouble

_LOCAL_HEADER = 30  # bytes before the name
_ALIGNMENT = 64
_PADDING = b"FB"  # the id of torch's extra field
_LENGTH = 8
_MAX_HOLES = 1000
SUPPORTED = ("zip", "torchscript", "safetensors", "legacy", "hdf5")


class Extent(NamedTuple):
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
    extents: list[Extent]


def map_of(file: OpenFile) -> FileMap:
    """Return what each byte of a file is.

    Raises
    ------
    Trouble
        If the file is not a checkpoint, or of a format that cannot be mapped.
    """
    facts = facts_of(file)
    container = facts["container"]
    if container not in SUPPORTED:
        raise Trouble(f"map does not support {container} files: it takes {', '.join(SUPPORTED)}")
    found = _OF[container](file, facts)
    extents = list(
        _without_gaps(sorted(found, key=lambda extent: extent.offset), file.size, _REST[container])
    )
    return FileMap(container, file.size, extents)


def _without_gaps(extents: list[Extent], size: int, rest: str) -> Iterator[Extent]:
    """Yield extents, and what lies between them."""
    at = 0
    for extent in extents:
        if extent.size == 0:
            continue
        if extent.offset > at:
            yield Extent(at, extent.offset - at, rest)
        yield extent
        at = extent.offset + extent.size
    if size > at:
        yield Extent(at, size - at, rest)


def _of_zip(file: OpenFile, facts: dict[str, Any]) -> Iterator[Extent]:
    storages = {storage.offset: number for number, storage in enumerate(facts["storages"])}
    holes = _holes(facts)
    with open(file.descriptor, "rb", closefd=False) as stream, zipfile.ZipFile(stream) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        directory = archive.start_dir
    for info, end in zip(infos, [*(info.header_offset for info in infos[1:]), directory], strict=True):
        header = file.read(info.header_offset, _LOCAL_HEADER)
        name_size, extra_size = struct.unpack_from("<HH", header, 26)
        begin = info.header_offset + _LOCAL_HEADER + name_size
        extra = file.read(begin, extra_size)
        yield Extent(info.header_offset, begin - info.header_offset, "header", info.filename)
        yield Extent(begin, extra_size, "padding" if extra[:2] == _PADDING else "header", info.filename)
        data = begin + extra_size
        yield from _of_record(info, data, storages, facts, holes)
        data_end = data + info.compress_size
        if end > data_end:
            yield Extent(data_end, end - data_end, "descriptor", info.filename)
    yield Extent(directory, facts["end"] - directory, "directory")


def _of_record(
    info: zipfile.ZipInfo,
    data: int,
    storages: dict[int, int],
    facts: dict[str, Any],
    holes: dict[int, list[tuple[int, int]]],
) -> Iterator[Extent]:
    size = info.compress_size
    folder, _, _ = info.filename.partition("/")
    if not info.filename.startswith(f"{folder}/data/"):
        kind = "pickle" if info.filename.endswith(".pkl") else "record"
        yield Extent(data, size, kind, info.filename)
        return
    notes = [f"misaligned: {data % _ALIGNMENT} past a multiple of {_ALIGNMENT}"] if data % _ALIGNMENT else []
    if info.compress_type != zipfile.ZIP_STORED:
        notes = ["compressed"]
    number = storages.get(data)
    if number is None:
        notes.append("unreferenced: no tensor uses it")
    yield from _with_holes(
        Extent(data, size, "storage", info.filename, "; ".join(notes)),
        holes.get(number, []) if number is not None and info.compress_type == zipfile.ZIP_STORED else [],
    )


def _with_holes(extent: Extent, holes: list[tuple[int, int]]) -> Iterator[Extent]:
    """Yield an extent in pieces, with the bytes that no tensor shows as holes."""
    at, end = extent.offset, extent.offset + extent.size
    for begin, size in holes:
        if extent.offset + begin > at:
            yield extent._replace(offset=at, size=extent.offset + begin - at)
        yield Extent(
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
            count = 1
            for size in tensor.shape:
                count *= size
            reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
            shown[tensor.storage].append((tensor.begin, tensor.begin + reach * (tensor.nbytes // count)))
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


def _of_safetensors(file: OpenFile, facts: dict[str, Any]) -> Iterator[Extent]:
    (length,) = struct.unpack("<Q", file.read(0, _LENGTH))
    header = file.read(_LENGTH, length)
    text = len(header.rstrip(b" "))
    yield Extent(0, _LENGTH, "header", "", "the length of the JSON")
    yield Extent(_LENGTH, text, "header", "", "the JSON")
    yield Extent(_LENGTH + text, length - text, "padding")
    for tensor in facts["tensors"]:
        yield _of_tensor(tensor)


def _of_tensor(tensor: Any) -> Extent:
    count = 1
    for size in tensor.shape:
        count *= size
    item = tensor.nbytes // count if count else 1
    note = (
        f"misaligned: {tensor.offset % item} past a multiple of {item}"
        if item and tensor.offset % item
        else ""
    )
    return Extent(tensor.offset, tensor.nbytes, "tensor", tensor.name, note)


def _of_legacy(file: OpenFile, facts: dict[str, Any]) -> Iterator[Extent]:
    holes = _holes(facts)
    placed = sorted(enumerate(facts["storages"]), key=lambda item: item[1].offset)
    if placed:
        yield Extent(0, placed[0][1].offset - _LENGTH, "pickle", "", "five pickles")
    for number, storage in placed:
        yield Extent(storage.offset - _LENGTH, _LENGTH, "header", storage.key, "the number of elements")
        note = f"misaligned: {storage.offset % _ALIGNMENT} past a multiple of {_ALIGNMENT}"
        whole = Extent(
            storage.offset,
            storage.nbytes,
            "storage",
            storage.key,
            note if storage.offset % _ALIGNMENT else "",
        )
        yield from _with_holes(whole, holes.get(number, []))


def _of_hdf5(file: OpenFile, facts: dict[str, Any]) -> Iterator[Extent]:
    for storage in facts["storages"]:
        if not storage.is_deflated and storage.size and storage.offset:
            note = f"misaligned: {storage.offset % _ALIGNMENT} past a multiple of {_ALIGNMENT}"
            yield Extent(
                storage.offset,
                storage.size,
                "storage",
                storage.key,
                note if storage.offset % _ALIGNMENT else "",
            )


_OF = {
    "zip": _of_zip,
    "torchscript": _of_zip,
    "safetensors": _of_safetensors,
    "legacy": _of_legacy,
    "hdf5": _of_hdf5,
}
_REST = {
    "zip": "hole",
    "torchscript": "hole",
    "safetensors": "hole",
    "legacy": "pickle",
    "hdf5": "structure",
}
