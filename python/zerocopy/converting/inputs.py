"""The sources of ``zerocopy.convert``: one checkpoint, or several as one, with tensors by name."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch

from zerocopy import _core, _torch, display
from zerocopy._native import _C
from zerocopy.converting.unknown import UnknownSearch, remove_unknown
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy import opening
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer
from zerocopy.lazy.selection import Selection
from zerocopy.lazy.tensor_info import TensorInfo, device_of
from zerocopy.loading import error_context
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


class Facts(NamedTuple):
    """The facts that a file states about a tensor.

    Attributes
    ----------
    info : TensorInfo
        Shape, dtype, strides, bytes.
    entry : TensorEntry
        The further facts that the core has.
    path : str
        The file.
    """

    info: TensorInfo
    entry: _C.TensorEntry
    path: str

    @property
    def storage(self) -> tuple[str, str] | None:
        """A value that tensors over one storage share. None if the tensor does not have one storage."""
        # That of a .safetensors file may be called "".
        has_one = self.info.storage or self.entry.offset is not None
        return (self.path, self.info.storage) if has_one else None

    @property
    def begin(self) -> int:
        """The byte at which it begins in its file, or in its storage where no file has it as it is."""
        in_storage = self.entry.storage_offset * _torch.element_size(self.info.dtype)
        return in_storage if self.entry.offset is None else self.entry.offset


class SourceTensor:
    """A tensor that is to be written.

    Parameters
    ----------
    layer : FileLayer
        The file that has it.
    name : str
        Its name there.
    """

    __slots__ = "_name", "layer"

    def __init__(self, layer: FileLayer, name: str) -> None:
        self.layer, self._name = layer, name

    def facts(self) -> Facts:
        """Look up the facts in the file. The facts are not kept, because a hundred thousand of them take memory."""
        entry = self.layer.entry(self._name)
        return Facts(self.layer.info_from(self._name, entry), entry, self.layer.path)

    @property
    def is_mapped(self) -> bool:
        """Return whether its bytes are used from the file: a CPU tensor's, stored as memory has them."""
        entry = self.layer.entry(self._name)
        return entry.is_mapped and device_of(entry.location) == _CPU

    def placeholder(self) -> torch.Tensor:
        """Return a tensor that is not read yet."""
        return self.layer.tensor(self._name)

    def read(self) -> torch.Tensor:
        """Return a tensor that is read. Nobody else holds it."""
        return self.layer.read(self._name)


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
        (``unknown="stub"``).
    is_filtered : bool
        Whether leaves are left out.
    is_renamed : bool
        Whether names lack a prefix that they have in the sources.
    is_mapped : bool
        Whether :meth:`are_mapped` found that all tensors are used where they lie in their files.
    is_of_torch : bool
        Whether a source is a file of ``torch.save``.
    metadata : dict of str to object
        Metadata of the files, beside their leaves.
    """

    def __init__(self, paths: Sequence[Any], keep: Keep | None, strip_prefix: str = "", **how: Any) -> None:
        self._block = contextlib.ExitStack()
        self.others: dict[str, Any] = {}
        self.stubs: list[str] = []
        self.is_filtered, self.is_renamed, self.is_mapped = keep is not None, bool(strip_prefix), False
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
        """Return the names of the other leaves."""
        return list(self.others)

    def are_mapped(self) -> bool:
        """Look whether all tensors are used where they lie in their files, and note the answer."""
        self.is_mapped = all(tensor.is_mapped for tensor in set(self.tensors.values()))
        return self.is_mapped

    def place_of(self, name: str) -> FileExtent | None:
        """Return where a tensor's first byte is; None where no byte of a file is the tensor's."""
        tensor = self.tensors[name]
        offset = tensor.facts().info.offset
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
        """Return the one file, or folder of torch.distributed.checkpoint, that has a structure to be kept."""
        layers = [layer for each in self.opened for layer in _file_layers(each)]
        if len(layers) != 1 or layers[0].container == "safetensors":
            return None
        return layers[0] if layers[0].path == self.name else None  # not the one shard of an index

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
        doubles: dict[str, None] = {}
        for each in self.opened:
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
        if list(unknown) == list(self.others) == [""] and not self.tensors:
            found = getattr(unknown[""], "callable", unknown[""])
            raise UnsupportedError(
                f"{self.name}: the whole file is one object of an unknown class, {found}, whose "
                "tensors cannot be named: convert its state_dict instead"
            )
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
        had_some = bool(self.tensors)
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
        self.tensors = {name: self.tensors[name] for name in wanted or () if name in self.tensors}
        self.others = {name: self.others[name] for name in wanted or () if name in self.others}
        if had_some and not self.tensors:
            raise ValueError(f"{self.name}: the option keep selects none of the tensors")


def listed(names: Iterable[str]) -> str:
    """Return names of a file for a message, the first ten of them."""
    return display.listed(map(shown, names), 10)


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
