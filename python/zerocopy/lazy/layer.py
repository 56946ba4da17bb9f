"""A layer of a checkpoint: tensors by name, mostly those of one file.

A checkpoint is one layer, or several on top of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast
from weakref import WeakValueDictionary

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import context
from zerocopy.errors import ClosedError
from zerocopy.lazy.file import LazyFile
from zerocopy.lazy.placeholder import materialized
from zerocopy.lazy.slice import Slice
from zerocopy.lazy.tensor_info import TensorInfo, Tied, device_of, info_of, shape_of, ties
from zerocopy.loading import error_context
from zerocopy.loading.extents import Box, Geometry, TensorExtents
from zerocopy.loading.formats import dcp_metadata
from zerocopy.loading.objects import builder
from zerocopy.loading.objects.stubs import Stub
from zerocopy.loading.readers import dcp_folder
from zerocopy.process.fork_safe import ForkSafeLock


class FileLayer:
    """One open file, and the selection of its leaves: the names `chosen`, or None for all."""

    def __init__(self, file: LazyFile, chosen: Iterable[str] | None = None) -> None:
        self.path = file.name
        self._file = file
        self._chosen = None if chosen is None else frozenset(chosen)
        self._alive: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()
        # Threads that ask for the same tensor get one object. The lock is reentrant, for classes that files may name.
        self._making = ForkSafeLock()

    @property
    def container(self) -> str:
        """The file's format."""
        return self._native.container

    @property
    def is_nested(self) -> bool:
        """Return whether the file holds a pickled object. Other files hold only tensors by name."""
        return self.container in ("zip", "legacy")

    @property
    def source(self) -> str | None:
        """The absolute path of the file whose bytes are those of the tensors; None for anything else."""
        return self._file.source

    @property
    def nbytes(self) -> int:
        """The bytes of the file, and those that its compressed records inflate to."""
        return self._native.nbytes

    def folder(self) -> dcp_metadata.Folder:
        """Return the contents of a DCP folder's metadata; TypeError for another kind of checkpoint."""
        native: Any = self._native
        if not isinstance(native, dcp_folder.Files):
            raise TypeError(f"{self.path} is not a folder of torch.distributed.checkpoint")
        return native.folder

    @property
    def closed(self) -> bool:
        """Return whether :meth:`close` was called."""
        return self._file.native.closed

    def close(self) -> None:
        """Close the file. Tensors that were made of it keep their mapping."""
        self._file.native.close()

    def require_there(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file was moved, replaced or changed since it was opened."""
        self.current_path()

    def current_path(self) -> str:
        """Return the path of the file, after :meth:`require_there`."""
        self._require_open()
        return self._file.current_path()

    def build(
        self, chosen: Iterable[str] | None, *, read: bool = False, charge: Callable[[], None] | None = None
    ) -> Any:
        """Return the saved object with the chosen leaves; None stands for all.

        Its tensors are placeholders, or real tensors if `read` is true. A mapped tensor takes less memory than its
        placeholder. `charge` is called before each tensor is made, and may raise.
        """
        objects = self._file.objects(read=read, charge=charge)
        with error_context.naming(self.path):
            return self._native.build(objects, None if chosen is None else list(chosen))

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and self._native.find(name) >= 0
            and self._is_chosen(name)
            and name not in self._stubs
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of tensors, in file order."""
        self._require_open()
        return self._names

    def other_names(self) -> list[str]:
        """Return the names of leaves that are not tensors, in file order."""
        names = [*self._native.other_names(), *self._stubs]
        return [name for name in names if self._is_chosen(name)]

    def others(self) -> dict[str, Any]:
        """Return the leaves that are not tensors, in file order."""
        names = self.other_names()
        with error_context.naming(self.path):
            return dict(zip(names, self._native.leaves(names, self._file.objects()), strict=True))

    def left_out(self) -> list[tuple[str, str]]:
        """Return the parts of the file that are neither tensors nor other leaves, each with the reason."""
        return self._native.left_out

    def attached(self) -> dict[str, Any]:
        """Return the metadata that the file has beside its leaves."""
        with error_context.naming(self.path):
            return self._native.metadata(self._file.objects()) or {}

    def metadata(self) -> dict[str, Any]:
        """Return the metadata that the file has beside its tensors."""
        said = self.attached()
        said |= self.others()
        return said

    def tensor(self, name: str) -> torch.Tensor:
        """Return a placeholder: the existing one, if it is alive."""
        self._require_open()
        with self._making.held():
            made = self._alive.get(name)
            if made is None:
                made = self._alive[name] = self._leaf(name)
            return made

    def read(self, name: str) -> torch.Tensor:
        """Return the real tensor. The caller has the only reference to it."""
        native = self._native
        with error_context.naming(self.path):
            return cast(torch.Tensor, materialized(native.leaf(name, self._file.objects(read=True))))

    def slice(self, name: str) -> Slice:
        """Return an object that reads parts of a tensor."""
        whole, index, entry = self.tensor(name), self._native.find(name), self.entry(name)
        if not entry.is_dense:
            return Slice(whole)
        geometry = Geometry(entry.storage_offset, entry.shape, entry.stride)
        return Slice(whole, geometry, lambda part: self._part(index, part))

    def extents(self, name: str, box: Box | None = None) -> TensorExtents | None:
        """Return where a tensor's bytes lie unchanged in a file; None if they do not (deflated, sparse, ...)."""
        self._require_open()
        with error_context.naming(self.path):
            return self._file.extents(name, box)

    def wanted(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.device]:
        """Return the dtype and device that tensors of a dtype get when they are read."""
        return self._file.options.converted(dtype, "cpu")

    def info(self, name: str) -> TensorInfo:
        """Return the facts that the file states about a tensor."""
        return self.info_from(name, self.entry(name))

    def infos(self) -> list[TensorInfo]:
        """Return the facts that the file states about each tensor, in file order."""
        native, wanted = self._native, frozenset(self._names)
        native.expect_records()  # so the disk reads them together
        places = [(i, name) for i, name in enumerate(native.names()) if name in wanted]
        with error_context.naming(self.path):
            return [self.info_from(name, native.entry(i)) for i, name in places]

    def info_from(self, name: str, entry: _C.TensorEntry) -> TensorInfo:
        """Return the facts about a tensor whose entry is known."""
        if not entry.is_dense:
            return info_of(name, self.tensor(name))
        return TensorInfo(
            name,
            torch.Size(entry.shape),
            builder.dtype(entry.dtype),
            entry.stride,
            entry.nbytes,
            entry.offset,
            entry.storage,
            device_of(entry.location),
            entry.requires_grad,
            over.beside(name) if (over := self._over_storage.get(entry.storage)) else (),
        )

    def shapes(self) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
        """Yield name, shape and dtype of each tensor. Quicker than :meth:`info`."""
        for name, entry in zip(self._native.names(), self._native.outlines(), strict=True):
            if self._is_chosen(name):
                if entry.is_dense:
                    yield name, torch.Size(entry.shape), builder.dtype(entry.dtype)
                else:
                    info = self.info(name)
                    yield name, info.shape, info.dtype

    def entry(self, name: str) -> _C.TensorEntry:
        """Return the facts about a tensor as the core has them."""
        native = self._native
        with error_context.naming(self.path, weights_only=True):
            return native.entry(native.find(name))

    def _leaf(self, name: str) -> Any:
        native = self._native
        with error_context.naming(self.path):
            return native.leaf(name, self._file.objects())

    def _part(self, index: int, part: Geometry) -> torch.Tensor:
        native = self._native
        with error_context.naming(self.path), context.advising_device():
            return native.part(index, *part)

    @property
    def _native(self) -> _C.Lazy:
        self._require_open()
        return self._file.native

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path} is closed")

    def _is_chosen(self, name: str) -> bool:
        return self._chosen is None or name in self._chosen

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names, stubs = self._native.names(), self._stubs
        if self._chosen is None and not stubs:
            return tuple(names)
        return tuple(name for name in names if self._is_chosen(name) and name not in stubs)

    @cached_property
    def _stubs(self) -> dict[str, None]:
        """Names of tensors for which this release of torch has no safe function: stubs replace them."""
        if self._file.options.load.unknown != "stub" or self.container == "distributed":
            return {}
        outlines = zip(self._native.names(), self._native.outlines(), strict=True)
        scattered = [name for name, entry in outlines if not entry.is_dense]
        return {name: None for name in scattered if isinstance(self._leaf(name), Stub)}

    @cached_property
    def _over_storage(self) -> dict[str, Tied]:
        """Names of tensors by storage, for storages with several tensors."""
        outlines = zip(self._native.names(), self._native.outlines(), strict=True)
        return ties((entry.storage, name) for name, entry in outlines if self._is_chosen(name))


class TensorsLayer:
    """A mapping of tensors that the program passed, as a layer."""

    container = "memory"
    closed = False

    def __init__(self, tensors: Mapping[Any, Any]) -> None:
        self.path = f"<{type(tensors).__name__}>"
        self._tensors = dict(tensors)
        for name, tensor in self._tensors.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                kinds = f"{type(name).__name__} to {type(tensor).__name__}"
                raise TypeError(f"expected a mapping of str to Tensor, got a mapping of {kinds}")

    def close(self) -> None:
        """Do nothing: the tensors are the program's."""

    def require_there(self) -> None:
        """Do nothing: a layer does not have a file."""

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def names(self) -> tuple[str, ...]:
        """Return the names of all."""
        return tuple(self._tensors)

    def other_names(self) -> list[str]:
        """Return nothing: all are tensors."""
        return []

    def metadata(self) -> dict[str, Any]:
        """Return nothing: all are tensors."""
        return {}

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor as it is."""
        return self._tensors[name]

    def slice(self, name: str) -> Slice:
        """Return an object that indexes a tensor, like the slices of a file."""
        return Slice(self.tensor(name))

    def shapes(self) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
        """Yield name, shape and dtype of each."""
        for name, tensor in self._tensors.items():
            yield name, shape_of(tensor), tensor.dtype

    def extents(self, name: str, box: Box | None = None) -> None:
        """Return nothing: the tensors are in memory."""

    def info(self, name: str) -> TensorInfo:
        """Return the facts about a tensor."""
        tensor = self.tensor(name)
        info = info_of(name, tensor)
        if not _has_storage(tensor):
            return info
        over = self._over_storage.get(_storage_of(tensor))
        return info._replace(stride=tensor.stride(), tied=over.beside(name) if over else ())

    def infos(self) -> list[TensorInfo]:
        """Return the facts about each tensor."""
        return [self.info(name) for name in self._tensors]

    @cached_property
    def _over_storage(self) -> dict[int, Tied]:
        """Names of tensors by their storage."""
        found = self._tensors.items()
        return ties((_storage_of(tensor), name) for name, tensor in found if _has_storage(tensor))


def _has_storage(tensor: torch.Tensor) -> bool:
    """Return False for sparse tensors and subclasses, and for lazy tensors, which a look-up would load."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _storage_of(tensor: torch.Tensor) -> int:
    return _torch.identity(_torch.untyped_of(tensor))


Layer = FileLayer | TensorsLayer
