"""Pickles NumPy's views: pickle itself copies those that are not contiguous, mapped or masked, and so parts them."""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any


def reduced(obj: Any) -> Any:
    """Return how such an array is pickled, as ``__reduce__`` says it; ``NotImplemented`` for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(obj, numpy.ndarray):
        return NotImplemented
    if type(obj) is numpy.ma.MaskedArray:
        mask = None if obj.mask is numpy.ma.nomask else obj.mask
        return _masked, (obj.data, mask, obj.fill_value, obj.hardmask)
    if type(obj) not in (numpy.ndarray, numpy.memmap, numpy.recarray) or obj.size == 0 or obj.dtype.hasobject:
        return NotImplemented
    if type(obj) is numpy.ndarray and (obj.flags.c_contiguous or obj.flags.f_contiguous):
        return NotImplemented
    extents = [(size - 1) * stride for size, stride in zip(obj.shape, obj.strides, strict=True)]
    before = sum(extent for extent in extents if extent < 0)
    size = sum(abs(extent) for extent in extents) + obj.itemsize
    # All bytes between the first and the last element: memory that overlaps other buffers stays one with them.
    memory = (ctypes.c_ubyte * size).from_address(obj.ctypes.data + before)
    layout = obj.dtype, obj.shape, obj.strides, -before, obj.flags.writeable
    return _array, (type(obj), pickle.PickleBuffer(memory), *layout)


def _array(
    cls: Any,
    buffer: Any,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    is_writeable: bool,
) -> Any:
    import numpy as np

    made: Any = np.ndarray(shape, dtype, buffer, offset, strides).view(cls)
    made.flags.writeable = is_writeable and made.flags.writeable
    return made


def _masked(data: Any, mask: Any, fill_value: Any, is_hard: bool) -> Any:
    import numpy as np

    return np.ma.MaskedArray(
        data, np.ma.nomask if mask is None else mask, fill_value=fill_value, hard_mask=is_hard, copy=False
    )
