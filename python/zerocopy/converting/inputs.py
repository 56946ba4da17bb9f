"""What ``zerocopy.convert`` reads: one checkpoint or several as one, its tensors by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy import checkpoint, selection
from zerocopy.lazy.layer import FileLayer, TensorInfo
from zerocopy.loading.objects.stubs import Stub
from zerocopy.saving.mapped_files import Place

Keep = str | Sequence[str] | Callable[[str], bool]

#: The attribute of an ``OrderedDict`` that holds the metadata of a .safetensors file.
METADATA = "safetensors_metadata"

_PICKLED = ("zip", "legacy", "hdf5")
_MOST_LISTED = 10


class Reference(NamedTuple):
    """A tensor that is to be written: the name it has in a checkpoint, and the checkpoint."""

    checkpoint: checkpoint.Checkpoint
    name: str


class Sources:
    """Open checkpoints, and which of their leaves are wanted: a context manager.

    Parameters
    ----------
    paths : sequence
        What ``zerocopy.open`` takes.
    keep : optional
        As for ``zerocopy.convert``.
    **how
        As for ``zerocopy.open``.

    Attributes
    ----------
    name : str
        What messages call them.
    tensors : dict of str to Reference
        All that are wanted, in file order; tied names that ``.safetensors`` metadata record are among them.
    others : dict of str to object
        The leaves that are no tensors.
    stubs : list of str
        The leaves that are left out, since their classes are unknown (``unknown="stub"``).
    is_filtered : bool
        Whether leaves are left out.
    metadata : dict of str to object
        What files say beside their leaves.
    """

    def __init__(self, paths: Sequence[Any], keep: Keep | None, **how: Any) -> None:
        self._block = contextlib.ExitStack()
        self._infos: dict[str, TensorInfo] = {}
        self.others: dict[str, Any] = {}
        self.is_filtered = keep is not None
        try:
            self.opened = [self._block.enter_context(checkpoint.open(path, **how)) for path in paths]
            self.name = " + ".join(each.path for each in self.opened)
            self._files = {
                layer.path: (layer, self._opened_file(layer))
                for each in self.opened
                for layer in _file_layers(each)
                if Path(
                    layer.path
                ).is_file()  # folders of torch.distributed.checkpoint open their files later
            }
            self._merge()
            self.stubs = [name for name, value in self.others.items() if isinstance(value, Stub)]
            self.others = {name: value for name, value in self.others.items() if not isinstance(value, Stub)}
            self.is_filtered = self.is_filtered or bool(self.stubs)
            self._choose(keep)
        except BaseException:
            self._block.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self.tensors)

    def other_names(self) -> list[str]:
        """Return the names of the other leaves."""
        return list(self.others)

    def info(self, name: str) -> TensorInfo:
        """Return what the file says of a tensor."""
        found = self._infos.get(name)
        if found is None:
            reference = self.tensors[name]
            found = self._infos[name] = reference.checkpoint.info(reference.name)
        return found

    def storage_of(self, name: str) -> tuple[str, str] | None:
        """Return what tensors over one storage have in common; None for what is not made of one storage."""
        storage = self.info(name).storage
        return (self._layer_of(name).path, storage) if storage else None

    def begin(self, name: str) -> int:
        """Return where a tensor begins, in bytes, compared with others over its storage."""
        return self._layer_of(name).begin(self.tensors[name].name)

    def flags(self, name: str) -> tuple[bool, bool]:
        """Return whether a tensor over a storage shows conjugates, and negatives, of what is there."""
        return self._layer_of(name).flags(self.tensors[name].name)

    def is_mapped(self, name: str) -> bool:
        """Return whether a tensor lies in a mapping of its file, and takes no memory of its own."""
        return self._layer_of(name).is_mapped(self.tensors[name].name)

    def storage_nbytes(self, name: str) -> int:
        """Return the bytes of the storage that a tensor is over."""
        return self._layer_of(name).storage_nbytes(self.tensors[name].name)

    def placeholder(self, name: str) -> torch.Tensor:
        """Return a tensor that is not read yet."""
        reference = self.tensors[name]
        return reference.checkpoint[reference.name]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor that is read. Nobody else holds it."""
        reference = self.tensors[name]
        return reference.checkpoint.get_tensor(reference.name)

    def place_of(self, name: str) -> Place | None:
        """Return where a tensor's first byte is; None where no byte of a file is the tensor's."""
        offset = self.info(name).offset
        _, descriptor = self._files.get(self._layer_of(name).path, (None, None))
        return None if descriptor is None or offset is None else Place(descriptor, offset)

    def path_of(self, name: str) -> str:
        """Return the path of the file that a tensor is in."""
        return self._layer_of(name).path

    def whole(self) -> FileLayer | None:
        """Return the one file, or folder of torch.distributed.checkpoint, that has a structure to be kept."""
        layers = [layer for each in self.opened for layer in _file_layers(each)]
        if len(layers) != 1 or layers[0].container == "safetensors":
            return None
        return layers[0] if layers[0].path == self.name else None  # not the one shard of an index

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if one of the files is not what it was when it was opened."""
        for layer, _ in self._files.values():
            layer.require_there()

    def _layer_of(self, name: str) -> FileLayer:
        opened, name = self.tensors[name]
        return next(layer for layer in reversed(list(_file_layers(opened))) if name in layer)

    def _opened_file(self, layer: FileLayer) -> int:
        descriptor = os.open(layer.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._block.callback(os.close, descriptor)
        layer.require_there()  # so the descriptor is of the file that the layer reads
        return descriptor

    def _merge(self) -> None:
        self.tensors: dict[str, Reference] = {}
        self.metadata: dict[str, Any] = {}
        doubles: dict[str, None] = {}
        for each in self.opened:
            tensors = {name: Reference(each, name) for name in each}
            others, metadata = _others_and_metadata(each)
            for dropped, kept in _recorded_ties(tensors, metadata).items():
                tensors[dropped] = tensors[kept]
                del metadata[dropped]
            leaves = tensors | others
            doubles |= {name: None for name in leaves if name in self.tensors or name in self.others}
            doubles |= {
                name: None for name in metadata if self.metadata.get(name, metadata[name]) != metadata[name]
            }
            self.tensors |= tensors
            self.others |= others
            self.metadata |= metadata
        if doubles:
            raise UnsupportedError(f"{self.name}: the sources have these names twice: {listed(doubles)}")

    def _choose(self, keep: Keep | None) -> None:
        if keep is None:
            return
        had_some = bool(self.tensors)
        if isinstance(keep, str):
            wanted = selection.chosen(self, None, keep, None)
        elif callable(keep):
            wanted = selection.chosen(self, None, None, keep)
        else:
            wanted = selection.chosen(self, keep, None, None)
        self.tensors = {name: self.tensors[name] for name in wanted or () if name in self.tensors}
        self.others = {name: self.others[name] for name in wanted or () if name in self.others}
        if had_some and not self.tensors:
            raise ValueError(f"{self.name}: keep leaves no tensor")


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first ten of them."""
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(shown(name) for name in names[:_MOST_LISTED]) + more


def _file_layers(opened: checkpoint.Checkpoint) -> Iterator[FileLayer]:
    return (layer for layer in opened.layers if isinstance(layer, FileLayer))


def _others_and_metadata(opened: checkpoint.Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the leaves that are no tensors, and what files say beside their leaves."""
    said = opened.metadata()
    leaves = {name for layer in opened.layers for name in layer.other_names()}
    metadata = {name: value for name, value in said.items() if name not in leaves}
    for layer in _file_layers(opened):
        if layer.container in _PICKLED:  # it may have been converted from a .safetensors file
            attached = getattr(layer.build(None), METADATA, None)
            metadata |= attached if isinstance(attached, dict) else {}
    return {name: said[name] for name in said if name in leaves}, metadata


def _recorded_ties(tensors: dict[str, Reference], metadata: dict[str, Any]) -> dict[str, str]:
    """Return the names that ``safetensors.torch.save_model`` left out, and those that it kept."""
    return {
        name: kept
        for name, kept in metadata.items()
        if isinstance(kept, str) and kept in tensors and name not in tensors
    }
