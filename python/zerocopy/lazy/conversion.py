"""Converts tensors when they are loaded: to another dtype, to another device."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from zerocopy import _core, _torch
from zerocopy._torch import modules, portable
from zerocopy.errors import FormatError, UnsupportedError

_FEW = 64


def cast_dtype(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """Return the dtype that tensors of a dtype get if floating-point tensors are cast."""
    if wanted is None or not (dtype.is_floating_point or (dtype.is_complex and wanted.is_complex)):
        return dtype
    return wanted


def converted(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor with another dtype, on another device. Raise ``UnsupportedError`` if torch cannot convert it.

    A wrapper subclass converts itself. One that cannot be cast keeps its dtype, with a warning.
    """
    if not modules.is_elements(tensor):
        try:
            return tensor.to(device=device, dtype=dtype)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            if device != tensor.device:
                raise
            name = type(tensor).__name__
            warnings.warn(
                f"a {name} stays {tensor.dtype}: it cannot be cast to {dtype} ({error})", stacklevel=2
            )
            return tensor
    if device.type == "meta" and tensor.layout is torch.strided and not tensor.is_quantized:
        # Laid out as it is, as torch.load(map_location="meta") does; some releases' to() would not.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=device)
    if (reach := _reach(tensor, dtype)) is not None:
        elements = converted(tensor.as_strided((reach,), (1,)), dtype, device)
        return elements.as_strided(tensor.size(), tensor.stride(), 0)
    try:
        return tensor.to(device=device, dtype=dtype)
    except NotImplementedError:  # float4 in torch 2.13
        what = f"a conversion from {tensor.dtype} to {dtype}"
        raise UnsupportedError(f"PyTorch {torch.__version__} does not have {what}") from None


class _Outline(NamedTuple):
    """The facts about a tensor that covers all of its storage, without the storage."""

    storage: StorageWeakRef
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]


class Converted:
    """Converted tensors that are alive, by their identities. Tensors with the same identity share a storage."""

    def __init__(self) -> None:
        self._alive: dict[Any, _Outline] = {}
        self._most = _FEW  # tensors that are stored before dead ones are forgotten
        self._lock = threading.Lock()

    def of(self, identity: Any, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return a tensor over the storage of a live tensor of this identity, or the result of `make`."""
        with self._lock:
            alive = self._again(identity)
        if alive is not None:
            return alive
        made = make()
        if (
            made.layout is not torch.strided
            or made.is_quantized
            or made.is_meta
            or made.is_conj()
            or made.is_neg()
        ):
            return made
        with self._lock:
            alive = self._again(identity)  # another thread may have been sooner
            if alive is None:
                reference = StorageWeakRef(_torch.untyped_of(made))
                self._alive[identity] = _Outline(reference, made.dtype, made.size(), made.stride())
                self._forget_dead()
        return made if alive is None else alive

    def _again(self, identity: Any) -> torch.Tensor | None:
        outline = self._alive.get(identity)
        if outline is None:
            return None
        storage = portable.storage_of_weak_reference(outline.storage.cdata)
        if storage is None:
            del self._alive[identity]
            return None
        tensor = torch.empty(0, dtype=outline.dtype, device=storage.device)
        return tensor.set_(storage, 0, outline.size, outline.stride)

    def _forget_dead(self) -> None:
        """Forget dead tensors, whenever twice as many are stored as were alive the last time."""
        if len(self._alive) > self._most:
            alive = {key: each for key, each in self._alive.items() if not each.storage.expired()}
            self._alive, self._most = alive, max(_FEW, 2 * len(alive))


def _reach(tensor: torch.Tensor, dtype: torch.dtype) -> int | None:
    """Return the number of stored elements of a tensor that repeats them far too often; None for other tensors.

    Such a tensor is converted with its strides. ``to()`` would make each element anew, even if that takes terabytes.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return None
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    budget = _core.Budget(reach * tensor.element_size(), "spread out")
    try:
        budget.charge(tensor.numel() * _torch.element_size(dtype))
    except FormatError:
        return reach
    return None
