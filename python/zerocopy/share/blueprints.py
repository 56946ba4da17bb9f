"""An object as a pickle over numbered storages, and back.

Plain objects (dicts, lists, tensors, numbers, ...) are one pickle that the native machine builds. Of all others the
machine builds the *leaves*, a list of tensors and storages, and Python's unpickler the object over them:

    pickle      ([leaf, leaf, ...], [note, ...])          protocol 2, as torch.save writes it; built by _C
    skeleton    the object, with numbers for leaves       protocol 5; built by pickle.Unpickler

A *note* says of a leaf that it stands for something else than itself: bytes, a memoryview, a buffer out of the
skeleton's band, one of the caller's own arguments. Calls are blueprints too; whoever makes or reads one may have other
persistent ids than numbers in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from zerocopy import _C, _torch, construction, road
from zerocopy.errors import UnsupportedError
from zerocopy.pickling import Store, pickled
from zerocopy.share import by_value, quirks

#: Bytes and buffers of fewer go by value.
SHARED_FROM = 1 << 12

TENSORS = (torch.Tensor, torch.nn.Parameter)
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)


class Blueprint(NamedTuple):
    """What an object is made of, but for the storages."""

    pickle: bytes
    skeleton: bytes | None  # of plain objects none


def plain_of(obj: Any, owner: object, store: Store) -> Blueprint | None:
    """Return the blueprint of a plain object; None for any other. The machine may still refuse it."""
    with contextlib.suppress(Exception):  # whatever it is, it is not plain
        plain = pickled(obj, owner, store)
        # Bytes, which would be text in protocol 2, go quicker as leaves.
        if b"_codecs" not in plain and not _C.foreign_globals(plain):
            return Blueprint(plain, None)
    return None


#: Gives an object a persistent id, or None.
Naming = Callable[[Any], Any]
_NO_ARGUMENTS: Mapping[int, Any] = {}


def of(
    obj: Any,
    owner: object,
    store: Store,
    arguments: Mapping[int, Any] = _NO_ARGUMENTS,
    naming: Naming | None = None,
) -> Blueprint:
    """Return the blueprint of any object.

    Parameters
    ----------
    obj : object
        Whatever can be pickled, with dill if need be.
    owner : object
        Whoever publishes.
    store : callable
        Is given every storage.
    arguments : mapping
        What the caller has already: of these their numbers are enough.
    naming : callable, optional
        Asked first.

    Raises
    ------
    UnsupportedError
        If it takes dill, which is not there.
    """
    leaves = _Leaves(arguments, naming)
    skeleton = leaves.skeleton_of(obj)
    if not leaves.found:
        return Blueprint(_NO_LEAVES, skeleton)
    return Blueprint(pickled((leaves.found, leaves.notes), owner, store), skeleton)


_NO_LEAVES = pickle.dumps(([], []), protocol=2)


class _Leaves:
    """Takes the leaves out of an object while it is pickled."""

    def __init__(self, arguments: Mapping[int, Any], naming: Naming | None) -> None:
        self._naming = naming
        self.found: list[Any] = []
        self.notes: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}  # by id; what is numbered is kept by `_kept`
        self._kept: list[Any] = []
        for number, argument in arguments.items():
            self._add(argument, None, ("argument", number))

    def skeleton_of(self, obj: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            _SkeletonPickler(buffer, self).dump(obj)
        except _REFUSALS as refusal:
            buffer = io.BytesIO()
            _dill_pickler(buffer, self, refusal).dump(obj)
        return buffer.getvalue()

    def name_of(self, obj: Any) -> Any:
        """Return the number of a leaf, or what whoever asked for the blueprint calls it; None for any other object."""
        named = None if self._naming is None else self._naming(obj)
        return self._number_of(obj) if named is None else named

    def _number_of(self, obj: Any) -> int | None:
        known = self._numbers.get(id(obj))
        if known is not None:
            return known
        kind = type(obj)
        if kind in TENSORS:
            return self._add(obj, obj) if is_simple(obj) else None
        if kind is torch.storage.TypedStorage:
            return self._add(obj, obj)
        if kind is torch.UntypedStorage:
            return self._add(obj, _typed(obj), ("untyped",))
        if kind is bytes and len(obj) >= SHARED_FROM:
            return self._add(obj, _storage_over(obj), ("bytes",))
        if kind is memoryview:
            if not obj.c_contiguous:
                raise UnsupportedError("a memoryview that is not contiguous cannot be shared")
            about = ("memoryview", obj.format, list(obj.shape or ()), obj.readonly)
            return self._add(obj, _storage_over(obj), about)
        return None

    def take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the band, or return that it goes by value."""
        raw = buffer.raw()
        if raw.nbytes < SHARED_FROM:
            return True
        self._add(buffer, _storage_over(raw), ("buffer",))
        return False

    def _add(self, obj: Any, leaf: Any, note: tuple[Any, ...] | None = None) -> int:
        number = self._numbers[id(obj)] = len(self.found)
        self._kept.append(obj)
        self.found.append(leaf)
        if note is not None:
            self.notes.append((number, *note))
        return number


class _SkeletonPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, leaves: _Leaves) -> None:
        super().__init__(file, protocol=5, buffer_callback=leaves.take_buffer)
        self._leaves = leaves

    def persistent_id(self, obj: Any) -> Any:
        return self._leaves.name_of(obj)

    def reducer_override(self, obj: Any) -> Any:
        found = quirks.reduced(obj)
        return by_value.reduced(obj) if found is NotImplemented else found


def _dill_pickler(file: io.BytesIO, leaves: _Leaves, refusal: Exception) -> Any:
    dill = by_value.required(f"an object that pickle refuses ({str(refusal)[:200]})")

    class DillPickler(dill.Pickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, obj: Any) -> Any:
            return leaves.name_of(obj)

        def reducer_override(self, obj: Any) -> Any:
            return quirks.reduced(obj)

    return DillPickler(file, protocol=5, recurse=True, buffer_callback=leaves.take_buffer)


def is_simple(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is elements of a storage and nothing else: the machine makes it anew."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.__dict__
    )


def _typed(storage: torch.UntypedStorage) -> Any:
    return _torch.typed_storage(storage, torch.uint8)


def _storage_over(buffer: Any) -> Any:
    return _typed(_C.untyped_storage(memoryview(buffer).cast("B"), True))


#: Finds what a persistent id that is no number stands for.
Finding = Callable[[Any], Any]


def build(
    archive: _C.Archive,
    skeleton: bytes | None,
    arguments: Sequence[Any] = (),
    finding: Finding | None = None,
    resident: Callable[[], Any] | None = None,
) -> Any:
    """Return the object that a blueprint describes, over the storages of an archive.

    Parameters
    ----------
    archive : _C.Archive
        What was published.
    skeleton : bytes, optional
        Of what is not plain.
    arguments : sequence
        What the object may have in it as it is.
    finding : callable, optional
        Finds what persistent ids stand for.
    resident : callable, optional
        Returns the road that tensors take in place of the usual one. It is asked if there are any.
    """
    if skeleton is None:
        return leaves_of(archive, ROAD if resident is None else resident())
    if resident is None:
        leaves, notes = leaves_of(archive, ROAD)
    else:
        leaves, notes = leaves_of(archive, None, AS_IT_IS)
        here = {number for number, kind, *_ in notes if kind in _READ_HERE}
        if len(here) < len(leaves):
            there, _ = leaves_of(archive, resident())
            leaves = [leaves[i] if i in here else leaf for i, leaf in enumerate(there)]
    with _uncollected():
        buffers = []
        for number, kind, *about in notes:
            if kind == "argument":
                leaves[number] = arguments[about[0]]
            elif kind == "buffer":
                buffers.append(_memory_of(leaves[number]))
            else:
                leaves[number] = _CONVERSIONS[kind](leaves[number], *about)
        unpickler = _SkeletonUnpickler(io.BytesIO(skeleton), buffers=buffers)
        unpickler.persistent_load = (  # type: ignore[method-assign]
            leaves.__getitem__
            if finding is None
            else lambda pid: leaves[pid] if isinstance(pid, int) else finding(pid)
        )
        return unpickler.load()


def leaves_of(archive: _C.Archive, way: Any, restore: tuple[Any, bool] | None = None) -> Any:
    """Return what the machine makes of an archive: the leaves and the notes, or all of a plain object.

    Parameters
    ----------
    archive : _C.Archive
        What was published.
    way : Road
        Of storages that are not to stay on the CPU; or what stands for one.
    restore : tuple, optional
        What becomes of those that it does not carry; as in :func:`zerocopy._torch.restore_function`.
    """
    restored, cpu_as_is = restore or _RESTORE
    with _uncollected():
        return archive.load(_refuse_all, restored, cpu_as_is, way, "utf-8", construction, False)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Have no garbage looked for: all that is made here is kept, and a search among torch's objects takes longer."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _SkeletonUnpickler(pickle.Unpickler):
    """Runs what the user's own loader has written."""

    def find_class(self, module: str, name: str) -> Any:
        quirks.make_importable(module)
        return super().find_class(module, name)


_RESTORE = _torch.restore_function(None)
AS_IT_IS = _torch.restore_function("cpu")  # wherever it was: its pages, untouched
ROAD = road.road_to(None)  # what was on a GPU goes there from the shared pages


def _refuse_all(names: Sequence[tuple[bytes, bytes]]) -> dict[tuple[bytes, bytes], Any]:
    if names:
        raise pickle.UnpicklingError(f"a blueprint names {names[0]!r}")
    return {}


def _memory_of(typed: Any) -> memoryview:
    """Return a storage's memory, which keeps the storage."""
    storage = _torch.untyped(typed)
    if storage.nbytes() == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    memory._storage = storage  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def _memoryview(typed: Any, format: str, shape: list[int], readonly: bool) -> memoryview:
    memory = _memory_of(typed)
    if format != "B" or len(shape) != 1:
        memory = memory.cast(format, shape) if 0 not in shape else memory.cast(format)  # type: ignore[call-overload]
    return memory.toreadonly() if readonly else memory


#: Leaves whose memory is Python's to read, or which nobody wants.
_READ_HERE = ("argument", "buffer", "bytes", "memoryview")
_CONVERSIONS: dict[str, Callable[..., Any]] = {
    "untyped": _torch.untyped,
    "bytes": lambda typed: bytes(_memory_of(typed)),
    "memoryview": _memoryview,
}
