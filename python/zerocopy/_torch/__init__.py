"""Every private or release-dependent name of torch that zerocopy uses, and nothing else.

Features are detected by asking the running release, not by its version number.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.serialization as _serialization

from zerocopy._torch.private_names import private, private_or_none
from zerocopy.errors import FormatError


def without_torch_function() -> Any:
    """Return a context manager in which functions treat subclasses of Tensor as plain tensors."""
    return private("torch._C.DisableTorchFunction")()


def undispatched(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor over the same elements, without calling any ``__torch_dispatch__``."""
    guard = private("torch._C._DisableTorchDispatch")()  # in force until it is deleted
    try:
        with without_torch_function():
            return torch.Tensor.as_subclass(tensor, torch.Tensor)
    finally:
        del guard


@contextlib.contextmanager
def applying_bits() -> Iterator[None]:
    """Apply the conjugate and negative bits of tensors within a block. In ``__torch_dispatch__`` torch does not."""
    set_excluded = private_or_none("torch._C._SetExcludeDispatchKeyGuard")
    if set_excluded is None:
        yield
        return
    keys = private("torch._C.DispatchKey")
    with set_excluded(keys.Conjugate, False), set_excluded(keys.Negative, False):
        yield


_CPU = ("cpu", b"cpu", torch.device("cpu"))

Restore = Callable[[torch.UntypedStorage, str], Any]

# TypedStorage keeps its UntypedStorage under a name that changed between 1.13 and 2.0.
_UNTYPED = "_untyped_storage" if hasattr(torch.Tensor, "untyped_storage") else "_storage"


def dtype(name: str) -> torch.dtype | None:
    """Return ``torch.<name>`` if this release has that dtype."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """Return a ``TypedStorage`` over `storage`.

    The class's own constructor takes 13 to 26 microseconds to examine its arguments; these are known to be right.
    """
    made = object.__new__(torch.storage.TypedStorage)
    made.dtype = dtype
    setattr(made, _UNTYPED, storage)
    return made


def untyped(storage: Any) -> torch.UntypedStorage:
    """Return the ``UntypedStorage`` of a typed one."""
    found: torch.UntypedStorage = getattr(storage, _UNTYPED)
    return found


def wrapper_subclass(
    cls: type[torch.Tensor],
    size: Sequence[int],
    stride: Sequence[int] | None,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
) -> torch.Tensor:
    """Return an instance of a class of tensors that have a shape, and leave the rest to ``__torch_dispatch__``."""
    return private("torch.Tensor._make_wrapper_subclass")(
        cls, size, strides=stride, dtype=dtype, device=device, requires_grad=requires_grad
    )


def untyped_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Return the memory of a CPU storage. The result keeps the storage alive."""
    size = storage.nbytes()
    if size == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    memory._storage = storage  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def identity(storage: torch.UntypedStorage) -> int:
    """Return a number that no other storage has while this one, or a weak reference to it, is alive."""
    found: int = private("torch.UntypedStorage._cdata").__get__(storage)
    return found


def begin_copy_to_cpu(storage: torch.UntypedStorage) -> tuple[torch.UntypedStorage, Callable[[], object]]:
    """Begin to copy a storage to the CPU. Return the copy, and a function to call before it is read.

    From CUDA the bytes come to page-locked memory, which torch keeps for the next time.
    """
    if storage.device.type != "cuda":
        return storage.cpu(), _nothing
    try:
        target = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True, device="cpu")
    except RuntimeError:  # so much memory cannot be locked
        return storage.cpu(), _nothing
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    stream = torch.cuda.current_stream(storage.device)
    with torch.cuda.device(storage.device):
        target.copy_(source, non_blocking=True)
    return untyped_of(target), stream.synchronize


def _nothing() -> None:
    pass


def storage_numel(tensor: torch.Tensor) -> int:
    """Return how many elements the storage of a tensor has."""
    return untyped_of(tensor).nbytes() // tensor.element_size()


def element_size(dtype: torch.dtype) -> int:
    """Return the bytes of an element."""
    if hasattr(dtype, "itemsize"):  # also for dtypes that are neither numbers nor bool
        return int(dtype.itemsize)
    return int(private("torch._utils._element_size")(dtype))


def storage_view(storage: Any, offset: int, numel: int) -> Any:
    """Return the ``TypedStorage`` over a part of another, in elements. ``FormatError`` if the part exceeds it."""
    size = element_size(storage.dtype)
    whole = untyped(storage).nbytes() // size
    if not (0 <= offset <= whole and 0 <= numel <= whole - offset):
        raise FormatError(f"a view of {numel} elements at {offset} of a storage of {whole}")
    return typed_storage(untyped(storage)[offset * size : (offset + numel) * size], storage.dtype)


def storage_type_or_none(name: str) -> Any:
    """Return the object that stands for a typed storage class in a pickle; None if `name` names no such class."""
    if "Storage" not in name:
        return None
    try:
        return _serialization.StorageType(name)
    except KeyError:
        return None


def text(value: Any) -> str:
    """Return a string of torch's own that Python 2 may have written as bytes."""
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def storage_class_name(storage_type: Any) -> str:
    """Return the class name of a persistent id's storage type, such as ``"FloatStorage"``."""
    if storage_type is torch.UntypedStorage:
        return "UntypedStorage"
    names: dict[torch.dtype, str] = private("torch.storage._dtype_to_storage_type_map")()
    return names[storage_type.dtype]


class PickledStorage(NamedTuple):
    """A storage, and the fields of its persistent id."""

    storage: torch.UntypedStorage
    storage_type: Any
    dtype: torch.dtype
    location: str
    numel: int


def pickled_storage(obj: Any) -> PickledStorage | None:
    """Return a storage with the fields that torch pickles for it; None for any other object."""
    if isinstance(obj, torch.storage.TypedStorage):
        storage, dtype = untyped(obj), obj.dtype
        storage_type = getattr(torch, private("torch.storage._dtype_to_storage_type_map")()[dtype])
        numel = storage.nbytes() // element_size(dtype)
    elif torch.is_storage(obj):
        storage, dtype, numel = cast(torch.UntypedStorage, obj), torch.uint8, obj.nbytes()
        storage_type = _serialization.normalize_storage_type(type(obj))
    else:
        return None
    # Of a fake tensor, whose own storage is on the device "meta".
    fake_device = getattr(obj, "_fake_device", None)
    location = _serialization.location_tag(storage) if fake_device is None else str(fake_device)
    return PickledStorage(storage, storage_type, dtype, location, numel)


def pickled_storage_like(known: PickledStorage, storage: torch.UntypedStorage) -> PickledStorage:
    """Return a storage with the pickled fields of another storage, whose tensors have the same dtype."""
    numel = storage.nbytes() // (known.storage.nbytes() // known.numel)
    return PickledStorage(
        storage, known.storage_type, known.dtype, _serialization.location_tag(storage), numel
    )


_skipping = threading.local()


def skips_data() -> bool:
    """Return whether this thread is in a block of ``zerocopy.skip_data`` or of torch's own (2.6 and later)."""
    torchs = private_or_none("torch.serialization._serialization_tls")
    return getattr(_skipping, "is_on", False) or bool(getattr(torchs, "skip_data", False))


def has_skip_data() -> bool:
    """Return whether this release has ``torch.serialization.skip_data``."""
    return hasattr(_serialization, "skip_data")


@contextlib.contextmanager
def skipping_data(materialize_fake_tensors: bool) -> Iterator[None]:
    """Skip the bytes of storages in this thread within a block; in torch too, if it has ``skip_data``."""
    before = getattr(_skipping, "is_on", False)
    _skipping.is_on = True
    try:
        if has_skip_data():
            with _serialization.skip_data(materialize_fake_tensors):  # tensors ask it how to be pickled
                yield
        else:
            yield
    finally:
        _skipping.is_on = before


def restore_function(map_location: Any) -> tuple[Restore | None, bool]:
    """Return torch's own function for `map_location`, and whether storages tagged ``cpu`` need not be asked about.

    The function is None if no storage needs it: all storages stay on the CPU. Neither shortcut is taken if somebody has
    registered a package (``register_package``) that torch asks before the one for the CPU.
    """
    restorers = private_or_none("torch.serialization._package_registry")
    untouched = restorers is None or restorers[0][2] is private_or_none(
        "torch.serialization._cpu_deserialize"
    )
    if untouched and map_location in _CPU:
        return (_emptied, False) if skips_data() else (None, True)
    restore = _restore_location(map_location)
    if callable(map_location):
        restore = _storages_only(restore)
    if skips_data():
        return lambda storage, tag: restore(_emptied(storage, tag), tag), False
    return restore, untouched and map_location is None


def _storages_only(restore: Restore) -> Restore:
    """Raise the running torch's error if the user's function returns anything but a storage."""

    def restored(storage: torch.UntypedStorage, tag: str) -> Any:
        result = restore(storage, tag)
        if not isinstance(result, torch.UntypedStorage):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that the class is deprecated
                torch.storage.TypedStorage(wrap_storage=result, dtype=torch.uint8)
            raise TypeError(f"expected map_location to return a storage, got {type(result).__name__}")
        return result

    return restored


def restore_by_tag(map_location: Any) -> Restore | None:
    """Return torch's own function for a `map_location` that is not callable, if a storage's tag alone decides."""
    # Functions of packages that somebody has registered may look at the storage.
    restorers = (getattr(entry[2], "func", entry[2]) for entry in registered_packages())
    strange = any(found.__module__ != _serialization.__name__ for found in restorers)
    return None if strange else _restore_location(map_location)


def _restore_location(map_location: Any) -> Restore:
    if map_location is None:
        return _serialization.default_restore_location
    found: Restore = private("torch.serialization._get_restore_location")(map_location)
    return found


def _emptied(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
    """Return an uninitialised storage of the same size."""
    return torch.UntypedStorage(storage.nbytes())


@contextlib.contextmanager
def loading_to(map_location: Any) -> Iterator[None]:
    """Set the device on which torch's rebuild functions make tensors without a storage (2.6 and later)."""
    state = private_or_none("torch.serialization._serialization_tls")
    if not hasattr(state, "map_location"):
        yield
        return
    before = state.map_location
    state.map_location = map_location
    try:
        yield
    finally:
        state.map_location = before


def log_usage(function: str) -> None:
    """Record a call, such as ``"torch.load"``, in torch's usage log, as torch does."""
    log = private_or_none("torch._C._log_api_usage_once")
    if log is not None:
        log(function)


def safe_by_default() -> bool:
    """Return whether ``weights_only`` of this release's torch.load is True by default (2.6 and later)."""
    return private_or_none("torch.serialization._default_to_weights_only") is not None


def pickles_bits() -> bool:
    """Return whether this release pickles a tensor's conjugate and negative bits (2.0 and later)."""
    return _UNTYPED == "_untyped_storage"


def release_allow_list() -> dict[str, Any]:
    """Return the running release's weights_only allow-list: full path to object."""
    found: dict[str, Any] = private("torch._weights_only_unpickler._get_allowed_globals")()
    return found


def registered_packages() -> list[Any]:
    """Return the rows that ``torch.serialization.register_package`` has added: priority, tagger, deserializer."""
    found: list[Any] = list(private("torch.serialization._package_registry"))
    return found


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view that is negated by the negative bit."""
    made: torch.Tensor = private("torch._neg_view")(tensor)
    return made
