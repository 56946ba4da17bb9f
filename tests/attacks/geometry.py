"""Tensors outside their storages, and arguments that are not a geometry."""

from functools import partial

import torch
from assembler import MARK, NUMEL, REDUCE, TUPLE, Code, call, code, name, ordered_dict, storage, tensor

from attacks.attack import Attack, Expected, Family
from attacks.tensors import UTILS, file, padded, parameter, v3

NONE = Code(b"N")


def sized(size, stride=None, offset=0):
    return tensor(None, offset, size, (1,) * len(size) if stride is None else stride)


def v2(*arguments):
    return call(name(UTILS, "_rebuild_tensor_v2"), *arguments)


def v1(*arguments):
    return call(name(UTILS, "_rebuild_tensor"), storage(), *arguments)


def size(*numbers):
    return call(name("torch", "Size"), numbers)


_OUTSIDE = {
    "20 of 16 elements": sized((20,)),
    "17 of 16 elements": sized((17,)),
    "17 of 16 elements, by _rebuild_tensor": v1(0, (17,), (1,)),
    "17 of 16 elements, by _rebuild_tensor_v3": v3("float32", size=(17,)),
    "17 of 16 elements, in a Parameter": parameter(sized((17,))),
    "65 of 64 bytes, as bytes": v3("uint8", size=(65,)),
    "9 doubles in 64 bytes": v3("float64", size=(9,)),
    "9 doubles in a storage of floats": v3("float64", storage(), (9,)),
    "16 elements at offset 1": sized((16,), offset=1),
    "1 element at offset 16": sized((1,), offset=16),
    "no dimension, at offset 16": sized((), offset=16),
    "offset 10^9": sized((1,), offset=10**9),
    "offset 2^62, whose bytes wrap to 0": sized((1,), offset=2**62),
    "offset 2^62 + 1, whose bytes wrap to 4": sized((1,), offset=2**62 + 1),
    "offset 2^63 - 1": sized((2,), offset=2**63 - 1),
    "offset 2^63": sized((1,), offset=2**63),
    "offset 2^64": sized((1,), offset=2**64),
    "offset -1": sized((1,), offset=-1),
    "offset -4": sized((1,), offset=-4),
    "offset -1 for nothing": sized((0,), offset=-1),
    "offset -2^63": sized((1,), offset=padded(-(2**63))),
    "stride 16": sized((2,), (16,)),
    "stride 16 of the last of two dimensions": sized((4, 2), (1, 16)),
    "stride 5 that reaches element 16": sized((4, 2), (5, 1)),
    "stride 2^62": sized((2,), (2**62,)),
    "stride 2^63": sized((2,), (2**63,)),
    "4 strides of 2^62, 2^64 elements in all": sized((5,), (2**62,)),
    "strides whose sum wraps": sized((2, 2, 2), (2**62, 2**62, 2**62)),
    "strides whose sum wraps to 0": sized((2, 2, 2, 2, 2), (2**62,) * 4 + (0,)),
    "offset and stride whose sum wraps": sized((2,), (2**63 - 1,), 2**63 - 1),
    "stride -1": sized((2,), (-1,)),
    "stride -1 from the last element": sized((16,), (-1,), 15),
    "strides of both signs": sized((2, 2), (4, -1), 1),
    "stride -1 of a dimension of 1": sized((1,), (-1,)),
    "stride -1 of a dimension of 0": sized((0,), (-1,)),
    "size -1": sized((-1,)),
    "size -1 beside size 0": sized((0, -1)),
    "sizes -4 and -4": sized((-4, -4)),
    "sizes 2^32 and 2^32, which wrap to 0": sized((2**32, 2**32), (0, 0)),
    "three sizes of product 2^64": sized((2**30, 2**30, 16), (0, 0, 0)),
    "sizes whose product wraps to 16": sized((2**60 + 1, 16), (0, 1)),
    "size 2^63": sized((2**63,), (0,)),
    "size 2^64 + 16": sized((2**64 + 16,)),
    "size 2^2000": sized((2**2000,), (0,)),
    "size 2^61 with stride 0, whose bytes are 2^63": sized((2**61,), (0,)),
    "size 2^62 with stride 0, whose bytes wrap to 0": sized((2**62,), (0,)),
    "sizes 0, 2^62 and 2^62": sized((0, 2**62, 2**62)),
    "sizes 2^62, 2^62 and 0": sized((2**62, 2**62, 0)),
    "65 dimensions": sized((1,) * 65),
    "65 dimensions of 0": sized((0,) * 65),
    "100 000 dimensions": sized((1,) * 100_000),
}
_NOTHING = {"17": 17, "10^15": 10**15, "2^63 - 1": 2**63 - 1}
_ARGUMENTS = {
    "two sizes, one stride": tensor(None, 0, (2, 2), (1,)),
    "one size, two strides": tensor(None, 0, (2,), (1, 1)),
    "no size, one stride": tensor(None, 0, (), (1,)),
    "sizes a string": tensor(None, 0, "ab", (1, 1)),
    "sizes bytes": tensor(None, 0, b"\x10", (1,)),
    "sizes None": tensor(None, 0, None, (1,)),
    "sizes an int": tensor(None, 0, 16, (1,)),
    "sizes a list": tensor(None, 0, [16], (1,)),
    "sizes a dict": tensor(None, 0, {16: 16}, (1,)),
    "sizes a set": tensor(None, 0, Code(b"\x8f(K\x10\x90"), (1,)),
    "strides a list": tensor(None, 0, (16,), [1]),
    "strides None": tensor(None, 0, (16,), None),
    "size a float": sized((16.0,)),
    "size a bool": sized((True,)),
    "size None": sized((None,)),
    "size a string": sized(("16",)),
    "size a tuple": sized(((16,),)),
    "size a tensor": sized((tensor(),)),
    "stride a float": sized((16,), (1.0,)),
    "stride a bool": sized((16,), (True,)),
    "sizes a torch.Size of -1": tensor(None, 0, size(-1), (1,)),
    "sizes a torch.Size of 17": tensor(None, 0, size(17), (1,)),
    **{
        f"offset {title}": sized((1,), offset=offset)
        for title, offset in {"None": None, "a float": 0.0, "a string": "0", "a bool": False, "a tuple": (0,)}.items()
    },
    "storage an int": tensor(1),
    "storage a string": tensor("0"),
    "storage None": tensor(NONE),
    "storage a tensor": tensor(tensor()),
    "storage a class": tensor(name("torch", "FloatStorage")),
    "storage the id of one": tensor(("storage", name("torch", "FloatStorage"), "0", "cpu", NUMEL)),
    "no arguments": v2(),
    "too few arguments": v2(storage(), 0, (1,)),
    "too many arguments": tensor(None, 0, (1,), (1,), False, None, None, None),
    "arguments a list": Code(name(UTILS, "_rebuild_tensor_v2") + code([]) + REDUCE),
    "arguments None": Code(name(UTILS, "_rebuild_tensor_v2") + NONE + REDUCE),
    "requires_grad of integers": tensor(storage(kind="IntStorage"), 0, (16,), (1,), True),
    "requires_grad of booleans": tensor(storage(kind="BoolStorage", numel=64), 0, (16,), (1,), True),
    "requires_grad 'yes'": tensor(None, 0, (16,), (1,), "yes"),
    "requires_grad 1": tensor(None, 0, (16,), (1,), 1),
    "requires_grad None": tensor(None, 0, (16,), (1,), None),
    "Parameter that requires_grad of integers": parameter(tensor(storage(kind="IntStorage"))),
    "Parameter that requires_grad 1": parameter(tensor(), 1),
    "Parameter of a storage": parameter(storage()),
    "Parameter of None": parameter(None),
    "Parameter of a list": parameter([1.0]),
    "metadata a list": tensor(None, 0, (16,), (1,), False, None, [1]),
    "metadata that says 1 for True": tensor(None, 0, (16,), (1,), False, None, {"conj": 1}),
    "metadata that says None": tensor(None, 0, (16,), (1,), False, None, {"neg": None}),
    "conjugate view of floats": tensor(None, 0, (16,), (1,), False, None, {"conj": True}),
    "conjugate view of bytes": v3("int8", storage(), (1,), metadata={"conj": True}),
    "quantized storage": tensor(storage(kind="QInt8Storage", numel=64), 0, (1,)),
    "quantized storage of bytes": tensor(storage(kind="QUInt8Storage", numel=64), 0, (1,)),
    "quantized storage of ints": tensor(storage(kind="QInt32Storage"), 0, (1,)),
    "dtype quantized": v3("qint8", size=(1,)),
    "dtype a string": v3(code("float32"), size=(1,)),
    "dtype None": v3(NONE, size=(1,)),
    "dtype a class": v3("FloatStorage", size=(1,)),
    "dtype a torch.Size": v3(size(4), size=(1,)),
}  # fmt: skip
_ODD = {
    "size 16 in an integer of 16 bytes": sized((padded(16, 16),), (1,)),
    "arguments a list of the right ones": Code(
        name(UTILS, "_rebuild_tensor_v2") + code([storage(), 0, (16,), (1,), False, ordered_dict()]) + REDUCE
    ),
}
_META = {
    "2^124 elements": ((2**62, 2**62), (1, 1)),
    "2^63 elements": ((2**63,), (1,)),
    "2^62 elements of 4 bytes": ((2**62,), (1,)),
    "size -1": ((-1,), (1,)),
    "sizes -4 and -4": ((-4, -4), (1, 1)),
    "stride -1": ((4,), (-1,)),
    "stride 2^61, whose bytes are -2^63": ((2,), (2**61,)),
    "stride 2^62, whose bytes wrap to 0": ((2,), (2**62,)),
    "stride 2^63 - 1": ((2,), (2**63 - 1,)),
    "strides whose sum wraps": ((2, 2, 2), (2**62,) * 3),
    "no stride": ((4,), ()),
    "65 dimensions": ((1,) * 65, (1,) * 65),
    "sizes a string": ("4", (1,)),
    "sizes a list": ([4], (1,)),
    "size a float": ((4.0,), (1,)),
}


def behind(value):
    """Return a call of ``_rebuild_from_type_v2`` that is to make the call which `value` is."""
    function, _, arguments = bytes(value).partition(b"\n")[2].partition(b"\n")
    inner = name(UTILS, function) + name("torch", "Tensor") + arguments[: -len(REDUCE)] + b"}"
    return Code(name("torch._tensor", "_rebuild_from_type_v2") + MARK + inner + TUPLE + REDUCE)


def meta(*geometry):
    rebuild = name(UTILS, "_rebuild_meta_tensor_no_storage")
    return call(rebuild, name("torch", "float32"), *geometry, False)


def attacks(values, expected=Expected.FORMAT, prefix="", **more):
    return (Attack(prefix + title, partial(file, value), expected, **more) for title, value in values.items())


def nothing(written, prefix="", **more):
    """Yield tensors without elements, which may begin anywhere: they read no byte."""
    for title, offset in _NOTHING.items():
        value = {f"nothing at offset {title}": written(sized((0,), offset=offset))}
        empty = partial(torch.arange(float(NUMEL)).as_strided, (0,), (1,), offset)
        yield from attacks(value, Expected.EQUAL, prefix, value=empty, **more)


GEOMETRY = Family(
    "Tensors outside of their storages",
    (
        *attacks(_OUTSIDE),
        *nothing(lambda tensor: tensor),
        *attacks(_ARGUMENTS),
        *attacks(_ODD),
        *attacks({title: meta(*geometry) for title, geometry in _META.items()}, prefix="meta tensor: "),
        *attacks(
            {
                "metadata of an unknown key": tensor(None, 0, (16,), (1,), False, None, {"other": True}),
                "metadata of a key that is no string": tensor(None, 0, (16,), (1,), False, None, {1: True}),
            },
            Expected.UNSUPPORTED,
        ),
        *attacks(
            {title: behind(value) for title, value in (_OUTSIDE | _ARGUMENTS).items()},
            prefix="by _rebuild_from_type_v2: ",
            needs="torch._tensor._rebuild_from_type_v2",
        ),
        *nothing(behind, prefix="by _rebuild_from_type_v2: ", needs="torch._tensor._rebuild_from_type_v2"),
    ),
)
