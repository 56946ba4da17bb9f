"""Objects of all sorts: classes of one's own, exceptions, functions, what pickle refuses."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import operator
import pathlib
import random
import re
import threading
import types
import uuid
import weakref
from pathlib import Path
from typing import Any

import numpy
import torch

from share_catalog.case import explicit, patched


@explicit()
def values_of_the_standard_library() -> Any:
    moment = datetime.datetime(2024, 5, 6, 7, 8, tzinfo=datetime.UTC)
    numbers = [decimal.Decimal("1.10"), fractions.Fraction(1, 3), 10**40, -0.0, float("inf"), 1 + 2j]
    return [
        moment,
        moment - moment,
        numbers,
        re.compile("a+", re.I),
        uuid.UUID(int=5),
        pathlib.PurePosixPath("a/b"),
    ]


@dataclasses.dataclass
class Settings:
    """A dataclass."""

    depth: int = 3
    weights: Any = dataclasses.field(default_factory=lambda: torch.zeros(8192))
    children: list[Any] = dataclasses.field(default_factory=list)


@explicit()
def dataclasses_with_tensors() -> Any:
    child = Settings(1)
    return Settings(children=[child, child, Settings(2)])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass with slots."""

    name: str
    weight: Any


@explicit()
def frozen_dataclasses_with_slots() -> Any:
    weight = torch.ones(8192)
    return [Frozen("a", weight), Frozen("b", weight), Frozen("c", torch.ones(8192))]


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Bits(enum.Flag):
    A = 1
    B = 2


@explicit()
def enumerations() -> Any:
    return [Colour.RED, Colour.BLUE, Bits.A | Bits.B, {Colour.RED: 1}, Colour]


class WithState:
    """Has ``__getstate__`` and ``__setstate__``, and counts how often it was set."""

    def __init__(self) -> None:
        self.weight, self.lock, self.was_set = torch.zeros(8192), None, 0

    def __getstate__(self) -> dict[str, Any]:
        return {"weight": self.weight, "was_set": self.was_set}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = None


@explicit()
def objects_with_states_of_their_own() -> Any:
    made = WithState()
    return [made, made, WithState()]


class WithSlots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


@explicit()
def objects_with_slots() -> Any:
    made = WithSlots(torch.ones(3), None)
    made.b = made
    return made


class Mapping(dict):  # type: ignore[type-arg]
    """A dictionary with attributes."""


class Items(list):  # type: ignore[type-arg]
    """A list with attributes."""


@explicit()
def containers_of_their_own_classes() -> Any:
    mapping, items = Mapping(a=torch.ones(8192)), Items([1, torch.ones(3)])
    mapping.owner, items.first = items, items[1]
    return [mapping, items]


def join(*things: Any, sep: str = "") -> Any:
    return sep.join(map(str, things))


@explicit()
def functions_and_partials() -> Any:
    return [
        join,
        functools.partial(join, 1, sep="-"),
        operator.itemgetter(1),
        operator.attrgetter("a"),
        len,
        torch.add,
    ]


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = torch.tensor([factor])

    def __call__(self, x: Any) -> Any:
        return x * self.factor

    def scale(self, x: Any) -> Any:
        return x * self.factor

    @classmethod
    def make(cls) -> Scale:
        return cls(2.0)

    @staticmethod
    def plain() -> int:
        return 5


@explicit(after=lambda found: [function(torch.ones(2)) for function in found[:2]])
def callable_objects_and_methods() -> Any:
    scale = Scale(3.0)
    return [scale, scale.scale, Scale.make, Scale.plain]


@explicit(after=lambda function: function(2), may_refuse=True)
def lambdas() -> Any:
    factor = 3
    return lambda x: x * factor


@explicit(may_refuse=True)
def class_made_in_a_function() -> Any:
    class Local:
        def __init__(self) -> None:
            self.weight = torch.ones(8192)

    return Local().weight, Local.__name__


class OddError(Exception):
    """Its constructor asks for more than its arguments."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first} {second}")
        self.first, self.second = first, second


@explicit(always=True, is_shared=False)
def exception_of_its_own_class() -> Any:
    raise OddError("text", 3)


@explicit(is_shared=False)
def exception_with_a_cause() -> Any:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


@explicit(is_shared=False)
def exception_of_torch() -> Any:
    return torch.ones(3) + torch.ones(4)


@explicit(is_shared=False)
def exception_of_the_system() -> Any:
    return Path("/absent/file").read_text()


def _missing(folder: Path) -> Any:
    return torch.load(folder / "absent.pt")


@patched()
def exception_of_torch_load(folder: Path) -> Any:
    return _missing(folder)


def _garbage(folder: Path) -> None:
    (folder / "a.pt").write_bytes(b"this is not a checkpoint")


@patched(prepare=_garbage)
def exception_for_garbage(folder: Path) -> Any:
    try:
        return torch.load(folder / "a.pt")
    except Exception as error:
        return type(error)


@patched(prepare=_garbage)
def exception_for_wrong_arguments(folder: Path) -> Any:
    try:
        return torch.load(folder / "a.pt", no_such_argument=1, pickle_module=None)
    except Exception as error:
        return type(error)


@explicit(may_refuse=True)
def exception_as_a_result() -> Any:
    return [ValueError("text", 3), OddError("a", 1)]


@explicit()
def none_and_singletons() -> Any:
    return [
        None,
        True,
        ...,
        NotImplemented,
        int,
        type(None),
        torch.float32,
        torch.strided,
        torch.device("cpu"),
    ]


@explicit()
def sizes_and_types_of_torch() -> Any:
    tensor = torch.ones(3, 4)
    return [tensor.shape, tensor.dtype, torch.finfo(torch.float16).max, torch.channels_last, torch.Size([1])]


@explicit(may_refuse=True)
def weak_references() -> Any:
    node = Scale(2.0)
    return {"node": node, "weak": weakref.ref(node)}


@explicit(may_refuse=True)
def locks() -> Any:
    return {"lock": threading.Lock()}


@explicit(may_refuse=True)
def generator_function() -> Any:
    return (i for i in range(3)), torch.ones(8192)


@explicit()
def generators_of_numpy_and_python() -> Any:
    return [numpy.random.default_rng(3), numpy.random.RandomState(4), random.Random(5)]


@explicit()
def namespaces_and_chain_maps() -> Any:
    shared = {"a": torch.ones(8192)}
    return [
        types.SimpleNamespace(x=1, y=shared),
        collections.ChainMap(shared, {}),
        types.SimpleNamespace(y=shared),
    ]


@explicit(may_refuse=True)
def views_of_dictionaries() -> Any:
    return types.MappingProxyType({"a": 1}), list({"a": 1}.items())


@explicit()
def strings_of_all_sizes() -> Any:
    return [
        "",
        "é",
        "\ud800".encode("utf-8", "surrogatepass"),
        "x" * 100_000,
        "\U0001f600" * 3000,
        b"",
        b"y" * 5000,
    ]


@explicit()
def numbers_of_numpy() -> Any:
    return [
        numpy.int8(3),
        numpy.float64(2.5),
        numpy.bool_(True),
        numpy.str_("text"),
        numpy.dtype("f4"),
        numpy.arange(0),
    ]


@explicit()
def objects_shared_by_attributes() -> Any:
    first, second = types.SimpleNamespace(), types.SimpleNamespace()
    first.weight = second.weight = torch.zeros(8192)
    first.other, second.other = torch.zeros(8192), torch.zeros(8192)
    return {"first": first, "second": second, "list": [first, first.other]}


@explicit()
def call_that_prints_and_warns() -> Any:
    import warnings

    print("this is printed by the call")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("a warning", stacklevel=1)
    return torch.ones(8192)


@explicit()
def call_with_threads() -> Any:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append((i, torch.full((5000,), float(i)))))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    return sorted(found, key=operator.itemgetter(0))


class Hashed:
    """Keeps a number that ``hash`` gave, as transformers' GenerationConfig does."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.number = hash(self)
        self.weights = torch.zeros(8192)

    def __hash__(self) -> int:
        return hash(self.values)


@explicit(is_shared=True, always=True, after=lambda made: [each.number == hash(each) for each in made])
def numbers_that_hash_gave() -> Any:
    return [
        Hashed("text", 3),
        Hashed(b"bytes"),
        Hashed(("nested", ("tuple", 1.5))),
        Hashed(frozenset(["set"])),
        Hashed(1, 2),
    ]


@explicit(is_shared=True, after=lambda number: number == hash("text"))
def number_that_hash_gave() -> Any:
    return hash("text")
