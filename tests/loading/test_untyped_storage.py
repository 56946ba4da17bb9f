"""zerocopy.untyped_storage: a storage over memory that Python has."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import name_of
from equality import storage_bytes

import zerocopy

CONTENT = bytes(range(48))


def memfd(content: bytes) -> mmap.mmap:
    descriptor = os.memfd_create("weights")
    os.write(descriptor, content)
    made = mmap.mmap(descriptor, len(content))
    os.close(descriptor)
    return made


WRITABLE: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(CONTENT),
    "memoryview": lambda: memoryview(bytearray(CONTENT)),
    "memoryview-slice": lambda: memoryview(bytearray(b"xyz" + CONTENT))[3:],
    "memoryview-2d": lambda: memoryview(bytearray(CONTENT)).cast("H", (4, 6)),
    "mmap-memfd": lambda: memfd(CONTENT),
    "array": lambda: array.array("i", CONTENT),
    "ctypes": lambda: (ctypes.c_char * 48).from_buffer_copy(CONTENT),
    "numpy-uint8": lambda: np.frombuffer(bytearray(CONTENT), np.uint8),
    "numpy-float64": lambda: np.frombuffer(bytearray(CONTENT), np.float64),
    "numpy-complex128": lambda: np.frombuffer(bytearray(CONTENT), np.complex128),
    "numpy-big-endian": lambda: np.frombuffer(bytearray(CONTENT), ">i4"),
    "numpy-record": lambda: np.frombuffer(bytearray(CONTENT), [("a", "u2"), ("b", "f4")]),
    "numpy-2d": lambda: np.frombuffer(bytearray(CONTENT), np.int16).reshape(4, 6),
    "numpy-0d": lambda: np.array(3.5),
    "tensor-numpy": lambda: torch.arange(12, dtype=torch.int32).numpy(),
}

READ_ONLY: dict[str, Callable[[], Any]] = {
    "bytes": lambda: CONTENT,
    "memoryview": lambda: memoryview(CONTENT),
    "read-only-view": lambda: memoryview(bytearray(CONTENT)).toreadonly(),
    "numpy": lambda: np.frombuffer(CONTENT, np.float32),
}


def address_of(buffer: Any) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data if memoryview(buffer).ndim else buffer.ctypes.data


def test_untyped_storage_is_the_buffers_memory() -> None:
    for kind, make in WRITABLE.items():
        buffer = make()
        before = memoryview(buffer).tobytes()
        storage = zerocopy.untyped_storage(buffer)
        assert type(storage) is torch.UntypedStorage and storage.device == torch.device("cpu")
        assert storage.nbytes() == len(before), kind
        assert storage.data_ptr() == address_of(buffer), "no copy"
        assert storage_bytes(storage) == before
        torch.empty(0, dtype=torch.uint8).set_(storage)[1] = 0xEE
        assert memoryview(buffer).tobytes() == before[:1] + b"\xee" + before[2:]


def test_read_only_is_refused_unless_allowed() -> None:
    for make in READ_ONLY.values():
        buffer = make()
        with pytest.raises(ValueError, match="read-only"):
            zerocopy.untyped_storage(buffer)
        storage = zerocopy.untyped_storage(buffer, allow_readonly=True)
        assert storage_bytes(storage) == CONTENT and storage.data_ptr() == address_of(buffer)


def test_read_only_mapping(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        with pytest.raises(ValueError, match="read-only"):
            zerocopy.untyped_storage(mapping)
        storage = zerocopy.untyped_storage(mapping, allow_readonly=True)
        assert storage_bytes(storage) == CONTENT
        del storage


def test_empty() -> None:
    arrays = bytearray(), array.array("d"), np.empty(0), np.empty((3, 0)), b""
    for empty in (*arrays, memoryview(bytearray()), memoryview(bytearray(4))[2:2]):
        storage = zerocopy.untyped_storage(empty, allow_readonly=True)
        assert storage.nbytes() == 0
        assert torch.empty(0).set_(storage, 0, (0, 4), (4, 1)).sum() == 0


def test_not_contiguous_is_a_buffer_error() -> None:
    arrays = (
        np.zeros((4, 4))[:, ::2],
        np.zeros((4, 3)).T,
        np.zeros(8)[::-1],
        np.broadcast_to(np.zeros(1), (4,)),
    )
    for buffer in (*arrays, np.asfortranarray(np.zeros((4, 3))), memoryview(bytearray(8))[::2]):
        with pytest.raises(BufferError, match="contiguous"):
            zerocopy.untyped_storage(buffer, allow_readonly=True)


@pytest.mark.parametrize("thing", [None, 5, "text", [1], object(), torch.ones(2), iter(b"")], ids=name_of)
def test_no_buffer_is_a_type_error(thing: Any) -> None:
    with pytest.raises(TypeError):
        zerocopy.untyped_storage(thing)


def test_buffer_is_locked_while_it_is_used() -> None:
    buffer = bytearray(CONTENT)
    tensor = torch.empty(0, dtype=torch.uint8).set_(zerocopy.untyped_storage(buffer))
    for change in (buffer.clear, lambda: buffer.extend(b"more"), lambda: buffer.pop()):
        with pytest.raises(BufferError):
            change()
    mapping = memfd(CONTENT)
    mapped = torch.empty(0, dtype=torch.uint8).set_(zerocopy.untyped_storage(mapping))[4:8]
    with pytest.raises(BufferError):
        mapping.close()
    assert mapped.tolist() == [4, 5, 6, 7]
    del tensor, mapped
    buffer.clear()
    mapping.close()


def test_untyped_storage_is_not_resizable() -> None:
    storage = zerocopy.untyped_storage(bytearray(8))
    with pytest.raises(RuntimeError, match="resiz"):
        storage.resize_(16)
    assert storage.nbytes() == 8


@pytest.mark.parametrize("dtype", ["O", "i4,O", [("number", "i4"), ("inner", [("object", "O")])]])
def test_python_objects_are_no_bytes(dtype: Any) -> None:
    with pytest.raises(TypeError, match="Python objects"):
        zerocopy.untyped_storage(np.zeros(3, dtype=dtype))
