"""The options of ``lazy_load`` and ``open``, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zerocopy.lazy.conversion import cast_dtype
from zerocopy.loading import options
from zerocopy.loading.options import LoadOptions


@dataclass(frozen=True, slots=True)
class LazyOptions:
    """Options of a load whose tensors are read later. :func:`checked` makes them from a caller's arguments.

    Attributes
    ----------
    load : LoadOptions
        How the file is read. Storages that are moved to a device later are read into CPU memory first.
    dtype, device : optional
        As for ``zerocopy.lazy_load``.
    """

    load: LoadOptions
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    @property
    def converts(self) -> bool:
        """Return whether tensors get another dtype or device than they have in the file."""
        return self.dtype is not None or self.device is not None

    def converted(self, dtype: torch.dtype, location: str) -> tuple[torch.dtype, torch.device]:
        """Return the dtype and device that a tensor gets."""
        device = self.device
        if device is None:
            try:
                device = torch.device(location)
            except RuntimeError:  # a location of the user's own, whose handler moves the storage
                device = torch.device("cpu")
        return cast_dtype(dtype, self.dtype), device


def checked(
    dtype: torch.dtype | None = None,
    device: Any = None,
    weights_only: bool | None = True,
    backend: str = "auto",
    mode: str = "c",
    encoding: str = "utf-8",
    unknown: str = "refuse",
    strict: bool = True,
) -> LazyOptions:
    """Return the options of a load. Raise TypeError, ValueError or RuntimeError if they are wrong or contradictory."""
    # This raises now if the device does not exist, and turns "cuda" into the current device.
    found = None if device is None else torch.empty(0, device=torch.device(device)).device
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise TypeError(f"dtype must be a torch.dtype, not {type(dtype).__name__}")
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"expected a floating-point dtype to cast to, got {dtype}")
    where, pickle_args = None if found is None else "cpu", {"encoding": encoding}
    load = options.checked(where, None, weights_only, None, backend, mode, unknown, pickle_args, strict)
    return LazyOptions(load, dtype, found)
