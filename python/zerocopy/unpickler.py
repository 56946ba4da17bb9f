"""The unpickler for files that may run code (``weights_only=False``)."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import _C, _torch, opening, rebuild
from zerocopy.errors import UnsupportedError


class StorageUnpickling:
    """``persistent_load`` and ``find_class`` for any ``Unpickler`` class: storages come from an archive.

    Mixed into ``pickle.Unpickler`` this is :class:`Unpickler`; into another module's, what ``pickle_module=`` asks for.
    """

    def __init__(self, file: Any, archive: Any, *, map_location: Any = None, **pickle_args: Any) -> None:
        super().__init__(file, **pickle_args)  # type: ignore[call-arg]
        self.archive: _C.Archive = (
            archive if isinstance(archive, _C.Archive) else opening.open_archive(archive)
        )
        self._restore, self._cpu_as_is = _torch.restore_function(map_location)
        self._storages: dict[str, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        """Return the ``TypedStorage`` that a persistent id ``('storage', type, key, location, numel)`` names.

        Its bytes lie in the file's mapping wherever they are stored as they are.
        """
        if not isinstance(pid, tuple) or not pid or _text(pid[0]) != "storage" or len(pid) != 5:
            raise pickle.UnpicklingError(f"persistent id {str(pid)[:200]} is not that of a storage")
        storage_type, key, location, numel = pid[1:]
        key = _text(key)
        if key not in self._storages:
            if storage_type is torch.UntypedStorage and self.archive.big_endian:
                raise UnsupportedError(
                    "a big-endian storage without a type, whose byte order only weights_only tells"
                )
            dtype = torch.uint8 if storage_type is torch.UntypedStorage else storage_type.dtype
            storage = self.archive.storage(key, _torch.storage_class_name(storage_type), numel)
            if self._restore and not (self._cpu_as_is and _text(location) == "cpu"):
                storage = self._restore(storage, _text(location))
            self._storages[key] = _torch.typed_storage(storage, dtype)
        return self._storages[key]

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function a file names; torch's tensor builders are replaced by faster ones."""
        if "Storage" in name:
            try:
                return _torch.storage_type(name)
            except KeyError:
                pass
        module = "torch._tensor" if module == "torch.tensor" else module  # renamed after 1.7
        found = super().find_class(module, name)  # type: ignore[misc]
        return _FASTER[name](found) if module == "torch._utils" and name in _FASTER else found


class Unpickler(StorageUnpickling, pickle.Unpickler):
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
    """Return :class:`Unpickler` on another base than ``pickle.Unpickler``, for ``pickle_module=``."""
    return Unpickler if base is pickle.Unpickler else type("Unpickler", (StorageUnpickling, base), {})


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


Builder = Callable[..., Any]


def _faster_v2(stock: Builder) -> Builder:
    def rebuild_tensor_v2(
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        metadata: Any = None,
    ) -> Any:
        if hooks or metadata:  # rare, and torch's business
            return stock(storage, offset, size, stride, requires_grad, hooks, metadata)
        return rebuild.tensor_over(
            _torch.untyped(storage), storage.dtype, offset, size, stride, requires_grad
        )

    return rebuild_tensor_v2


_FASTER: dict[str, Callable[[Builder], Builder]] = {"_rebuild_tensor_v2": _faster_v2}
