"""Pickles objects as ``torch.save`` does: with numbers for storages, whose bytes are written separately."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._torch import tensor_extras
from zerocopy.lazy.placeholder import NotYetLoadedTensor, real_of
from zerocopy.lazy.placeholder_builder import TensorRecipe
from zerocopy.lazy.tensor_info import shape_of
from zerocopy.loading.objects import builder

PROTOCOL = 2  # torch.save's, and the only one that weights_only reads on every release
_STORAGES: tuple[type, ...] = (torch.storage.TypedStorage, torch.UntypedStorage)
#: Most of what a pickle has, and neither a storage nor a container of storages.
_PLAIN = frozenset(
    [int, str, bool, float, bytes, type(None), type, type(len), type(lambda: None), torch.dtype]
)
#: Exact types that are not storages.
_NO_STORAGE = _PLAIN | {tuple, list, dict, OrderedDict, torch.Tensor, torch.nn.Parameter}

PersistentId = tuple[str, Any, str, str, int]


class Remake(NamedTuple):
    """Makes a temporary storage anew.

    Attributes
    ----------
    placeholder : NotYetLoadedTensor
        Its tensor is made anew whenever it is wanted.
    number : int
        Of the storage among those of the tensor.
    identity : object
        Equal for temporary storages that stand for one storage; None for a storage that nothing else shares.
    """

    placeholder: NotYetLoadedTensor
    number: int
    identity: Any

    @property
    def is_converted(self) -> bool:
        """Return whether the tensor gets memory of its own."""
        converts: bool = self.placeholder._recipe[0].options.converts
        return converts

    def storage(self) -> torch.UntypedStorage:
        """Make and return the storage."""
        if self.identity is not None:  # the tensor is dense, so it has one storage
            return _torch.untyped_of(real_of(self.placeholder))
        found: list[torch.UntypedStorage] = []

        def note(storage: _torch.PickledStorage, _: Remake | None) -> str:
            found.append(storage.storage)
            return ""

        StoredTensorReplacer(self, note).of(self.placeholder)
        return found[self.number]


def _remakes(placeholder: NotYetLoadedTensor) -> Iterator[Remake]:
    """Return a `Remake` for each storage of a placeholder's tensor: first its own, then those of its attributes."""
    return (
        Remake(placeholder, number, None if number else _identity(placeholder))
        for number in itertools.count()
    )


def identities(storage: torch.UntypedStorage, remake: Remake | None) -> list[Any]:
    """Return the keys of a storage: its own identity, and that which all storages made for a placeholder share."""
    own = _torch.identity(storage)
    return [own] if remake is None or remake.identity is None else [own, remake.identity]


#: Takes a storage, and the `Remake` of a placeholder's. Returns its key: the same for the same storage.
Store = Callable[[_torch.PickledStorage, Remake | None], str]


class _StoredStorage:
    """Stands for a storage that has its key already."""

    def __init__(self, owner: object, persistent_id: PersistentId) -> None:
        self.owner, self.persistent_id = owner, persistent_id

    def __reduce_ex__(self, _: Any) -> Any:
        raise pickle.PicklingError("a stored tensor can only be saved by the Writer that stored it")


class StoredTensor:
    """A stand-in for a tensor whose data are already in a file. ``Writer.store_early`` returns it.

    It takes the tensor's place in the object that is given to ``Writer.save``, and needs almost no memory. All
    attributes describe the tensor.

    Attributes
    ----------
    shape : torch.Size
        The size of each dimension; -1 for each dimension of a nested tensor.
    dtype : torch.dtype
        Element type.
    device : torch.device
        The device that the tensor was on.
    requires_grad : bool
        Whether it takes part in autograd.

    Examples
    --------
    >>> import pathlib, tempfile, torch, zerocopy
    >>> with zerocopy.Writer(pathlib.Path(tempfile.mkdtemp()) / "model.pt") as writer:
    ...     stored = writer.store_early(torch.ones(2, 3))
    ...     writer.save({"weight": stored})
    >>> stored.shape, stored.dtype
    (torch.Size([2, 3]), torch.float32)
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = shape_of(tensor), tensor.dtype, tensor.device
        self.requires_grad = tensor.requires_grad
        self._reduced: Any = None

    def __repr__(self) -> str:
        return f"StoredTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __reduce_ex__(self, _: Any) -> Any:
        return self._reduced


class StoredTensorReplacer:
    """Puts stand-ins in the place of tensors and storages.

    Parameters
    ----------
    owner : object
        The writer whose pickles may contain the stand-ins.
    store : callable
        Called with every storage.
    """

    def __init__(self, owner: object, store: Store) -> None:
        self._owner, self._store = owner, store
        self._remakes: Iterator[Remake] | None = None  # of the placeholder whose tensor is at work
        # Preserve shared and recursive references. Keeping the original (first of each pair) keeps its id()
        # unique.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return a value with stand-ins in it, and in the dicts, lists and tuples in it."""
        if type(value) in _PLAIN:
            return value
        if id(value) in self._made:
            return self._made[id(value)][1]
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if isinstance(value, _STORAGES):
            return self._of_storage(value)
        if isinstance(value, list):
            items = self._noted(value, copy.copy(value))
            items[:] = map(self.of, value)
            return items
        if isinstance(value, dict):
            entries = self._noted(value, copy.copy(value))
            pairs = [(self.of(key), self.of(item)) for key, item in value.items()]
            entries.clear()
            for key, item in pairs:
                entries[key] = item
            return entries
        if type(value) is tuple or hasattr(value, "_fields"):
            parts = [self.of(item) for item in value]
            if id(value) in self._made:  # it was within itself
                return self._made[id(value)][1]
            return self._noted(value, type(value)(*parts) if hasattr(value, "_fields") else tuple(parts))
        return value

    def _noted(self, value: Any, made: Any) -> Any:
        self._made[id(value)] = value, made
        return made

    def _of_tensor(self, tensor: torch.Tensor) -> Any:
        if torch.nn.parameter.is_lazy(tensor):
            return tensor  # it has no data
        before = self._remakes
        real = real_of(tensor) if isinstance(tensor, NotYetLoadedTensor) else tensor
        made = self._noted(tensor, StoredTensor(real))
        known = len(self._made)
        if before is None and isinstance(tensor, NotYetLoadedTensor) and _is_temporary(tensor):
            self._remakes = _remakes(tensor)
        made._reduced = self.of(_applied(real).__reduce_ex__(PROTOCOL))
        self._remakes = before
        while len(self._made) > known:  # objects made for the pickle alone live until this tensor is pickled
            self._made.popitem()
        return made

    def _of_storage(self, storage: Any) -> Any:
        described = _torch.pickled_storage(storage)
        assert described is not None, "one of _STORAGES"
        key = self._store(described, next(self._remakes) if self._remakes else None)
        return _StoredStorage(self._owner, _persistent_id(described, key))


def stored_tensor(owner: object, dtype: torch.dtype, shape: torch.Size, key: str) -> StoredTensor:
    """Return a stand-in for a contiguous tensor on the CPU whose data are, or will be, in the storage of a key."""
    one = torch.empty(1, dtype=dtype, device="cpu")
    rebuild, (storage, offset, _, _, *rest) = one.__reduce_ex__(PROTOCOL)
    described = _torch.pickled_storage(storage)
    assert described is not None, "the first argument of torch's rebuild functions"
    stored = _StoredStorage(
        owner, _persistent_id(described._replace(numel=described.numel * shape.numel()), key)
    )
    made = StoredTensor(one)
    made.shape = shape
    strides = torch.empty(shape, device="meta").stride()
    made._reduced = rebuild, (stored, offset, tuple(shape), strides, *rest)
    return made


def pickled(obj: Any, owner: object, store: Store, examine: Callable[[Any], None] | None = None) -> bytes:
    """Return the pickle of an object.

    Parameters
    ----------
    obj : object
        An object that may contain tensors and placeholders that `owner` stored early.
    owner : object
        The writer that saves.
    store : callable
        Called with every storage.
    examine : callable, optional
        Called with every object that defines its own pickling, except plain tensors. It may raise.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, owner, store, examine).dump(obj)
    return buffer.getvalue()


def _persistent_id(storage: _torch.PickledStorage, key: str) -> PersistentId:
    return "storage", storage.storage_type, key, storage.location, storage.numel


class _Pickler(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, owner: object, store: Store, examine: Callable[[Any], None] | None
    ) -> None:
        super().__init__(file, protocol=PROTOCOL)
        self._owner, self._store, self._examine = owner, store, examine
        self._converted: dict[Any, Any] = {}
        self._ways: dict[torch.dtype, _Way | None] = {}

    def persistent_id(self, obj: Any) -> PersistentId | None:
        if type(obj) in _NO_STORAGE:
            return None
        if isinstance(obj, _StoredStorage):
            return obj.persistent_id if obj.owner is self._owner else None
        storage = _torch.pickled_storage(obj)
        return None if storage is None else _persistent_id(storage, self._store(storage, None))

    def reducer_override(self, obj: Any) -> Any:
        # Each tensor has an empty OrderedDict. Its own reduction takes longer.
        if type(obj) is OrderedDict and not (obj or vars(obj)):
            return OrderedDict, ()
        if type(obj) is torch.Tensor and obj.device.type == "cpu" and tensor_extras.is_simple(obj):
            way = self._way_of(obj.dtype)
            if way is not None:
                return self._reduced(obj, way)
        if self._examine is not None:
            self._examine(obj)
        if isinstance(obj, NotYetLoadedTensor) and _is_temporary(obj):
            if obj._recipe not in self._converted:
                replacer = StoredTensorReplacer(self._owner, self._store)
                self._converted[obj._recipe] = replacer.of(obj).__reduce_ex__(PROTOCOL)
            return self._converted[obj._recipe]
        if isinstance(obj, torch.Tensor) and not _torch.pickles_bits():
            real = real_of(obj) if isinstance(obj, NotYetLoadedTensor) else obj
            if (applied := _applied(real)) is not real:
                return applied.__reduce_ex__(PROTOCOL)
        return NotImplemented

    def _way_of(self, dtype: torch.dtype) -> _Way | None:
        if dtype not in self._ways:
            self._ways[dtype] = _way_of(dtype)
        return self._ways[dtype]

    def _reduced(self, tensor: torch.Tensor, way: _Way) -> Any:
        """Return the reduction of a tensor: that of torch's own function, which examines each tensor at length."""
        storage = _torch.pickled_storage_like(way.storage, _torch.untyped_of(tensor))
        stored = _StoredStorage(self._owner, _persistent_id(storage, self._store(storage, None)))
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return way.rebuild, (stored, *place, tensor.requires_grad, *way.others, OrderedDict())


class _Way(NamedTuple):
    """How torch pickles plain tensors of a dtype: the rebuild function, a sample storage, and further arguments."""

    rebuild: Any
    storage: _torch.PickledStorage
    others: tuple[Any, ...]


def _way_of(dtype: torch.dtype) -> _Way | None:
    """Return how torch pickles plain tensors of a dtype; None if a mode or this release pickles them differently."""
    one = torch.empty(1, dtype=dtype, device="cpu")
    if type(one) is not torch.Tensor or _torch.skips_data():
        return None
    try:
        rebuild, (storage, _, _, _, _, *others, hooks) = one.__reduce_ex__(PROTOCOL)
        described = _torch.pickled_storage(storage)
    except (KeyError, TypeError, ValueError):
        return None
    return _Way(rebuild, described, tuple(others)) if described and type(hooks) is OrderedDict else None


def _applied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose pickle has its values: releases before 2.0 forget conjugate and negative bits."""
    if _torch.pickles_bits() or type(tensor) is not torch.Tensor or not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().requires_grad_(tensor.requires_grad)


def _dense(placeholder: NotYetLoadedTensor) -> tuple[Any, int | None]:
    """Return the source of a dense tensor or parameter, and its number there; None for any other tensor."""
    source, recipe = placeholder._recipe
    if isinstance(recipe, TensorRecipe) and recipe.function is builder.parameter:
        return _dense(recipe.arguments[0])
    return source, recipe if isinstance(recipe, int) else None


def _identity(placeholder: NotYetLoadedTensor) -> Any:
    """Return the identity that a temporary storage shares with others; None if it shares none."""
    if placeholder._recipe is None:
        return None
    source, number = _dense(placeholder)
    return None if number is None else (source, source.identity(number))


def _is_temporary(placeholder: NotYetLoadedTensor) -> bool:
    """Return whether a placeholder's tensor is made anew whenever it is used.

    Such tensors are held one at a time, so neither memory nor address space has to hold them all.
    """
    used = placeholder._handed_out
    return placeholder._recipe is not None and placeholder._real is None and (used is None or used() is None)
