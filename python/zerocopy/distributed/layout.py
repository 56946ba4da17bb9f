"""The contents of a new file, known before any of its bytes: ``.pt`` and ``.safetensors``."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._torch import distributed
from zerocopy.converting import safetensors_writer, shard_plan
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.saving.archive import CheckpointPlan
from zerocopy.saving.atomic_file import NewFile
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.pickler import pickled, stored_tensor

StatePath = tuple[str | int, ...]
SUFFIXES = (*shard_plan.PICKLED, shard_plan.SAFETENSORS)


class NewTensor(NamedTuple):
    """A tensor that is going to be written."""

    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.shape.numel() * _torch.element_size(self.dtype)


def content_of(
    path: str, suffix: str, tensors: Mapping[str, NewTensor], values: list[str], alignment: int
) -> _Safetensors | _Pickled:
    """Return the content of a file in the format of a suffix. The path is for messages."""
    if suffix == shard_plan.SAFETENSORS:
        if values:
            names = ", ".join(map(shown, values[:10]))
            raise UnsupportedError(
                f"{path}: .safetensors holds tensors only, found {len(values)} other values: {names}; save to .pt"
            )
        return _Safetensors(path, tensors)
    return _Pickled(tensors, alignment)


class _Safetensors:
    def __init__(self, path: str, tensors: Mapping[str, NewTensor]) -> None:
        described = {
            name: safetensors_writer.described(name, str(tensor.dtype).removeprefix("torch."), tensor.shape)
            for name, tensor in tensors.items()
        }
        if refused := [name for name, found in described.items() if found is None]:
            why_not = safetensors_writer.why_not_a_name
            names = ", ".join(
                f"{shown(name)} ({why_not(name) or tensors[name].dtype})" for name in refused[:10]
            )
            raise UnsupportedError(f"{path}: .safetensors cannot hold {len(refused)} of its tensors: {names}")
        self._tensors = safetensors_writer.in_file_order(found for found in described.values() if found)

    def begin(self, new: NewFile) -> dict[str, int]:
        """Reserve space for all tensors in an empty file. Return the offset of each."""
        header = safetensors_writer.header(self._tensors, {"format": "pt"})
        new.write(header)
        new.flush()
        offsets, at = {}, len(header)
        for tensor in self._tensors:
            offsets[tensor.name] = at
            at += tensor.nbytes
        os.truncate(new.descriptor, at)
        return offsets

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        """Do nothing: ranks write all that remains."""


class _Pickled:
    """A zip archive as ``zerocopy.Writer`` writes it: the storages, and the pickle behind them."""

    def __init__(self, tensors: Mapping[str, NewTensor], alignment: int) -> None:
        self._tensors, self._alignment = tensors, alignment
        self._records: CheckpointPlan | None = None

    def begin(self, new: NewFile) -> dict[str, int]:
        """Reserve space for all tensors in an empty file. Return the offset of each."""
        # Ranks write parts of one storage, in any order: no rank has all of its bytes for a checksum.
        records = self._records = CheckpointPlan(new, self._alignment, checksum=False, regular=False)
        offsets = {
            name: records.hole(str(number), tensor.nbytes)
            for number, (name, tensor) in enumerate(self._tensors.items())
        }
        records.carry_out()
        return offsets

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        """Write the rest."""
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
        with MappedFiles(takes_newer=True) as mapped:

            def store(storage: Any, _: Any) -> str:
                # The storage of a tensor within a value.
                identity = storage.storage.data_ptr(), storage.storage.nbytes()
                if identity not in keys:
                    keys[identity] = str(len(self._tensors) + len(keys))
                    records.storage(keys[identity], storage.storage, mapped)
                return keys[identity]

            records.pickle(pickled(state, self, store))
            records.finish()
            records.carry_out()


#: The planned content of one file.
Content = _Safetensors | _Pickled
