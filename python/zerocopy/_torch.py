"""Every private or release-dependent name of torch that zerocopy uses, and nothing else.

What a release has is asked of the release, not of its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._weights_only_unpickler as _weights_only
import torch.serialization as _serialization

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


def storage_numel(tensor: torch.Tensor) -> int:
    """Return how many elements the storage of a tensor has."""
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage
    return storage.nbytes() // tensor.element_size()


def storage_type(name: str) -> Any:
    """Return what stands for a legacy storage class in a pickle; ``KeyError`` if there is no such class."""
    return _serialization.StorageType(name)


def storage_class_name(storage_type: Any) -> str:
    """Return the class name of a persistent id's storage type, ``"FloatStorage"`` say."""
    if storage_type is torch.UntypedStorage:
        return "UntypedStorage"
    names: dict[torch.dtype, str] = torch.storage._dtype_to_storage_type_map()
    return names[storage_type.dtype]


def restore_function(map_location: Any) -> tuple[Restore | None, bool]:
    """Return torch's own function for `map_location`, and whether storages tagged ``cpu`` need not be asked about.

    The function is None where no storage needs it: everything goes to the CPU, where it is. Both short cuts end
    when somebody has registered a package (``register_package``) that is asked before the CPU's own.
    """
    untouched = _serialization._package_registry[0][2] is _serialization._cpu_deserialize
    if untouched and map_location in ("cpu", b"cpu", torch.device("cpu")):
        return None, True
    restore: Restore = _serialization._get_restore_location(map_location)
    return restore, untouched and map_location is None


def release_allow_list() -> dict[str, Any]:
    """Return the running release's weights_only allow-list: full path to object."""
    found: dict[str, Any] = _weights_only._get_allowed_globals()
    return found


def user_safe_globals() -> Iterable[Any]:
    """Return what the user gave to ``torch.serialization.add_safe_globals``; nothing before 2.4."""
    get = getattr(_serialization, "get_safe_globals", None)
    found: Iterable[Any] = get() if get else ()
    return found


def validate_sparse_tensors() -> None:
    """Check the sparse tensors that torch's own rebuild functions have noted for checking."""
    torch._utils._validate_loaded_sparse_tensors()
