"""Takes tensors, storages and large bytes out of an object while it is pickled."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import tensor_extras
from zerocopy.errors import Error, UnsupportedError
from zerocopy.share.conditions.hashes import Hashes
from zerocopy.share.objects import by_value, custom_reducers

#: Shorter bytes go by value.
SHARED_FROM = 1 << 12
#: Longer pickles may have large bytes in them.
MAX_QUICK = 1 << 17

_FORMATS = frozenset("cbB?hHiIlLqQnNfdeP")  # that a memoryview can be cast to
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)

#: Gives an object a persistent id, or None.
Naming = Callable[[Any], Any]


class OutOfBandBuffers:
    """Tensors, storages and bytes of an object that its pickle only has the numbers of.

    Parameters
    ----------
    arguments : mapping
        Objects that the caller has already: only their numbers are sent.
    naming : callable, optional
        Asked first.
    hashes : Hashes, optional
        Numbers that each process computes for itself.
    """

    def __init__(
        self,
        arguments: Mapping[int, Any] = MappingProxyType({}),
        naming: Naming | None = None,
        hashes: Hashes | None = None,
    ) -> None:
        self._naming, self._hashes = naming, hashes or None
        self.found: list[Any] = []
        self.notes: list[tuple[Any, ...]] = []
        self.numbers: dict[int, int] = {}  # of those, by id; what is numbered is kept by `_kept`
        self._kept: list[Any] = []
        for number, argument in arguments.items():
            self._add(argument, None, ("argument", number))
        self._arguments = len(arguments)

    def skeleton_of(self, obj: Any) -> bytes:
        """Return the pickle of an object without its buffers. ``UnsupportedError``."""
        try:
            try:
                if self._naming is None and self._hashes is None:
                    found = self.quick_skeleton_of(obj)
                    if len(found) <= MAX_QUICK:
                        return found
                    self._forget()
                return _dumped(_NamingPickler, self, obj)
            except _REFUSALS as refusal:
                self._forget()
                return _dumped(_dill_pickler(refusal), self, obj)
        except (Error, MemoryError):
            raise
        except Exception as error:
            raise UnsupportedError(f"expected an object that can be pickled: {error}") from error

    def quick_skeleton_of(self, obj: Any) -> bytes:
        """Return the pickle of an object without its tensors, storages and memoryviews. Whatever pickle raises."""
        return _dumped(SkeletonPickler, self, obj)

    def _forget(self) -> None:
        """Forget what was found. Buffers are taken in their order, so none may be there twice."""
        count = self._arguments
        del self.found[count:], self.notes[count:], self._kept[count:]
        self.numbers = {at: number for at, number in self.numbers.items() if number < count}

    @property
    def is_bare(self) -> bool:
        """Return whether another pickle of the same object would be the same, wherever it is made."""
        return self._naming is None and self._hashes is None and not self._arguments

    @property
    def is_call(self) -> bool:
        """Return whether a loader will build it, to which no function or class of ``__main__`` is known."""
        return self._naming is not None

    def name_of(self, obj: Any) -> Any:
        """Return the persistent id of an object: what `naming` returns, or the number of a buffer; None for others."""
        named = None if self._naming is None else self._naming(obj)
        if named is None and self._hashes is not None:
            named = self._hashes.name_of(obj)
        return self.number_of(obj) if named is None else named

    def number_of(self, obj: Any) -> int | None:
        """Return the number of a buffer, or None for other objects."""
        known = self.numbers.get(id(obj))
        if known is not None:
            return known
        kind = type(obj)
        if kind in tensor_extras.TENSORS:
            return self._add(obj, obj) if tensor_extras.is_simple(obj) else None
        if kind is torch.storage.TypedStorage:
            return self._add(obj, obj)
        if kind is torch.UntypedStorage:
            return self._add(obj, _typed(obj), ("untyped",))
        if kind is bytes and len(obj) >= SHARED_FROM:
            return self._add(obj, _storage_over(obj), ("bytes",))
        if kind is memoryview:
            if not obj.c_contiguous:
                raise UnsupportedError("a memoryview that is not contiguous cannot be shared")
            if obj.format.removeprefix("@") not in _FORMATS:
                raise UnsupportedError(f"a memoryview of format {obj.format!r} cannot be shared")
            note = ("memoryview", obj.format, list(obj.shape or ()), obj.readonly)
            return self._add(obj, _storage_over(obj), note)
        return None

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Remove a buffer from the pickle, or return that it goes by value. A small one may show a large one."""
        raw = buffer.raw()
        if raw.nbytes == 0:
            return True
        self._add(buffer, _storage_over(raw), ("buffer",))
        return False

    def _add(self, obj: Any, content: Any, note: tuple[Any, ...] | None = None) -> int:
        number = self.numbers[id(obj)] = len(self.found)
        self._kept.append(obj)
        self.found.append(content)
        if note is not None:
            self.notes.append((number, *note))
        return number


def _dumped(kind: Any, buffers: OutOfBandBuffers, obj: Any) -> bytes:
    buffer = io.BytesIO()
    kind(buffer, buffers).dump(obj)
    return buffer.getvalue()


class SkeletonPickler(pickle.Pickler):
    """Takes buffers out of an object. Python's numbers, texts and bytes, which are most of it, are not asked about."""

    def __init__(self, file: io.BytesIO, buffers: OutOfBandBuffers) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.take_buffer)
        self._buffers = buffers

    def reducer_override(self, obj: Any) -> Any:
        """Return how to get a buffer, or how an odd object is pickled."""
        if type(obj) is OrderedDict and id(obj) not in self._buffers.numbers:  # modules consist of these
            return _of_ordered_dict(obj)
        number = self._buffers.number_of(obj)
        return self._reduced(obj) if number is None else (taken, (number,))

    def _reduced(self, obj: Any) -> Any:
        found = custom_reducers.reduced(obj)
        if found is not NotImplemented:
            return found
        has_no_name = by_value.is_nameless(obj) or by_value.is_nested(obj)
        if has_no_name and (self._buffers.is_call or by_value.refers_to_objects(obj)):
            # All of it by dill: the class of an argument has to be the one that the function knows, and what a hook
            # refers to the one that is in the model.
            raise pickle.PicklingError(by_value.why_nameless(obj))
        return by_value.reduced(obj)


def _of_ordered_dict(obj: OrderedDict[Any, Any]) -> Any:
    # Its own way asks for its slots.
    return OrderedDict, (), vars(obj) or None, None, iter(obj.items()) if obj else None


def taken(number: int) -> Any:
    """Raise if called: in a pickle, this function stands for the one that returns a buffer."""
    raise LookupError(number)


class _NamingPickler(SkeletonPickler):
    """Asks about each object, also about large bytes."""

    def persistent_id(self, obj: Any) -> Any:
        return self._buffers.name_of(obj)

    def reducer_override(self, obj: Any) -> Any:
        return _of_ordered_dict(obj) if type(obj) is OrderedDict else self._reduced(obj)


def _dill_pickler(refusal: Exception) -> Any:
    base = by_value.pickler_class(f"an object that pickle refuses ({str(refusal)[:200]})")

    class DillPickler(base):  # type: ignore[misc, valid-type]
        def __init__(self, file: io.BytesIO, buffers: OutOfBandBuffers) -> None:
            super().__init__(file, buffer_callback=buffers.take_buffer)
            self._buffers = buffers
            # Depth within functions and classes. Their names and texts are not arguments, so they cannot be
            # paths.
            self._within = 0
            self._cells: set[int] = set()  # of functions that dill does not pickle

        def save(self, obj: Any, *options: Any, **others: Any) -> None:
            is_code = by_value.is_nameless(obj)
            self._within += is_code
            super().save(obj, *options, **others)
            self._within -= is_code

        def persistent_id(self, obj: Any) -> Any:
            return None if self._within and type(obj) is str else self._buffers.name_of(obj)

        def reducer_override(self, obj: Any) -> Any:
            _require_no_open_file(obj)
            found = custom_reducers.reduced(obj)
            if found is NotImplemented and not self._is_for_dill(obj):
                found = by_value.reduced(obj)
                if isinstance(obj, types.FunctionType):
                    self._cells.update(map(id, obj.__closure__ or ()))
            return super().reducer_override(obj) if found is NotImplemented else found

        def _is_for_dill(self, obj: Any) -> bool:
            if type(obj) is types.CellType:
                # dill pickles the variables of its functions in another order.
                return id(obj) not in self._cells
            return self._buffers.is_call or by_value.refers_to_objects(obj)

    return DillPickler


def _require_no_open_file(obj: Any) -> None:
    """Refuse a file that dill would open anew, at its beginning or cut to nothing."""
    if isinstance(obj, _FILES) and obj not in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        raise UnsupportedError(f"an open file ({obj.name}) belongs to its process: pass its path")


def _typed(storage: torch.UntypedStorage) -> Any:
    return _torch.typed_storage(storage, torch.uint8)


def _storage_over(buffer: Any) -> Any:
    return _typed(_C.untyped_storage(memoryview(buffer).cast("B"), True))
