"""The sources of ``zerocopy.convert``: one checkpoint, or several as one, with tensors by name."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch

from zerocopy import _core
from zerocopy._native import _C
from zerocopy.converting.left_out import LeftOut, listed
from zerocopy.converting.unknown import UnknownSearch, remove_unknown
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy import opening
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer
from zerocopy.lazy.selection import Selection
from zerocopy.lazy.tensor_info import TensorInfo, device_of
from zerocopy.loading import error_context
from zerocopy.loading.formats import hdf5
from zerocopy.saving.mapped_files import FileExtent

Keep = str | Sequence[str] | Callable[[str], bool]

#: The attribute of an ``OrderedDict`` that holds the metadata of a .safetensors file.
METADATA = "safetensors_metadata"

#: The framework, in the metadata of a .safetensors file: transformers and accelerate refuse some files without it.
FORMAT = {"format": "pt"}

_PICKLED = ("zip", "legacy", "hdf5")
_CPU = torch.device("cpu")
_TIE = 512  # bytes that a name more for a tensor takes
_AROUND_TIE = 6  # quotes, colon and comma in a header


class SourceTensor(NamedTuple):
    """A tensor that is to be written: the file that has it, and its name there."""

    layer: FileLayer
    name: str

    def entry(self) -> _C.TensorEntry:
        """Look up the facts in the file. They are not kept, because a hundred thousand of them take memory."""
        return self.layer.entry(self.name)

    def info(self) -> TensorInfo:
        """Look up shape and dtype, also of a tensor that is not dense."""
        return self.layer.info(self.name)

    @property
    def is_mapped(self) -> bool:
        """Return whether its bytes are used from the file: a CPU tensor's, stored as memory has them."""
        entry = self.entry()
        return entry.is_mapped and device_of(entry.location) == _CPU

    def placeholder(self) -> torch.Tensor:
        """Return a tensor that is not read yet."""
        return self.layer.tensor(self.name)

    def read(self) -> torch.Tensor:
        """Return a tensor that is read. Nobody else holds it."""
        return self.layer.read(self.name)


class Sources:
    """Open checkpoints, and which of their leaves are wanted: a context manager.

    Parameters
    ----------
    paths : sequence
        As for ``zerocopy.open``.
    keep, strip_prefix : optional
        As for ``zerocopy.convert``.
    **how
        As for ``zerocopy.open``.

    Attributes
    ----------
    name : str
        The name of the sources in messages.
    tensors : dict of str to SourceTensor
        All that are wanted, in file order; tied names that ``.safetensors`` metadata record are among them.
    others : dict of str to object
        Leaves that are not tensors.
    stubs : list of str
        Names of values, keys and attributes that are left out because they are or hold objects of unknown classes
        (``unknown="stub"``). Tensors inside them are among `tensors`.
    is_filtered : bool
        Whether leaves are left out.
    is_of_torch : bool
        Whether a source is a file of ``torch.save``.
    metadata : dict of str to object
        Metadata of the files, beside their leaves.
    """

    def __init__(self, paths: Sequence[Any], keep: Keep | None, strip_prefix: str = "", **how: Any) -> None:
        self._block = contextlib.ExitStack()
        self.others: dict[str, Any] = {}
        self.stubs: list[str] = []
        self.is_filtered, self._is_renamed = keep is not None, bool(strip_prefix)
        self._is_cast = how.get("dtype") is not None
        self._has_stubs = how.get("unknown") == "stub"
        try:
            self._buffers = [path for path in paths if not isinstance(path, (str, os.PathLike))]
            self.opened = [self._block.enter_context(opening.open(path, **how)) for path in paths]
            self.name = " + ".join(each.path for each in self.opened)
            self._files = {
                layer.path: (layer, self._opened_file(layer))
                for each in self.opened
                for layer in _file_layers(each)
                if Path(
                    layer.path
                ).is_file()  # a folder of torch.distributed.checkpoint opens its files later
            }
            self.is_of_torch = any(
                layer.container in _PICKLED for each in self.opened for layer in _file_layers(each)
            )
            self._merge()
            if self._has_stubs:
                self._leave_out_unknown()
            self._choose(keep)
            if not (self.tensors or self.others):
                raise ValueError(f"{self.name}: nothing to write: found no values of known classes")
            if strip_prefix:
                self._strip(strip_prefix)
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
        """Return the names of all else, also of what is left out."""
        return [*self.others, *self.stubs, *self._of_hdf5]

    @functools.cached_property
    def is_mapped(self) -> bool:
        """Whether all tensors are used where they lie in their files, as they are."""
        return not self._is_cast and all(tensor.is_mapped for tensor in set(self.tensors.values()))

    def require_tensors(self) -> None:
        """Raise ``ValueError`` if no tensor is chosen."""
        if not self.tensors:
            raise ValueError(f"{self.name}: nothing to write: found no tensor")

    @functools.cached_property
    def objects(self) -> list[str]:
        """Names of other leaves inside which there are tensors that are wanted."""
        ordered = sorted(self.tensors)

        def holds_tensors(name: str) -> bool:
            prefix = f"{name}." if name else ""
            at = bisect.bisect(ordered, prefix)
            return at < len(ordered) and ordered[at].startswith(prefix)

        return [name for name in self.others if holds_tensors(name)]

    def left_out(self, others: Collection[str]) -> LeftOut:
        """Return what a target leaves out that does not hold these other leaves. No target holds all of HDF5."""
        found = LeftOut()
        found.add("objects of unknown classes, but for the tensors inside", self.stubs)
        found.add("objects, but for the tensors inside", (name for name in others if name in self.objects))
        found.add("values that are not tensors", (name for name in others if name not in self.objects))
        numbers = hdf5.numbers_left_out(list(self._of_hdf5.items()))
        found.add("HDF5 datasets of numbers that no tensor holds", numbers)
        for kind, why in (("HDF5 datasets of text", hdf5.TEXT), ("HDF5 attributes", hdf5.ATTRIBUTE)):
            found.add(kind, (name for name, said in self._of_hdf5.items() if said == why))
        return found

    def place_of(self, name: str) -> FileExtent | None:
        """Return where a tensor's first byte is; None where no byte of a file is the tensor's."""
        tensor = self.tensors[name]
        offset = tensor.entry().offset
        _, descriptor = self._files.get(tensor.layer.path, (None, None))
        return None if descriptor is None or offset is None else FileExtent(descriptor, offset)

    def places(self) -> list[Any]:
        """Return the paths of all files and folders, and the sources that are not paths."""
        layers = (layer for each in self.opened for layer in _file_layers(each))
        return [*dict.fromkeys(one.path for one in layers if Path(one.path).exists()), *self._buffers]

    def archives(self) -> list[tuple[int, str]]:
        """Return the zip archives among the files: an open descriptor, and the path."""
        return [(number, path) for path, (layer, number) in self._files.items() if layer.container == "zip"]

    def whole(self) -> FileLayer | None:
        """Return the one file, or folder of torch.distributed.checkpoint, whose structure the target keeps."""
        layers = [layer for each in self.opened for layer in _file_layers(each)]
        if len(layers) != 1 or layers[0].container == "safetensors":
            return None
        is_one = layers[0].path == self.name  # not the one shard of an index
        return layers[0] if is_one and not self._is_renamed else None

    def without_unknown(self, made: Any) -> Any:
        """Remove unknown keys and attributes from an object built of the sources, and add their names to `stubs`."""
        if self._has_stubs:
            self.stubs += remove_unknown(made)
        return made

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if one of the files is not what it was when it was opened."""
        for layer, _ in self._files.values():
            layer.require_there()

    def _opened_file(self, layer: FileLayer) -> int:
        descriptor = os.open(layer.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._block.callback(os.close, descriptor)
        layer.require_there()  # so the descriptor is of the file that the layer reads
        return descriptor

    def _merge(self) -> None:
        self.tensors: dict[str, SourceTensor] = {}
        self.metadata: dict[str, Any] = {}
        self._of_hdf5: dict[str, str] = {}
        doubles: dict[str, None] = {}
        for each in self.opened:
            for layer in _file_layers(each):
                self._of_hdf5.update(layer.left_out())
            tensors = {name: SourceTensor(cast(FileLayer, each.layer_of(name)), name) for name in each}
            others, metadata = _others_and_metadata(each)
            for dropped, kept in _recorded_ties(each.path, tensors, metadata).items():
                tensors[dropped] = tensors[kept]
                del metadata[dropped]
            leaves = itertools.chain(tensors, others)
            doubles |= {name: None for name in leaves if name in self.tensors or name in self.others}
            doubles |= {
                name: None for name in metadata if self.metadata.get(name, metadata[name]) != metadata[name]
            }
            self.tensors |= tensors
            self.others |= others
            self.metadata |= metadata
        if doubles:
            raise UnsupportedError(
                f"{self.name}: expected each name in one source, found these in two: {listed(doubles)}"
            )

    def _leave_out_unknown(self) -> None:
        search = UnknownSearch()
        unknown = {name: found for name, value in self.others.items() if (found := search.first_in(value))}
        for name in unknown:
            del self.others[name]
        self.stubs += unknown
        for name in [name for name, value in self.metadata.items() if search.first_in((name, value))]:
            del self.metadata[name]
            self.stubs.append(f"{METADATA}.{name}")
        self.is_filtered = self.is_filtered or bool(unknown)

    def _strip(self, prefix: str) -> None:
        renamed = {name: name.removeprefix(prefix) for name in (*self.tensors, *self.others)}
        if not any(map(str.startswith, renamed, itertools.repeat(prefix))):
            raise ValueError(f"{self.name}: no name begins with {shown(prefix)!r}")
        counts = Counter(renamed.values())
        if doubles := [name for name, count in counts.items() if count > 1]:
            raise UnsupportedError(
                f"{self.name}: without the prefix {shown(prefix)!r} these names are there twice: {listed(doubles)}"
            )
        self.tensors = {renamed[name]: tensor for name, tensor in self.tensors.items()}
        self.others = {renamed[name]: value for name, value in self.others.items()}

    def _choose(self, keep: Keep | None) -> None:
        if keep is None:
            return
        had_tensors = bool(self.tensors)
        if isinstance(keep, str):
            wanted = Selection(prefix=keep).chosen(self)
        elif callable(keep):
            wanted = Selection(predicate=keep).chosen(self)
        elif not isinstance(keep, Iterable):
            raise TypeError(
                f"expected keep to be a prefix, a list of names or a function, got {type(keep).__name__}"
            )
        else:
            wanted = Selection(keys=keep).chosen(self)
        names = dict.fromkeys(wanted or ())
        self.tensors = {name: self.tensors[name] for name in names if name in self.tensors}
        self.others = {name: self.others[name] for name in names if name in self.others}
        self.stubs = [name for name in self.stubs if name in names]
        self._of_hdf5 = {name: why for name, why in self._of_hdf5.items() if name in names}
        if not self.tensors and (had_tensors or not self.others):
            raise ValueError(f"{self.name}: the option keep selects none of the tensors")


def _file_layers(opened: Checkpoint) -> Iterator[FileLayer]:
    return (layer for layer in opened.layers if isinstance(layer, FileLayer))


def _others_and_metadata(opened: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the leaves that are not tensors, and the metadata of the files."""
    others: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for layer in _file_layers(opened):
        others |= layer.others()
        metadata |= layer.attached()
        if layer.container in _PICKLED:  # it may have been converted from a .safetensors file
            # One leaf is enough to have the attributes of the root.
            first = [*layer.names()[:1], *layer.other_names()][:1]
            attached = getattr(layer.build(first or None), METADATA, None)
            metadata |= attached if isinstance(attached, dict) else {}
    return others, {name: value for name, value in metadata.items() if name not in others}


def _recorded_ties(path: str, tensors: dict[str, SourceTensor], metadata: dict[str, Any]) -> dict[str, str]:
    """Return the names that ``safetensors.torch.save_model`` left out, and those that it kept."""
    ties = {
        name: kept
        for name, kept in metadata.items()
        if isinstance(kept, str) and kept in tensors and name not in tensors and name not in FORMAT
    }
    spelled = sum(len(name) + len(kept) + _AROUND_TIE for name, kept in ties.items())
    complaint = f"expected fewer tied names for the size of its metadata, found {len(ties)}"
    with error_context.naming(path):
        _core.Budget(spelled, complaint).charge(_TIE * len(ties))
    return ties
