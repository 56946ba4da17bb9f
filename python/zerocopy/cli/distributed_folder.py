"""The files of a folder of ``torch.distributed.checkpoint``, and the archives that ``.metadata`` finds in each.

``.metadata`` is a pickle of torch's own classes. A data file has archives of ``torch.save``, one behind the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import NamedTuple

from zerocopy import _core
from zerocopy.catalogue.files import FilePart, OpenFile
from zerocopy.cli.output import listed
from zerocopy.cli.runner import Trouble
from zerocopy.errors import Error, FormatError
from zerocopy.loading.formats import dcp_metadata, model_folder

_METADATA = "torch.distributed.checkpoint.metadata"
_OF_2_0 = "torch.distributed._shard.sharded_tensor.metadata"

#: The classes that torch writes into ``.metadata``.
CLASSES = frozenset(
    (module.encode(), name.encode())
    for module, names in {
        _METADATA: (
            *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata"),
            *("ChunkStorageMetadata", "TensorProperties", "TensorStorageMetadata"),
        ),
        _OF_2_0: ("TensorProperties",),
        "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
        # Megatron-core keeps the plans of all ranks there.
        "torch.distributed.checkpoint.planner": (
            *("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
        ),
    }.items()
    for name in names
)

#: All globals that torch writes there. Pickles find members of enumerations by getattr. No result of a call may be
#: called or changed, so getattr only leads to constants.
GLOBALS = CLASSES | {
    (b"builtins", b"getattr"),
    (_METADATA.encode(), b"_MEM_FORMAT_ENCODING"),
    (_OF_2_0.encode(), b"MEM_FORMAT_ENCODING"),
    *(
        (module, name)
        for module in (b"pathlib", b"pathlib._local")
        for name in (b"PosixPath", b"WindowsPath")
    ),
}


class Archive(NamedTuple):
    """An archive of ``torch.save`` in a data file: the name of its tensor or value, and where it lies in bytes."""

    entry: str
    begin: tuple[int, ...] | None  # where the chunk begins in its tensor, if there are several
    offset: int
    size: int

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.entry if self.begin is None else f"{self.entry}{list(self.begin)}"


def archives_by_file(path: str) -> tuple[dict[str, list[Archive]], Exception | None]:
    """Return the archives of each file of a folder, or the error why zerocopy does not read ``.metadata``."""
    try:
        folder = dcp_metadata.folder_of(path)
    except (Error, UnpicklingError) as error:
        return {}, error.with_traceback(None)
    if folder is None:
        raise Trouble(model_folder.not_a_checkpoint(path))
    files: dict[str, list[Archive]] = {}
    for name, entry in folder.entries.items():
        if isinstance(entry, dcp_metadata.ArchiveExtent):
            files.setdefault(entry.file, []).append(Archive(name, None, entry.offset, entry.length))
            continue
        for chunk in entry.chunks:
            begin = chunk.offsets if len(entry.chunks) > 1 else None
            place = chunk.place
            files.setdefault(place.file, []).append(Archive(name, begin, place.offset, place.length))
    return {os.path.relpath(file, path): archives for file, archives in files.items()}, None


def parts_of(
    file: OpenFile, archives: list[Archive]
) -> Iterator[tuple[Archive, FilePart, FormatError | None]]:
    """Yield each archive and its part of the file, with a fault if the part cannot be an archive of its own."""
    for archive in archives:
        part, fault = FilePart(file, archive.offset, archive.size), None
        try:
            if _core.container(part.descriptor, part.path, part.part) != "zip":
                where = f"the {part.size} bytes at {part.offset:#x}"
                fault = FormatError(f"{where} are not a file of torch.save")
        except FormatError as error:
            fault = error.with_traceback(None)
        yield archive, part, fault


def notes(file: OpenFile, archives: list[Archive]) -> Iterator[str]:
    """Yield a note on the bytes of a data file that no entry covers."""
    gaps, at = [], 0
    for archive in archives:
        if archive.offset > at:
            gaps.append((at, min(archive.offset, file.size) - at))
        at = min(max(at, archive.offset + archive.size), file.size)
    if file.size > at:
        gaps.append((at, file.size - at))
    if gaps:
        spans = listed(f"{size} at {offset:#x}" for offset, size in gaps if size > 0)
        yield f"bytes that no entry of .metadata covers: {spans}"
