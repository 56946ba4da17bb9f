"""The ranges of files in which the archives of a ``torch.distributed.checkpoint`` folder lie."""

from __future__ import annotations

import functools
import itertools
import os
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from zerocopy.display import shown
from zerocopy.errors import FormatError, UnsupportedError

_SAFETENSORS = struct.Struct("<Q2s")  # the length of the header, and how JSON begins

#: Why a folder whose tensors lie in a .safetensors file is refused.
OF_SAFETENSORS = (
    "written with SerializationFormat.SAFETENSORS: .metadata does not say where in the file tensors lie, and torch's "
    "FileSystemReader cannot read them either"
)


class ArchiveExtent(NamedTuple):
    """The bytes of a file that an archive takes."""

    file: str  # its path
    offset: int
    length: int


def require_disjoint(places: Iterable[tuple[str, ArchiveExtent]]) -> None:
    """Require that no two archives share a byte of a file. A shared archive would be read once for each name.

    Raises
    ------
    zerocopy.FormatError
        Two of them overlap.
    zerocopy.UnsupportedError
        They overlap because they lie in a .safetensors file.
    """
    by_path: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for name, (file, offset, length) in places:
        if length:
            by_path[file].append((offset, length, name))
    by_file: defaultdict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    real = functools.cache(os.path.realpath)
    for source, found in by_path.items():
        # A link to a folder gives a file many paths.
        folder, filename = os.path.split(source)
        by_file[real(folder), filename] += found
    for (folder, filename), found in by_file.items():
        found.sort()
        for (begin, length, name), (offset, _, other) in itertools.pairwise(found):
            if offset < begin + length:
                if is_safetensors(f"{folder}/{filename}", begin):
                    raise UnsupportedError(f"{shown(filename)}: {OF_SAFETENSORS}")
                where = f"{shown(name)} at {begin:#x} of {shown(filename)}"
                raise FormatError(f"{shown(other)} overlaps {where}: archives must not overlap")


def is_safetensors(file: str, offset: int) -> bool:
    """Return whether a place, which is said to be a tensor's, is where a whole .safetensors begins."""
    path = Path(file)
    if not path.is_file():  # To open a pipe would wait for its writer.
        return False
    with path.open("rb") as opened:
        opened.seek(offset)
        head = opened.read(_SAFETENSORS.size)
    return len(head) == _SAFETENSORS.size and _SAFETENSORS.unpack(head)[1] == b'{"'
