"""Folders of ``HuggingFaceStorageWriter(save_distributed=True)``: each file has parts of tensors under their names.

::

    shard-00001-model-00001-of-00001.safetensors    what the first rank has of each tensor
    shard-00002-model-00001-of-00001.safetensors    what the second rank has

The metadata of a file say as JSON where its parts begin: ``{"layer.weight": {"saved_offsets": [4, 0]}, ...}``. A file
without them has whole tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.display import described, shown
from zerocopy.errors import Error, FormatError
from zerocopy.loading.formats.dcp_metadata import ArchiveExtent, Chunk, Chunked, Folder, require_whole

_SHARDING = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"
_MAX_OFFSET = 1 << 62


class _Part(NamedTuple):
    name: str
    dtype: str
    chunk: Chunk


def folder_of(name: str) -> Folder | None:
    """Return the tensors of a folder whose ``.safetensors`` files have parts of them; None for another folder.

    Raises
    ------
    OSError
        A file cannot be read.
    zerocopy.FormatError
        A file is damaged, or the parts do not make up tensors.
    """
    files = {
        path: _facts(path) for path in sorted(Path(name).absolute().glob("*.safetensors")) if path.is_file()
    }
    if not any(_SHARDING in facts["metadata"] for facts in files.values()):
        return None
    parts: dict[str, list[_Part]] = {}
    for path, facts in files.items():
        try:
            for part in _parts(path, facts):
                parts.setdefault(part.name, []).append(part)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"{path}: {_SHARDING}: {shown(str(error))}") from None
    # The headers spell out each name and each part.
    size = sum(len(key) + 100 for found in parts.values() for key, *_ in found)
    budget = _core.Budget(size, f"{name}: far more chunks than it spells out")
    return Folder(name, {key: _joined(name, found, budget) for key, found in parts.items()}, {}, size, True)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        try:
            facts = _core.contents(file.fileno(), str(path))
        except Error as error:
            raise type(error)(f"{path}: {error}") from None
    return {**facts, "metadata": facts["metadata"] or {}}


def _parts(path: Path, facts: dict[str, Any]) -> Iterator[_Part]:
    said = json.loads(facts["metadata"].get(_SHARDING, "{}"))
    for fact in facts["tensors"]:
        offsets = said[fact.name][_OFFSETS] if said else [0] * len(fact.shape)
        if not isinstance(offsets, list) or len(offsets) != len(fact.shape):
            raise ValueError(f"expected an offset for each dimension of {described(fact.name)}")
        if not all(type(offset) is int and 0 <= offset < _MAX_OFFSET for offset in offsets):
            raise ValueError(f"expected offsets of {described(fact.name)}, found {shown(str(offsets))}")
        place = ArchiveExtent(str(path), fact.offset, fact.nbytes)
        yield _Part(fact.name, fact.dtype, Chunk(tuple(offsets), fact.shape, place))


def _joined(name: str, parts: list[_Part], budget: _core.Budget) -> Chunked:
    key, dtype, first = parts[0]
    chunks = [part.chunk for part in parts]
    if any((part.dtype, len(part.chunk.sizes)) != (dtype, len(first.sizes)) for part in parts):
        raise FormatError(f"{name}: the parts of {shown(key)} differ in their dtypes or dimensions")
    ends = ([begin + size for begin, size in zip(each.offsets, each.sizes, strict=True)] for each in chunks)
    tensor = Chunked(tuple(map(max, zip(*ends, strict=True))), dtype, chunks)
    try:
        require_whole(key, tensor, budget)
    except ValueError as error:
        raise FormatError(f"{name}: {error}") from None
    return tensor
