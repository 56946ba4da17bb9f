"""Python's own values and classes, as they lie between tensors."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import operator
import pathlib
import re
import types
import uuid
from typing import Any, NamedTuple

import torch

from kinds.kind import Group, Kind


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Config:
    layers: int
    weight: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    layers: int
    weight: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
    layers: int
    weight: Any = None


class Bag(dict):
    """A dict with attributes."""


class Row(list):
    """A list with attributes."""


class Word(str):
    """A str with attributes."""


class Triple(tuple):
    """A tuple with attributes."""


class Stateful:
    """Writes and reads its state itself."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __getstate__(self) -> Any:
        return [self.weight]

    def __setstate__(self, state: Any) -> None:
        (self.weight,) = state


class New:
    """Made with arguments, positional and by keyword."""

    def __new__(cls, a: Any, *, b: Any) -> New:
        made = super().__new__(cls)
        made.a, made.b = a, b
        return made

    def __getnewargs_ex__(self) -> Any:
        return (self.a,), {"b": self.b}


class Reduced:
    """Fills itself through the list and dict items of ``__reduce__``."""

    def __init__(self, weight: Any) -> None:
        self.weight, self.items = weight, []

    def append(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __reduce__(self) -> Any:
        return Reduced, (self.weight,), {"note": "kept"}, iter([1, 2]), iter([("k", 3)])


def with_vars(made: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def w() -> torch.Tensor:
    return torch.arange(3.0)


def list_of_itself() -> list[Any]:
    made: list[Any] = [w()]
    made.append(made)
    return made


def dict_of_itself() -> dict[str, Any]:
    made: dict[str, Any] = {"weight": w()}
    made["me"] = {"again": made}
    return made


def tuple_through_list() -> tuple[Any, ...]:
    inner: list[Any] = [w()]
    made = (inner, 1)
    inner.append(made)
    return made


def object_of_itself() -> Config:
    made = Config(1, w())
    made.me = [made]
    return made


def nested(depth: int) -> Any:
    made: Any = w()
    for _ in range(depth):
        made = [made]
    return made


INTEGERS = [
    0,
    -1,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    -(2**31),
    2**31,
    2**63,
    -(2**63) - 1,
    2**255,
    -(2**2040),
]
TEXT = ["", "ascii", "äöü €", "🚀", "a\0b", "\n'\"\\", "x" * 300]

PLAIN = Group(
    "Numbers, strings, containers",
    (
        Kind("None, True, False", lambda: [None, True, False]),
        Kind("integers of all sizes", lambda: list(INTEGERS)),
        Kind("an integer of 10 000 bits", lambda: 1 << 10_000),
        Kind("floats", lambda: [0.0, -0.0, 0.1, 1e308, 5e-324]),
        Kind("infinities and NaN", lambda: [float("inf"), float("-inf"), float("nan")]),
        Kind("complex numbers", lambda: [1j, complex("nan"), complex(-0.0, float("inf"))]),
        Kind("str", lambda: list(TEXT)),
        Kind("str with lone surrogates", lambda: ["a\udc80b", "\ud800"]),
        Kind("bytes", lambda: [b"a", bytes(range(256)), b"x" * 300]),
        Kind("empty bytes", lambda: b""),
        Kind("bytearray", lambda: [bytearray(), bytearray(range(256))]),
        Kind("list", lambda: [[], [w()], [1, [2, [w()]]], list(range(3000))]),
        Kind("tuple", lambda: [(), (w(),), (1, 2), (1, 2, 3), (1, (2, (3, w()))), tuple(range(10))]),
        Kind("dict", lambda: {"a": {}, 1: w(), (1, "t"): 2, None: 3, 2.5: 4, b"b": 5, False: 6}),
        Kind("dict of 3000", lambda: {f"key{i}": i for i in range(3000)}),
        Kind("OrderedDict", lambda: collections.OrderedDict(b=w(), a=collections.OrderedDict())),
        Kind(
            "OrderedDict with attributes",
            lambda: with_vars(collections.OrderedDict(a=w()), _metadata={"": {"version": 1}}, note=[w()]),
        ),
        Kind("Counter", lambda: [collections.Counter("abracadabra"), collections.Counter()]),
        Kind("set", lambda: [set(), {1, "a", (2, 3)}]),
        Kind("frozenset", lambda: [frozenset(), frozenset({1, "a"})]),
        Kind("list in 300 lists", lambda: nested(300)),
        Kind("list that holds itself", list_of_itself),
        Kind("dict that holds itself", dict_of_itself),
        Kind("tuple that holds itself, through a list", tuple_through_list),
        Kind("the same string 1000 times", lambda: ["shared string"] * 1000),
    ),
)

CLASSES = Group(
    "Python's classes, and the user's",
    (
        Kind("Ellipsis and NotImplemented", lambda: [..., NotImplemented]),
        Kind("slice and range", lambda: [slice(1, None, 2), range(0, 9, 2)]),
        Kind("defaultdict", lambda: collections.defaultdict(list, a=[w()])),
        Kind(
            "defaultdict, allowed",
            lambda: collections.defaultdict(list, a=[w()]),
            allow=lambda: [collections.defaultdict, list],
        ),
        Kind("deque", lambda: collections.deque([1, 2], maxlen=3)),
        Kind("ChainMap", lambda: collections.ChainMap({"a": w()}, {"b": 1})),
        Kind("pathlib", lambda: [pathlib.PurePosixPath("a/b"), pathlib.Path("/x")]),
        Kind("datetime", lambda: [datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(1)]),
        Kind(
            "Decimal, Fraction, UUID",
            lambda: [decimal.Decimal("1.10"), fractions.Fraction(1, 3), uuid.UUID(int=7)],
        ),
        Kind("Enum, IntEnum, Flag", lambda: [Color.RED, Level.HIGH, Access.READ | Access.WRITE]),
        Kind("namedtuple", lambda: Point(1, w())),
        Kind("namedtuple, allowed", lambda: Point(1, w()), allow=lambda: [Point]),
        Kind("dataclass", lambda: Config(2, w())),
        Kind("dataclass, allowed", lambda: [(made := Config(2, w())), made], allow=lambda: [Config]),
        Kind("frozen dataclass", lambda: Frozen(2, w()), allow=lambda: [Frozen]),
        Kind("dataclass with slots", lambda: Slots(2, w())),
        Kind("dataclass that holds itself", object_of_itself),
        Kind("Namespace", lambda: [argparse.Namespace(a=1, w=w()), types.SimpleNamespace(b=w())]),
        Kind(
            "Namespace, allowed", lambda: argparse.Namespace(a=1, w=w()), allow=lambda: [argparse.Namespace]
        ),
        Kind("subclass of dict", lambda: with_vars(Bag(a=w()), note=[1])),
        Kind("subclass of dict, allowed", lambda: with_vars(Bag(a=w()), note=[1]), allow=lambda: [Bag]),
        Kind("subclass of list", lambda: with_vars(Row([1, w()]), note=[1])),
        Kind("subclass of list, allowed", lambda: with_vars(Row([1, w()]), note=[1]), allow=lambda: [Row]),
        Kind("subclass of tuple", lambda: with_vars(Triple((1, w())), note=[1])),
        Kind("subclass of str", lambda: with_vars(Word("a"), note=[1])),
        Kind("class with __getstate__", lambda: Stateful(w())),
        Kind("class with __getstate__, allowed", lambda: Stateful(w()), allow=lambda: [Stateful]),
        Kind("class with __getnewargs_ex__", lambda: New(1, b=w())),
        Kind("class with __reduce__ of five parts", lambda: Reduced(w())),
        Kind("class with __reduce__ of five parts, allowed", lambda: Reduced(w()), allow=lambda: [Reduced]),
        Kind("classes", lambda: [int, Config, collections.OrderedDict, torch.nn.Linear, torch.Tensor]),
        Kind("functions", lambda: [len, w, torch.nn.functional.relu, torch.add, Stateful.__setstate__]),
        Kind("partial and itemgetter", lambda: [functools.partial(w, 1), operator.itemgetter(1)]),
        Kind("compiled pattern", lambda: re.compile("a+", re.IGNORECASE)),
        Kind("exception", lambda: ValueError("no", 1)),
    ),
)
