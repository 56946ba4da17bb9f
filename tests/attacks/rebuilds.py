"""Nested tensors, subclasses, tensors of other devices: rebuild functions with arguments that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import assembler
import torch
from assembler import Code, call, get, name, ordered_dict, storage, tensor

from attacks.attack import Attack, Expected
from attacks.sparse import sparse_tensor
from attacks.tensor_parts import FLOATS, REPEATED, UTILS, attacks, doubled, file, layout, longs

EQUAL, FORMAT, REFUSED = Expected.EQUAL, Expected.FORMAT, Expected.REFUSED
TYPE = "torch._tensor"
TENSOR = name("torch", "Tensor")


def function(path: str) -> Code:
    module, _, attribute = path.rpartition(".")
    return name(module, attribute)


# ---------------------------------------------------------------------------------------------- nested

NESTED = f"{UTILS}._rebuild_nested_tensor"


def nested(
    sizes: tuple[int, ...] | Code = (4, 2),
    strides: tuple[int, ...] | Code = (1, 1),
    starts: Any = (0, 4),
    buffer: Code | None = None,
    dimensions: int = 1,
    integers: Mapping[str, tuple[int, ...]] | None = None,
) -> bytes:
    """Return a file of a nested tensor, whose parts are rows of 16 floats if nothing else is said."""
    shapes = {"sizes": sizes, "strides": strides}
    columns = {
        key: longs(key, values, () if isinstance(values, Code) else (len(values) // dimensions, dimensions))
        for key, values in shapes.items()
    }
    in_place = isinstance(starts, tuple)
    over = longs("starts", starts) if in_place else starts
    made = call(function(NESTED), tensor() if buffer is None else buffer, *columns.values(), over)
    return file(made, shapes | ({"starts": starts} if in_place else {}) | (integers or {}))


def _strided(key: str, count: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Code:
    return tensor(storage(key, "LongStorage", numel=count), 0, size, stride)


FLOATING = tensor(None, 0, (2, 1), (1, 1))
NESTED_FAULTS: dict[str, dict[str, Any]] = {
    "a start of -1": {"starts": (0, -1)},
    "a start beyond its buffer": {"starts": (0, 16)},
    "a start of 2^40": {"starts": (0, 2**40)},
    "a start of 2^62": {"starts": (0, 2**62)},
    "a part that leaves its buffer": {"starts": (0, 15)},
    "a size of -1": {"sizes": (4, -1)},
    "a size of 2^62": {"sizes": (4, 2**62)},
    "a stride of -1": {"strides": (1, -1)},
    "a stride of 2^62": {"strides": (1, 2**62)},
    "a stride of 2^63 - 1": {"sizes": (4, 3), "strides": (1, 2**63 - 1)},
    "a size whose product wraps": {"sizes": (4, 4, 2**62, 8), "strides": (4, 1, 0, 0), "dimensions": 2},
    "a start too few": {"starts": (0,)},
    "a start too many": {"starts": (0, 4, 8)},
    "starts in a list, one too few": {"starts": [0]},
    "a start that is text": {"starts": [0, "4"]},
    "starts in lists doubled 40 times": {"starts": doubled(40)},
    "starts that are None": {"starts": None},
    "starts that are floats": {"starts": tensor(None, 0, (2,), (1,))},
    "starts of two dimensions": {"starts": _strided("starts", 4, (2, 2), (2, 1)), "integers": {"starts": (0,) * 4}},
    "starts that repeat their storage": {"starts": REPEATED},
    "starts that are read other than they are checked": {
        "starts": _strided("starts", 3, (2,), (2,)), "integers": {"starts": (0, 2**40, 4)},
    },
    "sizes that are floats": {"sizes": FLOATING, "strides": FLOATING},
    "sizes of one dimension": {"sizes": _strided("sizes", 2, (2,), (1,)), "integers": {"sizes": (4, 2)}},
    "sizes that are read other than they are checked": {
        "sizes": _strided("more", 4, (2, 2), (1, 2)), "strides": _strided("more", 4, (2, 2), (1, 2)),
        "integers": {"more": (1, 8, 8, 1)}, "starts": (0, 0),
    },
    "sizes of another shape than strides": {"strides": (1,)},
    "sizes that are None": {"sizes": Code(b"N")},
    "sizes that repeat their storage": {"sizes": REPEATED, "strides": REPEATED},
    "a buffer that is None": {"buffer": Code(b"N")},
    "a buffer that is a storage": {"buffer": storage()},
    "a buffer that repeats its storage": {"buffer": REPEATED, "starts": (0, 2**35)},
    "a buffer of two dimensions": {"buffer": tensor(None, 0, (4, 4), (4, 1))},
    "a buffer that is sparse": {"buffer": sparse_tensor()},
}  # fmt: skip


def _valid_nested() -> Iterable[Attack]:
    def value() -> Any:
        size, stride = torch.tensor([[4], [2]]), torch.tensor([[1], [1]])
        return torch._nested_view_from_buffer(torch.full((6,), 2.0), size, stride, torch.tensor([0, 4]))

    # Some releases require that the parts fill their buffer's storage. As floats, each integer is two times 2.0.
    filled = tensor(storage("filled", numel=6), 0, (6,), (1,))
    made = nested(buffer=filled, integers={"filled": (0x4000_0000_4000_0000,) * 3})
    yield Attack("a valid nested tensor", lambda: made, EQUAL, value=value, needs=NESTED)


# --------------------------------------------------------------------------------------- other devices

DEVICE = f"{UTILS}._rebuild_device_tensor_from_cpu_tensor"
ARRAY = f"{UTILS}._rebuild_device_tensor_from_numpy"
FLOAT = name("torch", "float32")


def on_device(
    data: Any = None, dtype: Any = FLOAT, device: Any = "cpu", grad: Any = False, path: str = DEVICE
) -> bytes:
    """Return a file of a tensor of a device that torch.save wrote by way of the CPU."""
    return file(call(function(path), tensor() if data is None else data, dtype, device, grad), {})


DEVICE_FAULTS: dict[str, dict[str, Any]] = {
    "unknown": {"device": "nonsense"},
    "that is not there": {"device": "xla"},
    "whose module would be imported": {"device": "hpu"},
    "whose module would be imported, of whatever name": {"device": "privateuseone:0"},
    "with an index beyond 8 bits": {"device": "cpu:10000000000"},
    "that is empty": {"device": ""},
    "that is a number": {"device": -1},
    "with a lone surrogate": {"device": "cpu\ud800"},
    "over data that repeat their storage": {"data": REPEATED, "dtype": name("torch", "float64")},
    "over None": {"data": Code(b"N")},
    "over a storage": {"data": storage()},
    "whose dtype is text": {"dtype": "float32"},
    "whose dtype is a layout": {"dtype": layout()},
    "whose gradient is text": {"grad": "yes"},
    "that has a gradient of integers": {"dtype": name("torch", "int64"), "grad": True},
}
ARRAYS: dict[str, dict[str, Any]] = {
    "a tensor": {"data": tensor()},
    "a list": {"data": [1.0]},
    "bytes": {"data": b"12345678"},
    "None": {"data": Code(b"N")},
}


# ------------------------------------------------------------------------------------------ subclasses

WRAPPER = f"{UTILS}._rebuild_wrapper_subclass"
TYPED = f"{TYPE}._rebuild_from_type_v2"
STRIDED = layout("torch.strided")
V2 = (storage(), 0, (16,), (1,), False, ordered_dict())


def wrapper(cls: Any = TENSOR, size: Any = (16,), dtype: Any = FLOAT) -> bytes:
    """Return a file of a subclass that has a shape only."""
    return file(call(function(WRAPPER), cls, dtype, size, (1,), 0, STRIDED, "cpu", False), {})


def typed(
    cls: Any = TENSOR,
    path: str | Code = f"{UTILS}._rebuild_tensor_v2",
    arguments: Any = V2,
    state: Any = None,
) -> bytes:
    """Return a file of a tensor with a class and a state."""
    made = function(path) if type(path) is str else path
    return file(call(function(TYPED), made, cls, arguments, {} if state is None else state), {})


WRAPPERS: dict[str, dict[str, Any]] = {
    "of torch.Tensor itself": {},
    "of torch.Tensor itself, 2^38 elements": {"size": (2**38,)},
    "of a class that is no tensor": {"cls": name("collections", "OrderedDict")},
    "of a storage class": {"cls": name("torch", "FloatStorage")},
    "of a function": {"cls": function(WRAPPER)},
    "of a dtype": {"cls": FLOAT},
    "of a tensor": {"cls": tensor()},
    "of None": {"cls": None},
    "of text": {"cls": "torch.Tensor"},
}
TYPES: dict[str, dict[str, Any]] = {
    "no tensor class": {"cls": name("collections", "OrderedDict")},
    "a storage class": {"cls": name("torch", "FloatStorage")},
    "a class of old": {"cls": name("torch", "FloatTensor")},
    "lists doubled 40 times for a state": {"state": doubled(40)},
    "lists doubled 40 times for a class": {"cls": doubled(40)},
    "a tensor for a class": {"cls": tensor()},
    "None for a class": {"cls": None},
    "arguments that are None": {"arguments": None},
    "no arguments": {"arguments": ()},
    "an argument too many": {"arguments": (*V2, None, 1)},
    "a tensor larger than its storage": {"arguments": (storage(), 0, (17,), *V2[3:])},
    "a tensor before its storage": {"arguments": (storage(), -1, *V2[2:])},
    "a function that makes no tensor": {
        "path": "torch.serialization._get_layout", "arguments": ("torch.strided",),
    },
    "a state in a list": {"state": [1]},
}  # fmt: skip
UNCALLED: dict[str, dict[str, Any]] = {
    "a tensor class": {"path": TENSOR, "arguments": (2**38,)},
    "a storage class": {"path": name("torch", "FloatStorage"), "arguments": (2**38,)},
    "a dtype": {"path": FLOAT, "arguments": ()},
    "a tensor": {"path": tensor(), "arguments": ()},
    "text": {"path": Code(assembler.code("print")), "arguments": ("x",)},
    "None": {"path": Code(b"N"), "arguments": ()},
}
DOUBLED: dict[str, dict[str, Any]] = {"lists doubled 40 times": {"path": doubled(40), "arguments": ()}}
STATES: dict[str, dict[str, Any]] = {
    "sets __class__": {"state": {"__class__": TENSOR}},
    "sets __dict__": {"state": {"__dict__": {}}},
    "sets a method": {"state": {"tolist": 1}},
    "sets data": {"state": {"data": tensor(None, 0, (1,))}},
    "sets hooks": {"state": {"_backward_hooks": ordered_dict((0, 1))}},
    "sets __class__ as a slot": {"state": (None, {"__class__": TENSOR})},
    "sets an attribute that is a number": {"state": {1: 1}},
    "sets a method, of a name of 10 000 characters": {"state": {"__" + "x" * 10_000: 1}},
}

# ------------------------------------------------------------------------------------ any of them at all

#: Each rebuild function, and whether only some releases have it on their list.
FUNCTIONS = {
    f"{UTILS}._rebuild_tensor": False,
    f"{UTILS}._rebuild_tensor_v2": False,
    f"{UTILS}._rebuild_tensor_v3": False,
    f"{UTILS}._rebuild_parameter": False,
    f"{UTILS}._rebuild_parameter_with_state": False,
    f"{UTILS}._rebuild_sparse_tensor": False,
    f"{UTILS}._rebuild_sparse_csr_tensor": False,
    f"{UTILS}._rebuild_meta_tensor_no_storage": False,
    f"{UTILS}._rebuild_qtensor": True,
    NESTED: True,
    DEVICE: False,
    ARRAY: True,
    WRAPPER: True,
    TYPED: True,
    "torch.serialization._get_layout": False,
}


def _any() -> Iterable[Attack]:
    given: dict[str, tuple[Any, ...]] = {
        "nothing": (),
        "None in each place": (None,) * 4,
        "twenty numbers": (1,) * 20,
        "lists doubled 40 times": (doubled(40), *(get(40),) * 3),
        "itself": (),
    }
    for path, listed_by_some in FUNCTIONS.items():
        for what, arguments in given.items():
            arguments = (function(path),) * 4 if what == "itself" else arguments
            content = file(call(function(path), *arguments), {})
            title = f"{path.rpartition('.')[2]} of {what}"
            yield Attack(title, lambda c=content: c, FORMAT, needs=path if listed_by_some else "")


def _titled(what: str, cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {f"{what} {fault}": fields for fault, fields in cases.items()}


REBUILT = (
    *_valid_nested(),
    *attacks(nested, FORMAT, _titled("a nested tensor with", NESTED_FAULTS), needs=NESTED),
    Attack("a valid tensor of another device", on_device, EQUAL, value=lambda: FLOATS),
    *attacks(on_device, FORMAT, _titled("a tensor of a device", DEVICE_FAULTS)),
    *attacks(on_device, FORMAT,
             _titled("a device's array that is", {k: v | {"path": ARRAY} for k, v in ARRAYS.items()}),
             needs=ARRAY),
    *attacks(wrapper, FORMAT, _titled("a wrapper subclass", WRAPPERS), needs=WRAPPER),
    Attack("a valid tensor of a class", typed, EQUAL, value=lambda: FLOATS, needs=TYPED),
    *attacks(typed, FORMAT, _titled("a tensor of a class, with", TYPES), needs=TYPED),
    *attacks(typed, REFUSED, _titled("a tensor of a class, made by", UNCALLED), needs=TYPED),
    *attacks(typed, FORMAT, _titled("a tensor of a class, made by", DOUBLED), needs=TYPED),
    *attacks(typed, REFUSED, _titled("a tensor of a class, whose state", STATES), needs=TYPED),
    *_any(),
)  # fmt: skip
