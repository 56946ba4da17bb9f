"""Makes .safetensors files, good and bad, byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch

#: The format's names, of what the running torch has.
DTYPES = {
    name: getattr(torch, torchs)
    for name, torchs in {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
    }.items()
    if hasattr(torch, torchs)
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def entry(dtype: Any = "F32", shape: Any = (16,), offsets: Any = (0, 64), **more: Any) -> dict[str, Any]:
    """Return what a header says of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def file(header: Any, data: bytes = b"", *, length: int | None = None, pad: int = 8) -> bytes:
    """Return a file of a header (an object, or its very bytes) and data; `length` is what it says of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def saved(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, **more: Any
) -> bytes:
    """Return a good file of contiguous tensors."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, tensor in tensors.items():
        content = bytes_of(tensor)
        header[name] = entry(_NAMES[tensor.dtype], list(tensor.shape), [len(data), len(data) + len(content)])
        data += content
    return file(header, data, **more)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's elements, row by row."""
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
