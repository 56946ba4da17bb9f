""".safetensors files: a header of JSON that says where each tensor lies, and the tensors' bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch
from safetensors_files import entry, file, saved

from attacks.attack import Attack, Expected, Family

EQUAL, LOADS, FORMAT, UNSUPPORTED = Expected.EQUAL, Expected.LOADS, Expected.FORMAT, Expected.UNSUPPORTED

FLOATS = torch.arange(16.0)
DATA = struct.pack("<16f", *range(16))
GOOD = file({"weight": entry()}, DATA)


def of(*args: Any, **more: Any) -> bytes:
    """Return a file of one tensor over 64 bytes."""
    return file({"weight": entry(*args, **more)}, DATA)


def _weight() -> Any:
    return {"weight": FLOATS}


MANY = {str(i): torch.full((3,), i, dtype=torch.int16) for i in range(2000)}
HALVES = {"a": FLOATS[:8].clone(), "b": FLOATS[8:].clone()}
ODD_NAMES = {name: torch.ones(4) for name in ("", "a.b", "é\n", "../x", "\x00", "__Metadata__")}

VALID: dict[str, tuple[bytes, Callable[[], Any]]] = {
    "a valid file": (GOOD, _weight),
    "metadata": (saved({"weight": FLOATS}, {"format": "pt", "x": "y"}), _weight),
    "metadata that is null": (file({"__metadata__": None, "weight": entry()}, DATA), _weight),
    "a header without padding": (saved({"weight": FLOATS}, pad=1), _weight),
    "data at an odd offset": (file(json.dumps({"weight": entry()}).encode().ljust(65), DATA, pad=1), _weight),
    "4096 spaces behind the header": (file(json.dumps({"weight": entry()}).encode() + b" " * 4096, DATA), _weight),
    "tensors in another order than their data": (
        file({"b": entry(shape=[8], offsets=[32, 64]), "a": entry(shape=[8], offsets=[0, 32])}, DATA),
        lambda: HALVES,
    ),
    "a scalar": (file({"x": entry(shape=[], offsets=[0, 4])}, DATA[4:8]), lambda: {"x": torch.tensor(1.0)}),
    "a tensor of no elements": (
        file({"x": entry(shape=[0, 3], offsets=[0, 0]), "weight": entry()}, DATA),
        lambda: {"x": torch.empty(0, 3), "weight": FLOATS},
    ),
    "no tensors": (file({}), dict),
    "odd names": (saved(ODD_NAMES), lambda: ODD_NAMES),
    "2000 tensors": (saved(MANY), lambda: MANY),
    "bools of 0 and 1": (file({"x": entry("BOOL", [2], [0, 2])}, b"\0\1"), lambda: {"x": torch.tensor([False, True])}),
    "a shape of 64 dimensions": (of(shape=[1] * 63 + [16]), lambda: {"weight": FLOATS.view(*[1] * 63, 16)}),
}  # fmt: skip

HEAD = b'{"weight":{"dtype":"F32","shape":[16],"data_offsets":[0,64]'

#: Bytes that are not a length, a header or JSON.
HEADERS = {
    "no bytes": b"",
    "seven bytes": GOOD[:7],
    "eight bytes": GOOD[:8],
    "a length of 0": struct.pack("<Q", 0) + GOOD[8:],
    "a length beyond the file": struct.pack("<Q", len(GOOD)) + GOOD[8:],
    "a length of 100 000 001": struct.pack("<Q", 100_000_001) + GOOD[8:],
    "a length of 2^63": struct.pack("<Q", 2**63) + GOOD[8:],
    "a length of 2^64 - 1": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "a length of 2^64 - 8": struct.pack("<Q", 2**64 - 8) + GOOD[8:],
    "a length that ends within the header": struct.pack("<Q", 20) + GOOD[8:],
    "a header that is not JSON": file(b"{weight}", DATA),
    "a header that is not UTF-8": file(HEAD.replace(b"weight", b"we\xffght") + b"}}", DATA),
    "a header that is an array": file(b"[1]", DATA),
    "a header that is a number": file(b"1", DATA),
    "a header that does not end": file(HEAD, DATA),
    "bytes after the header": file(HEAD + b"}}x", DATA),
    "two headers": file(HEAD + b"}}{}", DATA),
    "zeros after the header": file(HEAD + b"}}\0\0\0", DATA),
    "a space before the header": file(b" " + HEAD + b"}}", DATA),
    "a byte order mark": file(b"\xef\xbb\xbf" + HEAD + b"}}", DATA),
    "a comment": file(HEAD + b"}/**/}", DATA),
    "200 000 arrays in each other": file(b'{"x":' + b"[" * 200_000, DATA),
    "100 000 objects in each other": file(b'{"x":' * 100_000, DATA),
    "one name twice": file(HEAD + b"}," + HEAD[1:] + b"}}", DATA),
    "one name twice, once escaped": file(HEAD + b"}," + HEAD[1:].replace(b"w", b"\\u0077", 1) + b"}}", DATA),
    "one field twice": file(HEAD + b',"dtype":"F32"}}', DATA),
    "one field twice, once escaped": file(HEAD + b',"\\u0064type":"I32"}}', DATA),
    "a lone surrogate in a name": file(HEAD.replace(b"weight", b"\\ud800") + b"}}", DATA),
    "metadata twice": file(b'{"__metadata__":{},"__metadata__":{"a":"b"}}'),
    "metadata with a name twice": file(b'{"__metadata__":{"a":"b","a":"c"}}'),
    "metadata that is a list": file({"__metadata__": []}),
    "metadata that is a tensor": file({"__metadata__": entry()}, DATA),
    "metadata of numbers": file({"__metadata__": {"a": 1}}),
    "metadata of null": file({"__metadata__": {"a": None}}),
}

ABSENT = [{key: value for key, value in entry().items() if key != left_out} for left_out in entry()]

ENTRIES: dict[str, bytes] = {
    "an entry that is null": file({"weight": None}, DATA),
    "an entry that is a list": file({"weight": ["F32", [16], [0, 64]]}, DATA),
    "an entry without dtype": file({"weight": ABSENT[0]}, DATA),
    "an entry without shape": file({"weight": ABSENT[1]}, DATA),
    "an entry without offsets": file({"weight": ABSENT[2]}, DATA),
    **{f"a dtype {json.dumps(dtype)}": of(dtype) for dtype in ("f32", "F31", "", "float32", 1, None, ["F32"])},
    **{
        f"offsets {json.dumps(offsets)}": of(offsets=offsets)
        for offsets in (
            [64, 0], [0, 65], [0, 2**40], [0, 2**63], [0, 2**64 - 1], [0, 2**64], [-1, 63], [0.0, 64.0], ["0", "64"],
            [False, True], [None, None], None, 64, [], [64], [0, 64, 64], [1, 65], [2**64 - 64, 2**64], {"0": 64},
        )
    },
    **{
        f"a shape {json.dumps(shape)[:38]}": of(shape=shape)
        for shape in (
            [17], [15], [], [0], [-4, -4], [-1], [2**62, 4, 4], [2**63], [2**64], [2**64 + 16], [16.0], ["16"], None,
            [None], [[16]], [True, 16], 16, "16", {}, [1] * 64 + [16],
        )
    },
    "a shape of 100 001 dimensions": of(shape=[1] * 100_001),
    "offsets in exponent form": file(HEAD.replace(b"64", b"64e0") + b"}}", DATA),
    "a shape in exponent form": file(HEAD.replace(b"[16]", b"[1.6e1]") + b"}}", DATA),
    "offsets that are NaN": file(HEAD.replace(b"64", b"NaN") + b"}}", DATA),
    "no elements over 64 bytes": of(shape=[0, 16]),
    "a shape that wraps beside a 0": file({"x": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}),
    "an odd number of half bytes": file({"x": entry("F4", [3], [0, 2])}, b"ab"),
    "three numbers of 6 bits": file({"x": entry("F6_E2M3", [3], [0, 2])}, b"ab"),
}  # fmt: skip

LAYOUTS = {
    "two tensors over the same bytes": file({"a": entry(), "b": entry()}, DATA),
    "two tensors that share bytes": file(
        {"a": entry(shape=[10], offsets=[0, 40]), "b": entry(shape=[10], offsets=[24, 64])}, DATA
    ),
    "20 000 tensors over the same bytes": file({str(i): entry() for i in range(20_000)}, DATA),
    "bytes before the first tensor": file({"a": entry(shape=[15], offsets=[4, 64])}, DATA),
    "bytes between two tensors": file(
        {"a": entry(shape=[4], offsets=[0, 16]), "b": entry(shape=[4], offsets=[48, 64])}, DATA
    ),
    "bytes after the last tensor": GOOD + b"\0",
    "an archive after the last tensor": GOOD + b"PK\5\6" + bytes(18),
    "bytes and no tensors": file({}, DATA),
    "one byte too few": GOOD[:-1],
    "half of the data": GOOD[:-32],
    "none of the data": GOOD[:-64],
}

NOT_OURS = {
    "a field that nobody knows": (of(scale=2), ("scale",)),
    "a dtype F6_E2M3": (file({"x": entry("F6_E2M3", [4], [0, 3])}, b"abc"), ("F6_E2M3",)),
    "a dtype F6_E3M2": (file({"x": entry("F6_E3M2", [4], [0, 3])}, b"abc"), ("F6_E3M2",)),
}


def _attacks() -> Iterable[Attack]:
    for title, (content, value) in VALID.items():
        yield Attack(title, lambda content=content: content, EQUAL, value=value)
    for title, content in {**HEADERS, **ENTRIES, **LAYOUTS}.items():
        yield Attack(title, lambda content=content: content, FORMAT)
    for title, (content, says) in NOT_OURS.items():
        yield Attack(title, lambda content=content: content, UNSUPPORTED, says)
    yield Attack("bools of other bytes", lambda: file({"x": entry("BOOL", [2], [0, 2])}, b"\x02\xff"), LOADS)


SAFETENSORS = Family("safetensors files", tuple(_attacks()))
