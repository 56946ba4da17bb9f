"""Files of before PyTorch 1.6: pickles one behind the other, and the storages' bytes behind the last."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

import assembler
import torch
from assembler import Code, call, code, name, persistent, pickle, put
from legacy_files import MAGIC, SYS_INFO, VERSION, checkpoint, data, storage, tensor

from attacks.attack import CANARY, TRAP, Attack, Expected, Family

EQUAL, FORMAT, REFUSED = Expected.EQUAL, Expected.FORMAT, Expected.REFUSED

FLOATS = torch.arange(16.0)
GOOD = checkpoint()
OBJECT = {"weight": tensor()}


def trusted(title: str, content: bytes, expected: Expected = FORMAT, **more: Any) -> Attack:
    return Attack(f"{title}, trusted", lambda: content, expected, **more, weights_only=False)


def each(
    cases: Mapping[str, bytes], expected: Expected = FORMAT, by_pickle: Expected = FORMAT
) -> Iterable[Attack]:
    """Yield files as they are read safely, and trusted, by pickle."""
    for title, content in cases.items():
        yield Attack(title, lambda content=content: content, expected)
        yield trusted(title, content, by_pickle)


def safely(cases: Mapping[str, bytes]) -> Iterable[Attack]:
    """Yield files that pickle may take, or fail on in its own way, when they are trusted."""
    for title, content in cases.items():
        yield Attack(title, lambda content=content: content, FORMAT)


# ---------------------------------------------------------------------------------------- odd but valid


def framed(*parts: Any) -> bytes:
    """Return pickles of protocol 4, each in a frame."""
    bodies = [code(part) + assembler.STOP for part in parts]
    return b"".join(b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body for body in bodies)


def part(offset: int, size: int) -> bytes:
    return checkpoint({"weight": tensor(storage(view=("part", offset, size)), size=(size,))})


EMPTY_KEYS = tuple(map(str, range(5000)))
EMPTY = checkpoint(
    [tensor(storage(key, numel=0), size=(0,)) for key in EMPTY_KEYS],
    keys=EMPTY_KEYS,
    storages=[data(b"", 0)] * len(EMPTY_KEYS),
)
TWO = [tensor(), tensor(storage("1", "LongStorage", numel=8), size=(8,))]
LONGS = struct.pack("<8q", *range(8))

VALID: dict[str, tuple[bytes, Callable[[], Any]]] = {
    "a valid file": (GOOD, lambda: {"weight": FLOATS}),
    "bytes behind the end": (GOOD + b"behind" * 1000, lambda: {"weight": FLOATS}),
    "another file behind the end": (GOOD + checkpoint([], keys=(), storages=()), lambda: {"weight": FLOATS}),
    "a part of a storage": (part(4, 8), lambda: {"weight": FLOATS[4:12].clone()}),
    "a part of no elements, at the storage's end": (part(16, 0), lambda: {"weight": FLOATS[:0].clone()}),
    "a big-endian machine in sys_info": (
        checkpoint(sys_info={**SYS_INFO, "little_endian": False}),
        lambda: {"weight": FLOATS},
    ),
    "a magic number spelled by LONG4": (
        checkpoint(magic=assembler.long4(MAGIC.to_bytes(10, "little"))),
        lambda: {"weight": FLOATS},
    ),
    "another sys_info": (checkpoint(sys_info=["x" * 1000]), lambda: {"weight": FLOATS}),
    "pickles of protocol 4, in frames": (
        framed(MAGIC, VERSION, SYS_INFO, OBJECT, ["0"]) + data(),
        lambda: {"weight": FLOATS},
    ),
    "storages in another order than the object's": (
        checkpoint(TWO, keys=("1", "0"), storages=[data(LONGS, 8), data()]),
        lambda: [FLOATS, torch.arange(8)],
    ),
    "no storages": (checkpoint([1, 2.5], keys=(), storages=()), lambda: [1, 2.5]),
    "5000 storages of no elements": (EMPTY, lambda: [torch.empty(0) for _ in EMPTY_KEYS]),
}


VALID |= {
    f"a key that is {what}": (
        checkpoint({"weight": tensor(storage(key))}, keys=(key,)), lambda: {"weight": FLOATS},
    )
    for what, key in {
        "empty": "", "an escape": "\x1b[31m", "of two lines": "a\nb", "from right to left": "\u202e",
        "a path": "../0", "of 200 characters": "x" * 200,
    }.items()
}  # fmt: skip


def _valid() -> Iterable[Attack]:
    for title, (content, value) in VALID.items():
        yield Attack(title, lambda content=content: content, EQUAL, value=value)
        yield trusted(title, content, EQUAL, value=value)


# ------------------------------------------------------------------------------------------- wrong parts


def _cuts() -> Iterable[tuple[str, bytes]]:
    parts = ("the magic number", "the version", "sys_info", "the object", "the list of keys")
    sizes = (len(pickle(code(value))) for value in (MAGIC, VERSION, SYS_INFO, OBJECT, ["0"]))
    for title, (begin, end) in zip(parts, pairwise(accumulate(sizes, initial=0)), strict=True):
        yield f"cut in {title}", GOOD[: (begin + end) // 2]
        yield f"cut before the last byte of {title}", GOOD[: end - 1]
        yield f"cut behind {title}", GOOD[:end]
    yield "cut in the number of elements", GOOD[: end + 4]
    yield "cut behind the number of elements", GOOD[: end + 8]
    yield "cut in the elements", GOOD[: end + 8 + 30]
    yield "cut before the last byte", GOOD[:-1]
    yield "cut in the last of 5000 storages", EMPTY[:-1]


WRONG: dict[str, dict[str, Any]] = {
    "another protocol version": {"version": 1002},
    "a version of many bytes": {"version": 2**80},
    "a version that is text": {"version": "1001"},
    "a version that is a float": {"version": 1001.0},
    "a version in a tuple": {"version": (1001,)},
    "a list of keys that is an int": {"keys": 7},
    "a list of keys that is a tuple": {"keys": code(("0",))},
    "a list of keys that is text": {"keys": "0"},
    "a list of keys that is a dict": {"keys": {"0": 0}},
    "a list of keys that is None": {"keys": code(None)},
    "a list of keys with an int": {"keys": (0,)},
    "a list of keys with a persistent id": {"keys": Code(b"]" + storage() + b"a")},
    "a storage that is never filled": {"keys": (), "storages": ()},
    "one of two storages that is never filled": {"obj": TWO},
    "an unknown key": {"keys": ("0", "1"), "storages": [data(), data()]},
    "only an unknown key": {"keys": ("1",)},
    "a key twice in the list": {"keys": ("0", "0"), "storages": [data(), data()]},
    "an object that has no storage, and one in the list": {"obj": {"weight": 1}},
    **{
        f"{what} elements for 16": {"storages": [data(count=count)]}
        for what, count in {
            "8": 8, "15": 15, "17": 17, "-1": -1, "0": 0, "2^62": 2**62, "-2^63": -(2**63),
            "2^62 + 16": 2**62 + 16, "2^61 + 16": 2**61 + 16,
        }.items()
    },
    "no number of elements": {"storages": [b""]},
    "half of a number of elements": {"storages": [b"\x10\0\0\0"]},
    "a byte too few": {"storages": [data()[:-1]]},
    "a number of elements of another byte order": {"storages": [struct.pack(">q", 16) + assembler.DATA]},
    "a key with a lone surrogate": {"obj": {"weight": tensor(storage("\ud800"))}, "keys": ("\ud800",)},
    "one long key repeated from the memo": {
        "keys": Code(b"](" + put("x" * 10**4, 0) + b"j\0\0\0\0" * 10**5 + b"e"), "storages": [data()] * 3,
    },
}  # fmt: skip

#: In place of the storage of 16 floats, for a tensor of 8.
STORAGES: dict[str, Code] = {
    "2^40 elements": storage(numel=2**40),
    "-16 elements": storage(numel=-16),
    "2^62 elements, whose bytes wrap": storage(numel=2**62),
    "2^62 + 16 elements, whose bytes wrap": storage(numel=2**62 + 16),
    "2^63 elements": storage(numel=2**63),
    "17 elements": storage(numel=17),
    "15 elements": storage(numel=15),
    "a number of elements that is text": storage(numel="16"),
    "a number of elements that is a float": storage(numel=16.0),
    "a part beyond it": storage(view=("1", 10, 8)),
    "a part that begins behind it": storage(view=("1", 17, 0)),
    "a part before it": storage(view=("1", -1, 8)),
    "a part of -1 elements": storage(view=("1", 0, -1)),
    "a part whose end wraps": storage(view=("1", 1, 2**63 - 1)),
    "a part whose bytes wrap": storage(view=("1", 2**62, 16)),
}
#: As the sixth item of an id: not a key, an offset and a size.
PARTS: dict[str, Code] = {
    "a part of one item": storage(view=("1",)),
    "a part of four items": storage(view=("1", 0, 8, 0)),
    "a part in a list": storage(view=["1", 0, 8]),
    "a part that is a number": storage(view=7),
    "a part whose offset is text": storage(view=("1", "0", 8)),
    "a part whose key is a number": storage(view=(1, 0, 8)),
}
IDS: dict[str, Code] = {
    "an id of five items": assembler.storage(),
    "an id of seven items": persistent("storage", name("torch", "FloatStorage"), "0", "cpu", 16, None, None),
    "an id of one item": persistent("storage"),
    "an id of no items": persistent(),
    "an id of another kind": persistent("strange", 1, 2, 3, 4, 5),
    "an id that is text": Code(code("text") + b"Q"),
}  # fmt: skip

#: Two uses of one key that cannot both be right.
DISAGREEING: dict[str, tuple[Code, Code]] = {
    "type": (storage(), storage(kind="IntStorage")),
    "size": (storage(), storage(numel=15)),
    "location": (storage(), storage(location="cuda:0")),
    "part": (storage(view=("1", 0, 8)), storage(view=("1", 8, 8))),
    "root": (storage(view=("0", 0, 8)), storage()),
}

#: A tensor over the storage, or over its first 8 elements.
SHAPES: dict[str, Code] = {
    "a tensor larger than its storage": tensor(size=(17,)),
    "a tensor that ends behind its storage": tensor(offset=1),
    "a tensor whose stride leaves its storage": tensor(stride=(2,)),
    "a tensor that begins before its storage": tensor(offset=-1),
    "a tensor of 2^62 elements": tensor(size=(2**62,)),
    "a tensor larger than its part of a storage": tensor(storage(view=("1", 0, 8)), size=(9,)),
    "a tensor before its part of a storage": tensor(storage(view=("1", 8, 8)), offset=-1, size=(8,)),
}

MAGICS: dict[str, Any] = {
    "one more": MAGIC + 1,
    "negative": -MAGIC,
    "text": str(MAGIC),
    "in a list": [MAGIC],
    "a float": float(MAGIC),
    "of its first 8 bytes": MAGIC % 2**64,
}


def _over(storages: Mapping[str, Code]) -> dict[str, bytes]:
    """Return files of a tensor of 8 elements over each storage."""
    return {
        f"a storage with {what}": checkpoint({"weight": tensor(over, size=(8,))})
        for what, over in storages.items()
    }


def _wrong() -> Iterable[Attack]:
    yield from each(dict(_cuts()))
    yield from each({title: checkpoint(**fields) for title, fields in WRONG.items()})
    yield from each(_over(STORAGES))
    yield from each(_over(IDS), FORMAT, REFUSED)
    yield from safely(_over(PARTS))
    yield from each({title: checkpoint({"weight": shaped}) for title, shaped in SHAPES.items()})
    twice = {what: [tensor(over, size=(8,)) for over in uses] for what, uses in DISAGREEING.items()}
    yield from safely({f"one key with another {what}": checkpoint(obj) for what, obj in twice.items()})
    yield from each(
        {f"a magic number that is {what}": checkpoint(magic=magic) for what, magic in MAGICS.items()}
    )
    yield from each({"a zip archive behind a legacy file": GOOD + assembler.checkpoint()})


# ------------------------------------------------------------------------------------------------ payloads

SPRING = call(name(TRAP, "spring"))
OPEN = call(name("builtins", "open"), CANARY, "w")
EVAL = call(name("builtins", "eval"), f"open({CANARY!r}, 'w') and {MAGIC}")

#: Parts of a file, and what the message names. Neither version nor keys have globals in any honest file.
PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "the magic number made by eval": ({"magic": EVAL}, "eval"),
    "a payload for a magic number": ({"magic": OPEN}, "open"),
    "a payload for sys_info": ({"sys_info": OPEN}, "open"),
    "a payload in sys_info": ({"sys_info": {**SYS_INFO, "extra": SPRING}}, TRAP),
    "a payload in the object": ({"obj": {"weight": tensor(), "extra": SPRING}}, TRAP),
    "a payload for the object": ({"obj": OPEN}, "open"),
    "a payload for the list of keys": ({"keys": OPEN}, "globals"),
    "a payload in the list of keys": ({"keys": Code(b"](" + SPRING + code("0") + b"e")}, "globals"),
    "a payload for a storage's type": (
        {"obj": tensor(persistent("storage", name(TRAP, "spring"), "0", "cpu", 16, None))}, TRAP,
    ),
    "a payload for a storage's key": ({"obj": tensor(storage(OPEN))}, "open"),
    "a payload for a storage's part": ({"obj": tensor(storage(view=OPEN))}, "open"),
}  # fmt: skip
#: Where no writer has ever had more than data: not run in a trusted file either.
DATA_ONLY = {"magic", "sys_info", "keys"}

LINEAR = name("torch.nn.modules.linear", "Linear")
MODULE = checkpoint({"class": persistent("module", LINEAR, "source.py", "class Linear: pass"), **OBJECT})
TRAPPED = checkpoint(persistent("module", name(TRAP, "Trap"), "source.py", "class Trap: pass"))


def _payloads() -> Iterable[Attack]:
    for title, (fields, said) in PAYLOADS.items():
        content = checkpoint(**fields)
        yield Attack(title, lambda content=content: content, REFUSED, (said,))
        if set(fields) <= DATA_ONLY:
            yield trusted(title, content, FORMAT if "magic" in fields else REFUSED)
    yield from each({"a payload for a version": checkpoint(version=OPEN)})
    hostile = checkpoint({"extra": OPEN})
    yield Attack("a payload, and a byte too few", lambda: hostile[:-1], REFUSED, ("open",))
    yield Attack(
        "a payload, and half of the file", lambda: hostile[: hostile.index(b"tR") + 2], REFUSED, ("open",)
    )
    yield Attack(
        "a payload, and nothing of the data", lambda: checkpoint({"x": OPEN}, storages=()), REFUSED, ("open",)
    )
    yield Attack("a bare pickle that is a payload", lambda: pickle(OPEN), REFUSED, ("open",))
    yield Attack("a bare pickle of protocol 4 that is a payload", lambda: framed(SPRING), REFUSED, (TRAP,))
    yield Attack(
        "a bare pickle of protocol 0 that is a payload", lambda: pickle(OPEN)[2:], REFUSED, ("open",)
    )
    yield Attack(
        "a bare pickle, a payload behind 5000 bytes", lambda: pickle("x" * 5000, OPEN), REFUSED, ("open",)
    )
    yield Attack("a bare pickle of a number", lambda: pickle(7), FORMAT)
    yield Attack("a module's class with its source", lambda: MODULE, REFUSED)
    yield Attack("a module's class of a module on the path", lambda: TRAPPED, REFUSED, (TRAP,))
    loaded = {"class": torch.nn.Linear, "weight": FLOATS}
    yield trusted("a module's class with its source", MODULE, EQUAL, value=lambda: loaded)


LEGACY = Family("Legacy files", (*_valid(), *_wrong(), *_payloads()))
