"""Where each tensor of a new file lies, known before any of its bytes: ``.pt`` and ``.safetensors``."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from zerocopy._torch import distributed
from zerocopy.converting import outputs, safetensors_writer
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.reading.extents import contiguous_strides
from zerocopy.lazy.reading.segments import merged_dims
from zerocopy.saving.atomic_file import NewFile, path_of_file, replacing
from zerocopy.saving.checkpoint_writer import CheckpointWriter as RecordWriter
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.pickler import pickled, stored_tensor
from zerocopy.saving.sink import FileSink

StatePath = tuple[str | int, ...]
SUFFIXES = (*outputs.PICKLED, outputs.SAFETENSORS)


class NewTensor(NamedTuple):
    """A tensor that is going to be written."""

    shape: torch.Size
    dtype: torch.dtype


class NewCheckpoint(Protocol):
    """A file that several processes write."""

    def begin(self) -> tuple[str, dict[str, int]]:
        """Make room. Return the path to write to, and the offset of each tensor."""

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        """Write the rest, and give the file its name."""

    def abandon(self) -> None:
        """Delete the new file; the old one stays as it is."""


def new_checkpoint(
    path: str | os.PathLike[str], tensors: dict[str, NewTensor], values: list[str], alignment: int
) -> NewCheckpoint:
    """Return a new file of the format that its suffix says."""
    if Path(path).suffix == outputs.SAFETENSORS:
        if values:
            names = ", ".join(map(shown, values[:10]))
            raise UnsupportedError(
                f"{path}: .safetensors holds tensors only, found {len(values)} other values: {names}; save to .pt"
            )
        return _Safetensors(path, tensors)
    return _Pickled(path, tensors, alignment)


class _NewFile:
    """The new file, until it has its name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_of_file(path)
        self._block = contextlib.ExitStack()

    def _open(self) -> tuple[NewFile, FileSink]:
        # Other processes find it by its name.
        new = self._block.enter_context(replacing(self._path, has_name=True))
        return new, FileSink(new.descriptor, os.fspath(self._path))

    def abandon(self) -> None:
        """Delete the new file; the old one stays as it is."""
        error = RuntimeError("the save was not finished: the old file is unchanged")
        with contextlib.suppress(RuntimeError):
            self._block.__exit__(RuntimeError, error, None)


class _Safetensors(_NewFile):
    def __init__(self, path: str | os.PathLike[str], tensors: dict[str, NewTensor]) -> None:
        super().__init__(path)
        described = {
            name: safetensors_writer.described(name, tensor.dtype, tensor.shape)
            for name, tensor in tensors.items()
        }
        if refused := [name for name, found in described.items() if found is None]:
            names = ", ".join(f"{shown(name)} ({tensors[name].dtype})" for name in refused[:10])
            raise UnsupportedError(f"{path}: .safetensors cannot hold {len(refused)} of its tensors: {names}")
        self._tensors = safetensors_writer.in_file_order(found for found in described.values() if found)

    def begin(self) -> tuple[str, dict[str, int]]:
        new, sink = self._open()
        sink.write(memoryview(safetensors_writer.header(self._tensors, {"format": "pt"})), lambda _: None)
        offsets, at = {}, sink.position
        for tensor in self._tensors:
            offsets[tensor.name] = at
            at += tensor.nbytes
        os.truncate(new.descriptor, at)
        return str(new.path), offsets

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        self._block.close()


class _Pickled(_NewFile):
    """A zip archive as ``zerocopy.Writer`` writes it: the storages, and the pickle behind them."""

    def __init__(self, path: str | os.PathLike[str], tensors: dict[str, NewTensor], alignment: int) -> None:
        super().__init__(path)
        self._tensors, self._alignment = tensors, alignment
        self._records: RecordWriter | None = None

    def begin(self) -> tuple[str, dict[str, int]]:
        new, sink = self._open()
        # Ranks write parts of one storage, in any order: nobody has its bytes in a row for a checksum.
        writer = RecordWriter(sink, self._alignment, checksum=False, regular=False)
        self._records = self._block.enter_context(writer)
        offsets = {}
        for number, (name, tensor) in enumerate(self._tensors.items()):
            nbytes = tensor.shape.numel() * torch.empty(0, dtype=tensor.dtype).element_size()
            offsets[name] = writer.reserve(str(number), nbytes)
        return str(new.path), offsets

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        records = self._records
        assert records is not None, "begin() was called"
        state: dict[str, Any] = {}
        for number, (name, tensor) in enumerate(self._tensors.items()):
            stands_for = stored_tensor(self, tensor.dtype, tensor.shape, str(number))
            distributed.set_element(state, paths.get(name, (name,)), stands_for)
        for name, content in values.items():
            # From a rank of this job, and not from a file: it is trusted as any object that ranks exchange.
            value = torch.load(io.BytesIO(content), weights_only=False)
            distributed.set_element(state, paths.get(name, (name,)), value)
        keys: dict[Any, str] = {}
        with MappedFiles() as mapped:

            def store(storage: Any, _: Any) -> str:
                # Of a tensor within a value.
                identity = storage.storage.data_ptr(), storage.storage.nbytes()
                if identity not in keys:
                    keys[identity] = str(len(self._tensors) + len(keys))
                    records.storage(keys[identity], storage.storage, mapped)
                return keys[identity]

            records.pickle(pickled(state, self, store))
        records.finish()
        self._block.close()


class Extent(NamedTuple):
    """A part of a tensor in the new file.

    Attributes
    ----------
    offset : int
        Of the tensor's first element, in bytes.
    shape, begin, size : tuple of int
        Of the tensor; position and shape of the part.
    """

    offset: int
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def write(self, descriptor: int, tensor: torch.Tensor) -> int:
        """Write a part to its place. Return its bytes."""
        row_by_row = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = safetensors_writer.elements_of(row_by_row)
        itemsize = row_by_row.element_size()
        strides = contiguous_strides(self.shape)
        first = self.offset + sum(i * step for i, step in zip(self.begin, strides, strict=True)) * itemsize
        dims = merged_dims(self.size, strides, contiguous_strides(self.size))
        if dims is not None:
            _write_runs(descriptor, content, first, 0, dims, itemsize)
        return content.nbytes


def _write_runs(
    descriptor: int, content: memoryview, at: int, begin: int, dims: list[tuple[int, int, int]], itemsize: int
) -> None:
    if len(dims) > 1 or (dims and dims[0][1:] != (1, 1)):
        n, step, own_step = dims[0]
        for i in range(n):
            inner = at + i * step * itemsize
            _write_runs(descriptor, content, inner, begin + i * own_step * itemsize, dims[1:], itemsize)
        return
    left = content[begin : begin + itemsize * (dims[0][0] if dims else 1)]
    while left:
        done = os.pwrite(descriptor, left, at)
        left, at = left[done:], at + done
