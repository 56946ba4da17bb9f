"""Identity of objects: containers, cycles, copies, arguments that come back."""

from __future__ import annotations

import array
import collections
import copy
from pathlib import Path
from typing import Any

import numpy
import torch

from share_catalog.case import explicit


@explicit(always=True)
def student_and_teacher() -> Any:
    """A deep copy has storages of its own."""
    student = _filled(torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)))
    return {"student": student, "teacher": copy.deepcopy(student)}


@explicit()
def shallow_copy_of_module() -> Any:
    module = _filled(torch.nn.Linear(100, 100))
    return [module, copy.copy(module)]


@explicit()
def state_dict_beside_its_module() -> Any:
    module = _filled(torch.nn.Linear(100, 100))
    return {"module": module, "state": module.state_dict(), "copy": copy.deepcopy(module.state_dict())}


def _filled(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.arange(float(parameter.numel())).reshape(parameter.shape) / 100 + i)
    return module


@explicit()
def dictionary_within_itself() -> Any:
    outer: dict[str, Any] = {"tensor": torch.ones(8192)}
    outer["self"], outer["list"] = outer, [outer, outer["tensor"]]
    return outer


@explicit()
def list_within_itself() -> Any:
    items: list[Any] = [torch.ones(3)]
    items += [items, {"items": items}]
    return items


class Node:
    """Has neighbours."""

    def __init__(self, name: str) -> None:
        self.name, self.others, self.weight = name, [], torch.full((5000,), float(len(name)))


@explicit()
def objects_in_a_cycle() -> Any:
    nodes = [Node("a"), Node("bb"), Node("ccc")]
    for node, other in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        node.others += [other, other.weight]
    return nodes[0]


@explicit()
def one_list_at_several_places() -> Any:
    shared = [1, 2, torch.ones(3)]
    return {"a": shared, "b": shared, "equal": [1, 2, torch.ones(3)], "c": (shared, shared)}


@explicit()
def one_tensor_at_several_places() -> Any:
    shared = torch.ones(8192)
    return {"a": shared, "alias": shared.view(-1), "b": [shared, shared.detach()], "equal": torch.ones(8192)}


@explicit()
def order_of_dictionaries() -> Any:
    return {"z": 1, "a": 2, 3: "three", (1, 2): "pair", None: 0, True: 1, 2.5: 4}


@explicit()
def kinds_of_containers() -> Any:
    counter = collections.Counter("abracadabra")
    default = collections.defaultdict(list, {"a": [torch.ones(3)]})
    ordered = collections.OrderedDict(b=torch.ones(8192), a=torch.ones(8192))
    ordered._metadata = {"version": 1}
    return [
        counter,
        default,
        ordered,
        collections.deque([1, torch.ones(2)], maxlen=3),
        {1, 2, 3},
        frozenset("ab"),
    ]


Pair = collections.namedtuple("Pair", ["left", "right"])


@explicit()
def named_tuples() -> Any:
    tensor = torch.ones(8192)
    return [Pair(tensor, tensor), Pair(tensor, torch.ones(8192)), torch.ones(4, 4).max(0)]


@explicit()
def dictionary_with_tensors_as_keys() -> Any:
    first, second = torch.ones(8192), torch.zeros(3)
    return {"state": {first: "first", second: "second"}, "keys": [first, second]}


@explicit()
def deeply_nested_list() -> Any:
    nested: list[Any] = [torch.ones(3)]
    for _ in range(60):
        nested = [nested]
    return nested


@explicit()
def thousands_of_names() -> Any:
    return {f"layer.{i}.weight": torch.full((8,), float(i)) for i in range(1500)}


@explicit(always=True)
def arrays_of_numpy() -> Any:
    base = numpy.arange(6000.0)
    columns = numpy.asfortranarray(base.reshape(60, 100))
    fixed = numpy.arange(3000)
    fixed.flags.writeable = False
    return [
        base.copy(),
        columns,
        fixed,
        numpy.arange(3),
        numpy.zeros(5000),
        numpy.zeros(5000),
        numpy.float32(2.5),
    ]


@explicit()
def one_array_at_several_places() -> Any:
    base = numpy.arange(6000.0)
    return {"a": base, "b": [base], "equal": base.copy()}


@explicit()
def arrays_of_odd_types() -> Any:
    records = numpy.zeros(600, dtype=[("a", "f8"), ("b", "i4", (2,))])
    records["a"] = numpy.arange(600)
    objects = numpy.array([1, "two", [3]], dtype=object)
    return [
        records,
        objects,
        numpy.array(["text", "more"]),
        numpy.arange("2020-01", "2020-06", dtype="datetime64[D]"),
    ]


@explicit()
def bytes_and_buffers() -> Any:
    long = bytes(range(256)) * 40
    return [b"short", long, bytearray(long), bytearray(b"x"), array.array("d", range(2000)), long]


@explicit()
def memoryviews() -> Any:
    long = bytes(range(256)) * 40
    return [memoryview(long), memoryview(bytearray(long)), memoryview(long).cast("i", [4, 640])]


@explicit()
def equal_byte_arrays_apart() -> Any:
    return [
        bytearray(20000),
        bytearray(20000),
        numpy.zeros(20000, numpy.uint8),
        torch.zeros(20000, dtype=torch.uint8),
    ]


@explicit(arguments=lambda folder: ([torch.ones(8192), "text"], {"a": torch.arange(5000.0)}))
def arguments_that_come_back(items: Any, named: Any) -> Any:
    return {"items": items, "named": named, "first": items[0], "again": items}


@explicit(arguments=lambda folder: (torch.zeros(8192), torch.zeros(8192)))
def arguments_with_equal_contents(first: Any, second: Any) -> Any:
    return [first, second, first]


def _tied() -> tuple[Any, ...]:
    base = torch.arange(5000.0)
    return base, base[10:], base


@explicit(arguments=lambda folder: _tied())
def arguments_with_ties(base: Any, view: Any, again: Any) -> Any:
    view[0] = 100.0
    return {"base": base, "view": view, "is one": base is again, "element": float(base[10])}


@explicit(arguments=lambda folder: (torch.ones(5000, requires_grad=True), torch.nn.Parameter(torch.ones(3))))
def flags_of_arguments(tensor: Any, parameter: Any) -> Any:
    return [type(parameter).__name__, tensor.requires_grad, tensor.is_leaf, parameter]


def _gradient() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(5000))
    parameter.sum().backward()
    return parameter


@explicit(arguments=lambda folder: (_gradient(),), may_refuse=True)
def gradient_of_an_argument(parameter: Any) -> Any:
    return parameter.grad


@explicit(arguments=lambda folder: (5,))
def nested_function_by_value(n: int) -> Any:
    def inner(x: int) -> int:
        return x + n

    return inner


@explicit(arguments=lambda folder: (folder / "a", "text", 2.5, None, {1, 2}, range(3), slice(1, 2), ...))
def plain_arguments(*things: Any) -> Any:
    return things, [isinstance(thing, Path) for thing in things]
