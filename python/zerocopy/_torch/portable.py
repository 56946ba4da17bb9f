"""Make storages and tensors of torch from Python alone, for a release without a compiled bridge.

``csrc/binding/portable_bridge.cpp`` calls these functions.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._torch.private_names import private
from zerocopy.errors import UnsupportedError

# DLPack's codes for device types.
_CUDA = 2
_ROCM = 10

dtype = torch.dtype

# new_empty() of one of these takes half the time of torch.empty(), which examines its arguments.
_prototypes: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def dtype_facts(dtype: torch.dtype) -> tuple[int, bool, bool]:
    """Return the bytes of an element, and whether it is complex, or a floating-point number."""
    return _torch.element_size(dtype), dtype.is_complex, dtype.is_floating_point


def storage_facts(storage: torch.UntypedStorage) -> tuple[int, int, bool]:
    """Return the address of a storage's bytes, their number, and whether they are in main memory."""
    try:
        address = storage.data_ptr()
    except RuntimeError:  # a storage without bytes, as of fake tensors
        address = 0
    return address, storage.nbytes(), storage.device.type == "cpu"


def untyped_of_any(storage: Any) -> torch.UntypedStorage:
    """Return a storage, or the ``UntypedStorage`` of a typed one."""
    if isinstance(storage, torch.UntypedStorage):
        return storage
    if isinstance(storage, torch.storage.TypedStorage):
        return _torch.untyped(storage)
    raise ValueError(f"expected a torch storage, found {type(storage).__name__}")


def storage_of_dlpack(capsule: Any) -> torch.UntypedStorage:
    """Return a storage over the bytes of a DLPack capsule."""
    return _torch.untyped_of(torch.utils.dlpack.from_dlpack(capsule))


def dlpack_device(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return DLPack's device type and device index of a storage."""
    device = storage.device
    if device.type != "cuda":
        raise UnsupportedError(
            f"without a compiled bridge storages are shared on the CPU and on CUDA only, not on {device.type}: "
            "run `zerocopy build-bridge`"
        )
    return (_ROCM if torch.version.hip else _CUDA), device.index


def tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Return a tensor over a part of a storage."""
    device = storage.device
    prototype = _prototypes.get((dtype, device))
    if prototype is None:
        prototype = _prototypes[dtype, device] = _prototype(dtype, device)
    return prototype.new_empty(0).set_(storage, offset, size, stride)


def with_flags(tensor: torch.Tensor, requires_grad: bool, conjugate: bool, negative: bool) -> torch.Tensor:
    """Set flags of a new tensor, and return it."""
    if conjugate:
        private("torch._C._set_conj")(tensor, True)
    if negative:
        private("torch._C._set_neg")(tensor, True)
    return tensor.requires_grad_(requires_grad)


def placeholder(
    cls: type[torch.Tensor],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    requires_grad: bool,
) -> torch.Tensor:
    """Return a tensor of `cls` that has no storage; its operations are passed to the class's ``__torch_dispatch__``."""
    made: torch.Tensor = private("torch.Tensor._make_wrapper_subclass")(
        cls, size, strides=stride, storage_offset=offset, dtype=dtype, requires_grad=requires_grad
    )
    return made


def weak_reference(storage: torch.UntypedStorage) -> Any:
    """Make a weak reference to a storage, and return the handle that torch gives for it."""
    return private("torch.UntypedStorage._weak_ref")(storage)


def release_weak_reference(reference: Any) -> None:
    """Release a weak reference."""
    private("torch.UntypedStorage._free_weak_ref")(reference)


def storage_of_weak_reference(reference: Any) -> torch.UntypedStorage | None:
    """Return the storage of a weak reference, or None if it is gone."""
    if private("torch.UntypedStorage._expired")(reference):
        return None
    found: torch.UntypedStorage = private("torch.UntypedStorage._new_with_weak_ptr")(reference)
    return found


def _prototype(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an empty tensor, without the warnings that some dtypes bring once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.empty(0, dtype=dtype, device=device).new_empty(0)
