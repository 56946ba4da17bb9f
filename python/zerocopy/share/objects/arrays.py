"""Pickles NumPy's views: pickle itself copies each array that is not contiguous, and so parts it from its base."""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any


def reduced(obj: Any) -> Any:
    """Return how a strided array is pickled, as ``__reduce__`` says it; ``NotImplemented`` for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(obj) is not numpy.ndarray or obj.size == 0 or obj.dtype.hasobject:
        return NotImplemented
    if obj.flags.c_contiguous or obj.flags.f_contiguous:
        return NotImplemented
    extents = [(size - 1) * stride for size, stride in zip(obj.shape, obj.strides, strict=True)]
    before = sum(extent for extent in extents if extent < 0)
    size = sum(abs(extent) for extent in extents) + obj.itemsize
    # All bytes between the first and the last element: memory that overlaps other buffers stays one with them.
    memory = (ctypes.c_ubyte * size).from_address(obj.ctypes.data + before)
    layout = obj.dtype, obj.shape, obj.strides, -before, obj.flags.writeable
    return _array, (pickle.PickleBuffer(memory), *layout)


def _array(
    buffer: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, is_writeable: bool
) -> Any:
    import numpy as np

    made: Any = np.ndarray(shape, dtype, buffer, offset, strides)
    made.flags.writeable = is_writeable and made.flags.writeable
    return made
