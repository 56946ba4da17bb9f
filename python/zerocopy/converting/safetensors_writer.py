"""Writes ``.safetensors``: a header in JSON, and tensors behind it, one at a time."""

from __future__ import annotations

import errno
import json
import math
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from zerocopy import _core
from zerocopy.converting.left_out import listed
from zerocopy.converting.metadata import FORMAT
from zerocopy.converting.new_files import Content
from zerocopy.converting.plain import is_text
from zerocopy.converting.sources import COPIED, Sources, dtype_in_target
from zerocopy.converting.ties import overlapping, tied_names
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.names import no_such_name
from zerocopy.loading.formats.safetensors import DTYPES
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.atomic_file import PIECE, FileSink, NewFile, Written

if TYPE_CHECKING:
    import torch

_RANKS = {name: rank for rank, name in enumerate(DTYPES.values())}
_ALIGNMENT = 8
_MAX_HEADER_LENGTH = 100_000_000
_RESERVED = "__metadata__"


class HeaderEntry(NamedTuple):
    """A tensor as a header has it; `dtype` is torch's name."""

    name: str
    dtype: str
    format: str
    shape: tuple[int, ...]
    nbytes: int


def described(name: str, dtype: str, shape: tuple[int, ...]) -> HeaderEntry | None:
    """Return a tensor's entry for a header; None for a name, dtype or shape that a header cannot have."""
    is_packed = dtype == "float4_e2m1fn_x2"  # two numbers an element
    if why_not_a_name(name) or dtype not in DTYPES or (is_packed and not shape):
        return None
    nbytes = math.prod(shape) * _core.itemsize(dtype)
    sizes = (*shape[:-1], 2 * shape[-1]) if is_packed else tuple(shape)
    return HeaderEntry(name, dtype, DTYPES[dtype], sizes, nbytes)


def in_file_order(tensors: Iterable[HeaderEntry]) -> list[HeaderEntry]:
    """Return tensors in the order of the format's own writer."""
    return sorted(tensors, key=lambda tensor: (-_RANKS[tensor.format], tensor.name.encode()))


def header(tensors: list[HeaderEntry], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a file, behind which the tensors follow in that order."""
    header: dict[str, object] = {_RESERVED: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        offsets = [at, at + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.format, "shape": tensor.shape, "data_offsets": offsets}
        at += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _MAX_HEADER_LENGTH:
        raise UnsupportedError(
            f"a .safetensors header of {len(text)} bytes: readers of this format refuse more than 100 MB"
        )
    return struct.pack("<Q", len(text)) + text


def why_not_a_name(name: str) -> str:
    """Return why a file cannot have a tensor of this name, or an empty string."""
    if name == _RESERVED:
        return "a name that the format reserves"
    return "" if is_text(name) else "a name that is not Unicode text"


class SafetensorsPlan:
    """The plan of a ``.safetensors`` target: the tensors and the metadata of each file.

    Parameters
    ----------
    sources : Sources
    dtype : torch.dtype, optional
        The dtype for floating-point tensors.
    kept : sequence of str, optional
        Which of the tied names to write. Of a tie without any of these names, the first in the alphabet is written.
        None writes all names, and overlapping tensors too.
    is_sharded : bool
        Whether there are several files. Shards always get the metadata entry ``format: pt``.

    Attributes
    ----------
    tensors : list of HeaderEntry
        Each once, in the order of the sources.

    Raises
    ------
    zerocopy.UnsupportedError
        Some tensors cannot be written, which the message lists.
    """

    def __init__(
        self, sources: Sources, dtype: torch.dtype | None, kept: Sequence[str] | None, *, is_sharded: bool
    ) -> None:
        if sources.is_of_torch:  # the header of a .safetensors file spells each tensor out
            sources.charge_all(COPIED)
        self._sources = sources
        said = sources.others | sources.metadata
        stated = {
            name: value
            for name, value in said.items()
            if isinstance(value, str) and is_text(name) and is_text(value)
            # Readers take an entry for a tie if its value is a tensor's name and its key is not: leave those out.
            if value not in sources.tensors or name in sources.tensors or name in FORMAT
        }
        self._left_out = [name for name in said if name not in stated]
        self._metadata = (FORMAT if sources.is_of_torch or is_sharded else {}) | stated
        if unknown := [name for name in kept or () if name not in sources.tensors]:
            raise no_such_name(sources.name, unknown[0], sources.tensors)
        self._ties: dict[str, str] = {}
        if kept is not None:
            # A tied name that is not written becomes a metadata key, and a key has one value. So names that are keys
            # already are always written.
            always = dict.fromkeys([*kept, *sorted(stated.keys() | FORMAT.keys())])
            self._ties = tied_names(sources, always)
        names = [name for name in sources.tensors if name not in self._ties]
        overlaps = set() if kept is None else set(overlapping(sources, names))
        self.tensors: list[HeaderEntry] = []
        refused = []
        for name in names:
            wanted, entry, why = self._described(name, dtype)
            if entry is None or name in overlaps:
                why = "overlapping" if name in overlaps else why or why_not_a_name(name) or wanted
                refused.append(f"{shown(name)} ({why})")
            else:
                self.tensors.append(entry)
        refused += [
            f"{shown(name)} (a tied name that is not Unicode text)"
            for name in self._ties
            if not is_text(name)
        ]
        if refused:
            raise UnsupportedError(
                f"{sources.name}: .safetensors cannot hold {len(refused)} of its tensors: {listed(refused)}"
            )

    def _described(self, name: str, dtype: torch.dtype | None) -> tuple[str, HeaderEntry | None, str]:
        """Return a tensor's dtype, and its entry in the header, or the reason why it cannot have one."""
        tensor = self._sources.tensors[name]
        stored, shape, _ = tensor.outline()
        wanted = dtype_in_target(stored, dtype)
        if not tensor.entry().is_dense:
            from zerocopy.converting import elements

            if why := elements.why_not(tensor.read()):
                return wanted, None, why
        return wanted, described(name, wanted, shape), ""

    def units(self) -> list[tuple[list[str], int]]:
        """Return the groups of names that must share a file, with their bytes. Here each tensor is a group."""
        return [([tensor.name], tensor.nbytes) for tensor in self.tensors]

    def left_out(self) -> dict[str, list[str]]:
        """Return the parts that the files do not hold, by kind."""
        ties = [f"{name} = {kept}" for name, kept in self._ties.items()]
        noted = {"names of tied tensors, noted in the metadata": ties}
        return self._sources.left_out(self._left_out) | noted

    def contents(self, shards: list[list[str]] | None) -> list[Content]:
        """Return the content of each file; None stands for one file of all."""
        by_name = {tensor.name: tensor for tensor in self.tensors}
        contents = []
        for names in shards or [list(by_name)]:
            tensors, metadata = in_file_order(map(by_name.__getitem__, names)), self._metadata_of({*names})
            total = sum(tensor.nbytes for tensor in tensors)
            contents.append(Content(total, partial(self._write, tensors, metadata)))
        return contents

    def _write(
        self, tensors: list[HeaderEntry], metadata: Mapping[str, str], new: NewFile, written: Written
    ) -> None:
        sink, heap = FileSink(new), Heap()
        sink.write(memoryview(header(tensors, metadata)))
        for tensor in tensors:
            if tensor.nbytes:
                self._write_tensor(sink, tensor, written)
            heap.used(tensor.nbytes)

    def _write_tensor(self, sink: FileSink, tensor: HeaderEntry, written: Written) -> None:
        extent = self._sources.extent_of(tensor.name, tensor.dtype)
        source = self._sources.tensors[tensor.name]
        if extent is None:
            from zerocopy.converting import elements

            for in_rows in elements.pieces(source.read(), tensor.dtype):
                sink.write(in_rows, written)
            return
        done = sink.copy(extent.descriptor, extent.offset, tensor.nbytes, written)
        while done < tensor.nbytes:  # what the kernel cannot copy
            piece = os.pread(extent.descriptor, min(PIECE, tensor.nbytes - done), extent.offset + done)
            if not piece:
                raise OSError(errno.ESTALE, "file was cut since it was opened", source.layer.path)
            sink.write(memoryview(piece), written)
            done += len(piece)

    def _metadata_of(self, names: Collection[str]) -> dict[str, str]:
        """Return the metadata of a file of these tensors, as ``safetensors.torch.save_model`` records ties."""
        ties = {dropped: kept for dropped, kept in self._ties.items() if kept in names}
        # Readers take an entry for a tie if its value is a tensor of the file and its key is not. So such an entry is
        # written only to the shard that stores the tensor of its key.
        metadata = {
            key: value
            for key, value in self._metadata.items()
            if value not in names or key in names or key in FORMAT
        }
        return dict(sorted((ties | metadata).items()))
