"""Storages over memory that Python has."""

from __future__ import annotations

import torch

from zerocopy._native import _C
from zerocopy._typing import Bytes


def untyped_storage(buffer: Bytes, *, allow_readonly: bool = False) -> torch.UntypedStorage:
    """Return an ``UntypedStorage`` over a buffer, without a copy.

    The storage holds the buffer, and each tensor made from the storage keeps it alive. Until all are gone, a
    ``bytearray`` cannot be resized and an ``mmap`` cannot be closed (``BufferError``).

    Parameters
    ----------
    buffer : object with the buffer protocol
        ``memoryview``, ``mmap``, ``bytearray``, ``array``, NumPy array, ... of any item type, C-contiguous. Its
        length may be zero.
    allow_readonly : bool
        Take a read-only buffer (``bytes``, a read-only mapping) too. torch does not know that it must not write
        there: a write to such a tensor corrupts the buffer's owner, or kills the process.

    Returns
    -------
    torch.UntypedStorage
        On the CPU, ``nbytes()`` as long as the buffer, not resizable.

    Raises
    ------
    TypeError
        If the object does not have the buffer protocol.
    BufferError
        If the buffer is not C-contiguous.
    ValueError
        If it is read-only and `allow_readonly` is false.

    Examples
    --------
    >>> import torch, zerocopy
    >>> buffer = bytearray(8)
    >>> tensor = torch.empty(0, dtype=torch.int32).set_(zerocopy.untyped_storage(buffer), 0, (2,), (1,))
    >>> tensor.fill_(1).tolist()
    [1, 1]
    >>> bytes(buffer).hex()
    '0100000001000000'
    """
    return _C.untyped_storage(buffer, bool(allow_readonly))
