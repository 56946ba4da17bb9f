"""Storages of the legacy format (before PyTorch 1.6), for ``weights_only=False``.

Their bytes follow the pickle, one storage after the other. Sizes are counted in elements, whose size only the
pickle states. torch unpickles over uninitialised storages and fills them afterwards. Here the pickle runs
twice: first over objects that do nothing, to find every storage, then over the real storages.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.errors import FormatError

_PICKLE_ARGS = {"fix_imports", "encoding", "errors", "buffers"}


def storages_of(archive: _C.Archive, **pickle_args: Any) -> dict[str, torch.UntypedStorage]:
    """Return every storage of a legacy archive by its key."""
    scanner = _StorageScanner(io.BytesIO(archive.pickle()), **pickle_args)
    scanner.load()
    named = [(key, name, numel) for key, (name, numel) in scanner.storages.items()]
    return dict(zip(scanner.storages, archive.storages(named), strict=True))


def has_sources(archive: _C.Archive, **pickle_args: Any) -> bool:
    """Return whether classes were saved together with their source, which torch.load compares with today's."""
    scanner = _StorageScanner(io.BytesIO(archive.pickle()), **pickle_args)
    scanner.load()
    return scanner.has_sources


class _TakesItems(type):
    def __setitem__(cls, key: Any, value: Any) -> None: ...


class _NoOpObject(metaclass=_TakesItems):
    """Stands for every class, function and object of the file during the first run, and accepts any use.

    Its instances behave like the class, because a pickle may call the result of a call.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls

    @staticmethod
    def _ignore(*args: Any) -> None: ...

    __setstate__ = append = extend = add = _ignore


class _StorageScanner(pickle.Unpickler):
    """Runs a pickle without the objects that it names, and records its storages."""

    def __init__(self, file: io.BytesIO, **pickle_args: Any) -> None:
        # Another module's Unpickler may take more arguments than pickle's.
        super().__init__(file, **{name: pickle_args[name] for name in _PICKLE_ARGS & pickle_args.keys()})
        self.storages: dict[str, tuple[str, int]] = {}
        self.has_sources = False

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch") and name == "UntypedStorage":
            return torch.UntypedStorage
        storage_type = _torch.storage_type_or_none(name)
        return _NoOpObject if storage_type is None else storage_type

    def persistent_load(self, pid: Any) -> Any:
        kind, *rest = pid if isinstance(pid, tuple) and pid else (None,)
        if _torch.text(kind) == "storage" and len(rest) == 5:
            storage_type, key, _, numel, _ = rest
            if type(numel) is not int or not 0 <= numel < 2**63:
                raise FormatError(f"legacy file: a storage of {str(numel)[:200]} elements")
            known = (_torch.storage_class_name(storage_type), numel)
            if not _is_utf8(_torch.text(key)):
                raise FormatError(f"legacy file: a storage called {ascii(key)[:200]}")
            first = self.storages.setdefault(_torch.text(key), known)
            if first != known and (numel or first[1]):  # tensors of any types share an empty storage
                raise FormatError(f"legacy file: storage {_torch.text(key)[:200]!r} has two types or sizes")
        elif _torch.text(kind) == "module":
            self.has_sources |= all(rest[1:])
        return _NoOpObject


def _is_utf8(text: str) -> bool:
    """Return whether a string has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
