"""An object as a pickle over numbered storages, and back.

Plain objects (dicts, lists, tensors, numbers, ...) are one pickle that the native machine builds. Of all others the
machine builds the *out-of-band buffers*, a list of tensors and storages, and Python's unpickler builds the rest:

    pickle      ([buffer, buffer, ...], [note, ...])      protocol 2, as torch.save writes it; built by _C
    skeleton    the object, with numbers for buffers      protocol 5; built by pickle.Unpickler

A *note* says that a buffer stands for something else: bytes, a memoryview, a PickleBuffer of the skeleton, one of the
caller's own arguments. Calls are serialized in the same way for their keys, which nobody reads.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import context, sparse, tensor_extras
from zerocopy.errors import UnsupportedError
from zerocopy.loading import archives
from zerocopy.loading.device import staging
from zerocopy.loading.objects import builder
from zerocopy.process.collector import collector_paused
from zerocopy.saving.pickler import Store, pickled
from zerocopy.share.conditions import hashes
from zerocopy.share.conditions.hashes import Hashes
from zerocopy.share.objects import custom_reducers
from zerocopy.share.objects.skeleton import Naming, OutOfBandBuffers

# Of the other end: a class or module that is not there, or another one.
_FAILURES = (pickle.UnpicklingError, AttributeError, ImportError, LookupError, TypeError, RuntimeError)


class SerializedObject(NamedTuple):
    """An object without its storages."""

    pickle: bytes
    skeleton: bytes | None  # of plain objects none
    buffers: OutOfBandBuffers | None = None  # of the skeleton


def plain_of(obj: Any, owner: object, store: Store) -> SerializedObject | None:
    """Serialize a plain object; return None for any other. The machine may still refuse the result."""

    def store_typed(storage: _torch.PickledStorage, remake: Any) -> str:
        if storage.storage_type is torch.UntypedStorage:
            raise UnsupportedError("this release of torch returns typed storages")
        return store(storage, remake)

    with contextlib.suppress(Exception):  # whatever it is, it is not plain
        plain = pickled(obj, owner, store_typed, _require_bare)
        # Bytes, which would be text in protocol 2, go quicker as buffers.
        if b"_codecs" not in plain and not _C.foreign_globals(plain):
            return SerializedObject(plain, None)
    return None


def _require_bare(obj: Any) -> None:
    if type(obj) in tensor_extras.TENSORS and (
        tensor_extras.extras_of(obj) is not None or custom_reducers.is_coalesced(obj)
    ):
        raise UnsupportedError("a tensor has parts that cannot be shared")
    if torch.nn.Parameter in type(obj).__mro__[1:]:
        raise UnsupportedError("a parameter has a class of its own, which its pickle forgets")


_NO_ARGUMENTS: Mapping[int, Any] = {}


def of(
    obj: Any,
    owner: object,
    store: Store,
    arguments: Mapping[int, Any] = _NO_ARGUMENTS,
    naming: Naming | None = None,
    noted: Hashes | None = None,
) -> SerializedObject:
    """Serialize any object.

    Parameters
    ----------
    obj : object
        Any object that can be pickled, with dill if needed.
    owner : object
        The publisher.
    store : callable
        Is given every storage.
    arguments : mapping
        Objects that the caller has already: only their numbers are sent.
    naming : callable, optional
        Asked first.
    noted : Hashes, optional
        Numbers that each process computes for itself.

    Raises
    ------
    UnsupportedError
        If it takes dill, which is not there.
    """
    buffers = OutOfBandBuffers(arguments, naming, noted)
    skeleton = buffers.skeleton_of(obj)
    if not buffers.found:
        return SerializedObject(_NO_BUFFERS, skeleton, buffers)
    try:
        plain = pickled((buffers.found, buffers.notes), owner, store)
    except KeyError as error:  # a dtype without a storage class
        raise UnsupportedError(f"expected an object that can be pickled: {error}") from error
    return SerializedObject(plain, skeleton, buffers)


_NO_BUFFERS = pickle.dumps(([], []), protocol=2)


@context.outside_inference_mode  # tensors that were made in that mode say so
def build(archive: _C.Archive, skeleton: bytes | None, arguments: Sequence[Any] = ()) -> Any:
    """Return the object that was serialized, over the storages of an archive.

    Parameters
    ----------
    archive : _C.Archive
        The entry's archive.
    skeleton : bytes, optional
        The pickle of the parts that are not plain tensors.
    arguments : sequence
        Objects that the result may contain unchanged.
    """
    if skeleton is None:
        return _buffers_of(archive)
    buffers, notes = _buffers_of(archive)
    return _built(skeleton, buffers, notes, arguments)


@collector_paused
def _built(skeleton: bytes, buffers: list[Any], notes: list[Any], arguments: Sequence[Any]) -> Any:
    """Return the object of a skeleton. Puts into `buffers` what the notes say."""
    of_skeleton = []
    for number, kind, *details in notes:
        if kind == "argument":
            buffers[number] = arguments[details[0]]
        elif kind == "buffer":
            of_skeleton.append(_memory_of(buffers[number]))
        else:
            buffers[number] = _CONVERSIONS[kind](buffers[number], *details)
    unpickler = _SkeletonUnpickler(io.BytesIO(skeleton), buffers=of_skeleton)
    unpickler.taken = buffers.__getitem__
    unpickler.persistent_load = (  # type: ignore[method-assign]
        lambda pid: buffers[pid] if isinstance(pid, int) else hashes.here(pid)
    )
    try:
        with sparse.checking():
            return unpickler.load()
    except _FAILURES as error:
        raise UnsupportedError(f"it cannot be built here: {type(error).__name__}: {error}") from error


@collector_paused
def _buffers_of(archive: _C.Archive) -> Any:
    """Return the objects that the machine builds of an archive: the buffers and the notes, or a plain object."""
    return archive.load(archives.refuse_all, _USUAL, "utf-8", builder)


class _SkeletonUnpickler(pickle.Unpickler):
    """Runs what the user's own loader has written."""

    taken: Callable[[int], Any]  # returns a buffer

    def find_class(self, module: str, name: str) -> Any:
        if name == "taken" and module == OutOfBandBuffers.__module__:
            return self.taken
        custom_reducers.make_importable(module)
        return super().find_class(module, name)


_USUAL = staging.destination_of(None)  # what was on a GPU goes there from the mapped pages


def _memory_of(typed: Any) -> memoryview:
    return _torch.bytes_of(_torch.untyped(typed))


def _memoryview(typed: Any, format: str, shape: list[int], readonly: bool) -> memoryview:
    memory = _memory_of(typed)
    if format != "B" or len(shape) != 1:
        memory = memory.cast(format, shape) if 0 not in shape else memory.cast(format)  # type: ignore[call-overload]
    return memory.toreadonly() if readonly else memory


_CONVERSIONS: dict[str, Callable[..., Any]] = {
    "untyped": _torch.untyped,
    "bytes": lambda typed: bytes(_memory_of(typed)),
    "memoryview": _memoryview,
}
