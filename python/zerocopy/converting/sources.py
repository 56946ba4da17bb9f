"""The sources of ``zerocopy.convert``: one checkpoint, or several merged into one, with tensors by name."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from zerocopy import _core
from zerocopy.converting.left_out import listed
from zerocopy.converting.metadata import OF_TORCH, others_and_metadata, recorded_ties
from zerocopy.converting.plain import Opened, PlainEntry, PlainLayer, is_in_rows, plain_sources
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.names import Selection
from zerocopy.loading.formats import hdf5
from zerocopy.loading.formats.safetensors import METADATA
from zerocopy.saving.mapped_files import FileExtent

if TYPE_CHECKING:
    import torch

    from zerocopy import _C
    from zerocopy.lazy.layer import FileLayer

Keep = str | Sequence[str] | Callable[[str], bool]

# Bytes of memory for a tensor, its name and its objects in pickle's memo; measured with PyTorch 1.13.
PICKLED = 2816
COPIED = 896  # to be written without a pickle


class SourceTensor(NamedTuple):
    """A tensor to write: its file, and its name in that file."""

    layer: FileLayer | PlainLayer
    name: str

    def entry(self) -> _C.TensorEntry | PlainEntry:
        """Look up the facts in the file. They are not stored, because a hundred thousand of them take memory."""
        return self.layer.entry(self.name)

    @property
    def opened(self) -> FileLayer:
        """The file as torch reads it."""
        layer = self.layer
        assert not isinstance(layer, PlainLayer), "every source that needs torch was opened with torch"
        return layer

    def outline(self) -> tuple[str, tuple[int, ...], int]:
        """Return the name of the dtype, shape and bytes, also of a tensor that is not dense."""
        entry = self.entry()
        if entry.is_dense:
            return entry.dtype, entry.shape, entry.nbytes
        info = self.opened.info(self.name)
        return str(info.dtype).removeprefix("torch."), tuple(info.shape), info.nbytes

    def read(self) -> torch.Tensor:
        """Read the tensor. The caller has the only reference to it."""
        return self.opened.read(self.name)


class Sources:
    """Open checkpoints, and the selection of their leaves: a context manager.

    Parameters
    ----------
    paths : sequence
        As for ``zerocopy.open``.
    keep, strip_prefix, unknown, strict : optional
        As for ``zerocopy.convert``.
    dtype : torch.dtype, optional
        The dtype that floating-point tensors get when they are read.
    plain : collection of str
        Formats of files that need not be read with torch if the bytes of all their tensors can be copied.

    Attributes
    ----------
    name : str
        The name of the sources in messages.
    tensors : dict of str to SourceTensor
        The selected tensors in file order, including tied names that ``.safetensors`` metadata record.
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

    def __init__(
        self,
        paths: Sequence[Any],
        keep: Keep | None = None,
        strip_prefix: str = "",
        *,
        dtype: torch.dtype | None = None,
        unknown: str = "refuse",
        strict: bool = True,
        plain: Collection[str] = (),
    ) -> None:
        self._block = contextlib.ExitStack()
        self.tensors: dict[str, SourceTensor] = {}
        self.others: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.stubs: list[str] = []
        self.is_filtered, self._is_renamed = keep is not None, bool(strip_prefix)
        self._is_cast, self._has_stubs = dtype is not None, unknown == "stub"
        self._of_hdf5: dict[str, str] = {}
        self._descriptors: dict[str, int] = {}
        try:
            opened = self._plain(paths, plain) or [
                self._open(path, dtype=dtype, unknown=unknown, strict=strict) for path in paths
            ]
            self.name = " + ".join(each.path for each in opened)
            self._layers = [layer for each in opened for layer in each.layers]
            self.is_of_torch = any(layer.container in OF_TORCH for layer in self._layers)
            self._merge(opened)
            if self._has_stubs:
                self._leave_out_unknown()
            if keep is not None:
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
        """Return the names of all other values, including those that are left out."""
        return [*self.others, *self.stubs, *self._of_hdf5]

    @functools.cached_property
    def is_mapped(self) -> bool:
        """Whether all tensors are used unchanged where they lie in their files: on the CPU, and in their dtype."""
        entries = (tensor.opened.entry(tensor.name) for tensor in set(self.tensors.values()))
        return not self._is_cast and all(entry.is_mapped and entry.location == "cpu" for entry in entries)

    @functools.cached_property
    def objects(self) -> list[str]:
        """Names of objects that contain wanted tensors."""
        ordered = sorted(self.tensors)

        def holds_tensors(name: str) -> bool:
            prefix = f"{name}." if name else ""
            at = bisect.bisect(ordered, prefix)
            return at < len(ordered) and ordered[at].startswith(prefix)

        return [name for name in self.others if holds_tensors(name)]

    def tied(self) -> dict[SourceTensor, list[str]]:
        """Return the names of each tensor. Metadata can give a tensor a hundred thousand names, so look it up once."""
        found: dict[SourceTensor, list[str]] = defaultdict(list)
        for name, tensor in self.tensors.items():
            found[tensor].append(name)
        return found

    def left_out(self, others: Collection[str]) -> dict[str, list[str]]:
        """Return the parts that a target leaves out, by kind, if it does not hold these other leaves."""
        of_hdf5 = self._of_hdf5.items()  # of which no target holds all
        return {
            "objects of unknown classes, but for the tensors inside": self.stubs,
            "objects, but for the tensors inside": [name for name in others if name in self.objects],
            "values that are not tensors": [name for name in others if name not in self.objects],
            "HDF5 datasets of numbers that no tensor holds": hdf5.numbers_left_out(list(of_hdf5)),
            "HDF5 datasets of text": [name for name, why in of_hdf5 if why == hdf5.TEXT],
            "HDF5 attributes": [name for name, why in of_hdf5 if why == hdf5.ATTRIBUTE],
        }

    def extent_of(self, name: str, dtype: str) -> FileExtent | None:
        """Return where a file has a tensor's bytes in row order and in the target's dtype, or None."""
        tensor = self.tensors[name]
        entry, descriptor = tensor.entry(), self._descriptors.get(tensor.layer.path)
        if descriptor is None or entry.offset is None or entry.dtype != dtype:
            return None
        if entry.is_conjugate or entry.is_negative or not is_in_rows(entry.shape, entry.stride):
            return None
        return FileExtent(descriptor, entry.offset)

    def charging(self, each: int) -> Callable[[], None]:
        """Return a function that charges for one more tensor, and raises ``FormatError`` when the budget is used up.

        A pickle can call a rebuild function with one memoized tuple of arguments again and again: five bytes make a
        tensor, which takes a hundred times as much while it is pickled again.
        """
        complaint = (
            f"{shown(self.name, None)}: too many tensors for the size of the sources: convert counts {each} bytes for "
            "each, and at most 64 MiB plus 20 times the size of the sources for all. Select some of them with keep"
        )
        budget = _core.Budget(sum(layer.nbytes for layer in self._layers), complaint)
        return functools.partial(budget.charge, each)

    def charge_all(self, each: int) -> None:
        """Charge for all tensors. Tied names are one tensor."""
        charge = self.charging(each)
        for _ in set(self.tensors.values()):
            charge()

    def whole(self) -> FileLayer | None:
        """Return the only source, a file or DCP folder, if the target keeps its structure."""
        if len(self._layers) != 1 or self._is_renamed:
            return None
        (layer,) = self._layers
        is_one = layer.path == self.name  # not the one shard of an index
        return (
            None if isinstance(layer, PlainLayer) or layer.container == "safetensors" or not is_one else layer
        )

    def without_unknown(self, made: Any) -> Any:
        """Remove unknown keys and attributes from an object built of the sources, and add their names to `stubs`."""
        if self._has_stubs:
            from zerocopy.converting.unknown import remove_unknown

            self.stubs += remove_unknown(made)
        return made

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if one of the files has changed since it was opened."""
        for layer in self._layers:
            layer.require_there()

    def _plain(self, paths: Sequence[Any], containers: Collection[str]) -> list[Opened]:
        opened = plain_sources(paths, containers) or []
        for layer in (layer for source in opened for layer in source.layers):
            self._block.callback(layer.close)
            self._descriptors[layer.path] = layer.descriptor
        return opened

    def _open(self, path: Any, **how: Any) -> Opened:
        from zerocopy.lazy import opening
        from zerocopy.lazy.layer import FileLayer

        checkpoint = self._block.enter_context(opening.open(path, device="cpu", **how))
        layers = [layer for layer in checkpoint.layers if isinstance(layer, FileLayer)]
        for layer in layers:
            if layer.source is not None:
                descriptor = os.open(layer.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._block.callback(os.close, descriptor)
                layer.require_there()  # so the descriptor is of the file that the layer reads
                self._descriptors[layer.path] = descriptor
        homes = {name: layer for layer in layers for name in layer.names()}
        return Opened(checkpoint.path, layers, {name: homes[name] for name in checkpoint})

    def _merge(self, opened: Iterable[Opened]) -> None:
        doubles: dict[str, None] = {}
        for each in opened:
            for layer in each.layers:
                self._of_hdf5.update(layer.left_out())
            tensors = {name: SourceTensor(layer, name) for name, layer in each.homes.items()}
            others, metadata = others_and_metadata(each.layers)
            for dropped, kept in recorded_ties(each.path, tensors, metadata).items():
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
        from zerocopy.converting.unknown import UnknownSearch

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
                f"{self.name}: without the prefix {shown(prefix)!r} these names appear twice: {listed(doubles)}"
            )
        self.tensors = {renamed[name]: tensor for name, tensor in self.tensors.items()}
        self.others = {renamed[name]: value for name, value in self.others.items()}

    def _choose(self, keep: Keep) -> None:
        had_tensors = bool(self.tensors)
        if isinstance(keep, str):
            selection = Selection(prefix=keep)
        elif callable(keep):
            selection = Selection(predicate=keep)
        elif isinstance(keep, Iterable):
            selection = Selection(keys=keep)
        else:
            raise TypeError(
                f"expected keep to be a prefix, a list of names or a function, got {type(keep).__name__}"
            )
        names = dict.fromkeys(selection.chosen(self) or ())
        self.tensors = {name: self.tensors[name] for name in names if name in self.tensors}
        self.others = {name: self.others[name] for name in names if name in self.others}
        self.stubs = [name for name in self.stubs if name in names]
        self._of_hdf5 = {name: why for name, why in self._of_hdf5.items() if name in names}
        if not self.tensors and (had_tensors or not self.others):
            raise ValueError(f"{self.name}: the option keep selects none of the tensors")


def dtype_in_target(stored: str, wanted: torch.dtype | None) -> str:
    """Return the name of the dtype that a tensor gets if floating-point tensors are converted."""
    if wanted is None:
        return stored
    from zerocopy.lazy.conversion import cast_dtype
    from zerocopy.loading.objects import builder

    return str(cast_dtype(builder.dtype(stored), wanted)).removeprefix("torch.")
