"""The names that ``.safetensors`` has for dtypes, and where its metadata are in other formats."""

from __future__ import annotations

#: The attribute of an ``OrderedDict`` that holds the metadata of a .safetensors file.
METADATA = "safetensors_metadata"

#: Keys are torch's names. The order is that of the format's enumeration. The format's writer sorts by it, in reverse:
#: the most strictly aligned dtypes come last here and first in a file. One name a line would hide that order.
DTYPES = {
    "bool": "BOOL", "float4_e2m1fn_x2": "F4", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32", "complex64": "C64", "float64": "F64", "int64": "I64",
    "uint64": "U64",
}  # fmt: skip
