"""Compares the results of ``zerocopy.load`` and of stock ``torch.load`` for a file, bit for bit.

zerocopy's object lies in its mapping of the file. torch reads each storage into memory of its own, and calls
``map_location`` with it. If the bytes are those of the file, that call returns a storage over the mapping, and the copy
is freed. So one storage at a time is private, in files as torch.save writes them. Storages that zerocopy itself copies
or inflates stay in memory twice. For a legacy file, torch reads all storages before it frees one.
"""

from __future__ import annotations

import copyreg
import mmap
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from zerocopy import _torch, remote
from zerocopy.cli import elements
from zerocopy.cli.output import escaped
from zerocopy.cli.runner import Trouble
from zerocopy.errors import Error
from zerocopy.loading import loader
from zerocopy.loading.untyped_storage import untyped_storage

_ALIGNMENT = 16  # of the widest element
_MAX_PATH_LENGTH = 200

_SHAREABLE = (tuple, frozenset, complex)  # a loader may share equal ones, or not
_GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType, torch.qscheme, torch.dtype, torch.device,
            torch.layout)  # fmt: skip


Extents = Iterable[tuple[str, int, int, bool]]  # key, offset, stored size, deflated: of each storage


def difference(path: str, storages: Extents | None) -> str:
    """Return the first difference between the results of the two loaders for a file, or an empty string.

    Both load with ``weights_only=True``. zerocopy loads first, and torch gets only files that zerocopy accepts.
    Without `storages`, torch has all of them in memory at once.

    Raises
    ------
    Trouble
        If one of them refuses the file.
    """
    if remote.is_url(path):
        raise Trouble("cannot be compared: torch.load does not take URLs")
    try:
        ours = loader.load(path, "cpu")
    except (Error, UnpicklingError, RuntimeError) as error:
        raise Trouble(f"cannot be compared: {escaped(str(error), 1000)}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings about its own loading do not matter
        try:
            place = "cpu" if storages is None else _stand_in(path, storages)
            theirs = torch.load(path, map_location=place, weights_only=True)
        except Exception as error:  # torch may raise any type
            raise Trouble(f"cannot be compared: torch.load: {escaped(str(error), 1000)}") from None
        return Comparison().difference(ours, theirs)


def _stand_in(path: str, storages: Extents) -> Callable[[Any, str], Any]:
    """Return a ``map_location`` that puts storages into a mapping of the file, where that holds the same bytes."""
    with Path(path).open("rb") as file:
        mapping = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    left = iter({key: extent for key, *extent in storages}.values())

    def stand_in(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        # torch calls this in the order of first use, which is the order of `storages`. If the order is different, the
        # bytes do not match, and torch's own storage is kept.
        offset, stored_size, deflated = next(left, (0, 0, False))
        if deflated or offset % _ALIGNMENT or not stored_size:
            return storage
        mapped = untyped_storage(mapping[offset : offset + stored_size], allow_readonly=True)
        return mapped if _same_bytes(mapped, storage) else storage

    return stand_in


def _same_bytes(a: torch.UntypedStorage, b: torch.UntypedStorage) -> bool:
    return a.nbytes() == b.nbytes() and torch.equal(
        *(torch.empty(0, dtype=torch.uint8, device="cpu").set_(s) for s in (a, b))
    )


class Comparison:
    """Compares two objects by what pickle would write of them: types, values, geometry, bits, ties, attributes."""

    def __init__(self) -> None:
        self._partners: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._seen: set[tuple[int, int]] = set()
        self._alive: list[Any] = []  # an id says nothing once its object is gone
        self._left: list[tuple[Any, Any, str]] = []

    def difference(self, a: Any, b: Any) -> str:
        """Return where two objects differ first, and how; an empty string if they do not."""
        self._left = [(a, b, "object")]
        while self._left:
            a, b, where = self._left.pop()
            found = self._look(a, b, where)
            if found:
                return f"{where}: {found}"
        return ""

    def _look(self, a: Any, b: Any, where: str) -> str:
        """Compare two values without their contents, which are queued for later."""
        if (found := elements.atom_difference(a, b)) is not None:
            return found
        if isinstance(a, _GLOBALS):
            return "" if a == b else " and ".join(map(_name_of, (a, b)))
        if isinstance(a, torch.UntypedStorage):
            return self._tie(_torch.identity(a), _torch.identity(b)) if _same_bytes(a, b) else "other bytes"
        if (id(a), id(b)) in self._seen:
            return ""
        self._seen.add((id(a), id(b)))
        self._alive += (a, b)
        if not isinstance(a, _SHAREABLE) and (fault := self._tie(id(a), id(b))):
            return fault
        ones, others = dict(_parts(a)), dict(_parts(b))
        if list(ones) != list(others):
            return f"other items: {elements.shown(list(ones))} and {elements.shown(list(others))}"
        left = [(ones[name], others[name], f"{where}{name}"[-_MAX_PATH_LENGTH:]) for name in ones]
        self._left += reversed(left)
        return ""

    def _tie(self, a: int, b: int) -> str:
        """Record that `a` corresponds to `b`. Neither may have another partner."""
        forth, back = self._partners
        tied = forth.setdefault(a, b) == b and back.setdefault(b, a) == a
        return "" if tied else "tied differently"


def _name_of(value: Any) -> str:
    """Return the name of a class or a function, because its repr contains an address."""
    return getattr(value, "__qualname__", None) or elements.shown(value)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each under a name of its own."""
    if isinstance(value, complex):
        yield from ((".real", value.real), (".imag", value.imag))
    elif isinstance(value, (tuple, list)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{i}}}", item) for i, item in enumerate(sorted(value, key=repr)))
    elif isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f" key {i}", key
            yield f"[{i}: {elements.shown(key)}]", item
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())
    elif isinstance(value, torch.storage.TypedStorage):
        yield from ((".dtype", value.dtype), (".storage", _torch.untyped(value)))
    else:
        yield from ((f".reduced[{i}]", item) for i, item in enumerate(_reduced(value)))


def _reduced(value: Any) -> list[Any]:
    """Return the parts that pickle would write of an object."""
    registered = copyreg.dispatch_table.get(type(value))
    try:
        reduced = registered(value) if registered else value.__reduce_ex__(2)
    except RuntimeError as error:  # PyTorch 1.13 loads sparse layouts that it cannot save
        raise Trouble(
            f"PyTorch {torch.__version__} cannot compare a {type(value).__name__}: {error}"
        ) from None
    if isinstance(reduced, str):  # a global
        return [reduced]
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return [function, arguments, state, list(items or ()), list(pairs or ())]
