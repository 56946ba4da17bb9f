"""The unpickler for files that may run code (``weights_only=False``)."""

from __future__ import annotations

import _pickle
import contextlib
import functools
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import sparse
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading import inputs
from zerocopy.loading.device import staging
from zerocopy.loading.objects import allowlist, rebuild
from zerocopy.loading.readers import legacy

PickleUnpickler = _pickle.Unpickler  # programs replace the one in pickle


class FindClassMixin:
    """``find_class`` for any ``Unpickler`` class."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function a file names; torch's tensor builders are replaced by faster ones."""
        storage_type = _torch.storage_type_or_none(name)
        if storage_type is not None:
            return storage_type
        module = "torch._tensor" if module == "torch.tensor" else module  # renamed after 1.7
        try:
            found = super().find_class(module, name)  # type: ignore[misc]
        except AttributeError:
            if f"{module}.{name}" in allowlist.OF_OTHER_RELEASES:
                return allowlist.OF_OTHER_RELEASES[f"{module}.{name}"]
            raise
        # A program's own find_class may return something else, which stays.
        return _FASTER[name](found) if name in _FASTER and found is _OF_TORCH[name] else found


class StorageUnpicklerMixin(FindClassMixin):
    """``persistent_load`` and ``find_class`` for any ``Unpickler`` class: storages come from an archive.

    :class:`Unpickler` mixes it into ``pickle.Unpickler``. ``pickle_module=`` mixes it into that module's class.
    """

    def __init__(self, file: Any, archive: Any, *, map_location: Any = None, **pickle_args: Any) -> None:
        super().__init__(file, **pickle_args)  # type: ignore[call-arg]
        self.archive: _C.Archive = (
            archive if isinstance(archive, _C.Archive) else inputs.open_archive(archive)
        )
        is_legacy = self.archive.container == "legacy"
        self._restore, self._cpu_as_is = staging.restoring(map_location, is_legacy=is_legacy)
        self._pickle_args = pickle_args
        self._storages: dict[tuple[str, str], Any] = {}

    def load(self) -> Any:
        """Return the object. Its sparse tensors are checked, as by ``torch.load``."""
        with sparse.checking():
            return super().load()  # type: ignore[misc]

    def persistent_load(self, pid: Any) -> Any:
        """Return the ``TypedStorage`` that a persistent id ``('storage', type, key, location, numel)`` names.

        Its bytes lie in the file's mapping wherever they are stored as they are. Legacy files add a sixth item, None
        or the part of the storage that is meant, and ids of modules: the class and its source, which is not compared.
        """
        is_legacy = self.archive.container == "legacy"
        kind, *rest = pid if isinstance(pid, tuple) and pid else (None,)
        if is_legacy and _torch.text(kind) == "module" and rest:
            return rest[0]
        if _torch.text(kind) != "storage" or len(rest) != (5 if is_legacy else 4):
            raise pickle.UnpicklingError(f"persistent id {str(pid)[:200]} is not that of a storage")
        storage_type, key, location, numel, *view = rest
        storage = self._storage(storage_type, _torch.text(key), _torch.text(location), numel)
        if view and view[0] is not None:
            view_key, offset, size = view[0]
            part = _torch.storage_view(storage, offset, size)
            return self._storages.setdefault((_torch.text(view_key), ""), part)
        return storage

    def read_storages(self) -> None:
        """Read the data after the object of a legacy file, even if the object has no storage."""
        if self.archive.container == "legacy":
            # A list in protocol 0 can only be an empty one.
            with contextlib.suppress(UnsupportedError):
                _ = self._legacy_storages

    def _storage(self, storage_type: Any, key: str, location: str, numel: int) -> Any:
        storage_class = _torch.storage_class_name(storage_type)
        known = (key, storage_class if numel == 0 else "")  # empty ones of several types share a key
        if known not in self._storages:
            untyped = storage_type is torch.UntypedStorage
            if untyped and self.archive.big_endian:
                raise UnsupportedError(
                    "a big-endian storage without a type: load it with weights_only=True, which knows its byte order"
                )
            storage = self._stored(key, storage_class, numel)
            if self._restore and not (self._cpu_as_is and location == "cpu"):
                storage = self._restore(storage, location)
            self._storages[known] = _torch.typed_storage(
                storage, torch.uint8 if untyped else storage_type.dtype
            )
        return self._storages[known]

    def _stored(self, key: str, storage_class: str, numel: int) -> torch.UntypedStorage:
        if self.archive.container == "legacy":
            return self._legacy_storages[key]
        return self.archive.storages([(key, storage_class, numel)])[0]

    @functools.cached_property
    def _legacy_storages(self) -> dict[str, torch.UntypedStorage]:
        return legacy.storages_of(self.archive, **self._pickle_args)


class Unpickler(StorageUnpicklerMixin, PickleUnpickler):
    """A ``pickle.Unpickler`` whose tensors lie in a checkpoint's mapping. It runs what the file says: see Warnings.

    Subclass it to decide, in ``find_class``, what a file may name, or in ``persistent_load`` what a storage becomes.

    Parameters
    ----------
    file : binary file object
        The pickle (``data.pkl``).
    archive : str, PathLike, file object or buffer
        The checkpoint that holds the storages.
    map_location : optional
        As in ``torch.load``.
    **pickle_args
        As in ``pickle.Unpickler``: ``encoding``, ``errors``, ``fix_imports``, ``buffers``.

    Warnings
    --------
    Unpickling can run any code the file names. ``zerocopy.load`` does not use this class unless
    ``weights_only=False``.

    Examples
    --------
    >>> import io, pickle, tempfile, zipfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(2)}, file.name)
    >>> class OnlyTensors(zerocopy.Unpickler):
    ...     def find_class(self, module, name):
    ...         if module.startswith("torch") or (module, name) == ("collections", "OrderedDict"):
    ...             return super().find_class(module, name)
    ...         raise pickle.UnpicklingError(name)
    >>> with zipfile.ZipFile(file.name) as archive:
    ...     name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
    ...     OnlyTensors(io.BytesIO(archive.read(name)), file.name).load()
    {'weight': tensor([1., 1.])}
    """

    def __init__(
        self,
        file: Any,
        archive: str | os.PathLike[str] | Any,
        *,
        map_location: Any = None,
        **pickle_args: Any,
    ) -> None:
        super().__init__(file, archive, map_location=map_location, **pickle_args)


@functools.lru_cache(maxsize=8)
def unpickler_of(base: type) -> type:
    """Return :class:`Unpickler` on another base, for ``pickle_module=``. A ``persistent_load`` of the base stays."""
    if base is PickleUnpickler:
        return Unpickler
    own = {"persistent_load": base.persistent_load} if makes_storages(base) else {}  # type: ignore[attr-defined]
    return type("Unpickler", (StorageUnpicklerMixin, base), own)


def makes_storages(base: type) -> bool:
    """Return whether a class of unpicklers has a ``persistent_load`` that is not Python's own."""
    of_python = (PickleUnpickler, pickle._Unpickler)
    found = getattr(base, "persistent_load", None)
    return all(found is not getattr(known, "persistent_load", None) for known in of_python)


Builder = Callable[..., Any]


@functools.cache
def _faster_dense(stock: Builder) -> Builder:
    """Return a faster ``_rebuild_tensor_v2``, or v3, which takes the dtype before the metadata."""
    parameters = inspect.signature(stock).parameters
    names_dtype, takes_metadata = "dtype" in parameters, "metadata" in parameters  # the latter from 2.0

    def rebuild_tensor(
        storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, *more: Any
    ) -> Any:
        dtype, *metadata = more if names_dtype else (storage.dtype, *more)
        flags = metadata[0] if metadata and metadata[0] else {}  # torch does not look at their values either
        if hooks or (flags and takes_metadata):  # rare, and torch's business
            more = more if takes_metadata else ()
            return stock(storage, offset, size, stride, requires_grad, hooks, *more)
        untyped = _torch.untyped(storage)
        return rebuild.tensor_over(
            untyped, dtype, offset, size, stride, requires_grad, "conj" in flags, "neg" in flags
        )

    return rebuild_tensor


def _any_sparse(stock: Builder) -> Builder:
    """Return a rebuild function that also takes the layouts, and the flag, that 2.x writes and 1.13 lacks."""
    if hasattr(torch.sparse, "check_sparse_tensor_invariants"):
        return stock

    def rebuild_sparse_tensor(layout: Any, data: Any) -> Any:
        if layout is torch.sparse_coo and len(data) == 3:
            return stock(layout, data)
        try:
            return rebuild.rebuild_sparse_tensor(layout, data)
        except FormatError:  # torch's words
            return stock(layout, data)

    return rebuild_sparse_tensor


_FASTER: dict[str, Callable[[Builder], Builder]] = {
    "_rebuild_tensor_v2": _faster_dense,
    "_rebuild_tensor_v3": _faster_dense,
    "_rebuild_sparse_tensor": _any_sparse,
}
_OF_TORCH: dict[str, Any] = {name: getattr(sys.modules["torch._utils"], name, None) for name in _FASTER}
