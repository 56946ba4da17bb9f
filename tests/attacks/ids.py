"""Persistent ids that name no storage, or not the storage that there is."""

import torch
from assembler import (
    BINPERSID,
    EMPTY_DICT,
    MARK,
    NUMEL,
    TUPLE,
    Code,
    checkpoint,
    code,
    name,
    persistent,
    pickle,
    storage,
    tensor,
)

from attacks.attack import Attack, Expected, Family

FLOATS = name("torch", "FloatStorage")
ORDERED_DICT = name("collections", "OrderedDict")


def attack(what, made, expected=Expected.FORMAT, *says, **more):
    return Attack(what, lambda: checkpoint(pickle(made)), expected, says, **more)


def id_is(what, value):
    return attack(f"id is {what}", Code(code(value) + BINPERSID))


def items(what, *id):
    return attack(what, persistent(*id))


def field(what, *says, expected=Expected.FORMAT, **fields):
    """A tensor over a storage that has one item of its id changed."""
    return attack(what, {"weight": tensor(storage(**fields))}, expected, *says)


def numel(what, value):
    return field(f"element count {what}", numel=value)


def meta():
    return {"weight": torch.empty(NUMEL, device="meta")}


_ITEMS = ("storage", FLOATS, "0", "cpu", NUMEL)

PERSISTENT_IDS = Family(
    "Persistent ids",
    (
        id_is("a string", "storage"),
        id_is("an int", 0),
        id_is("None", None),
        id_is("a list", list(_ITEMS)),
        id_is("bytes", b"storage"),
        id_is("a storage's own value", storage()),
        items("id without items"),
        items("id of one item", "storage"),
        items("id of four items", *_ITEMS[:4]),
        items("id of six items", *_ITEMS, None),
        items("id of the legacy format's six items in a zip", *_ITEMS, ("0", 0, NUMEL)),
        attack(
            "id of a million items",
            Code(MARK + code("storage") + b"N" * 999_990 + TUPLE + BINPERSID),
        ),
        attack("text PERSID", Code(b"Pstorage\n"), Expected.REFUSED),
        attack("text PERSID of a module", Code(b"Pmodule\n"), Expected.REFUSED),
        items("type name unknown", "nonsense", *_ITEMS[1:]),
        items("type name an int", 1, *_ITEMS[1:]),
        items("type name bytes", b"storage", *_ITEMS[1:]),
        items("type name in another case", "Storage", *_ITEMS[1:]),
        items("type name with NUL", "storage\0", *_ITEMS[1:]),
        attack(
            "module id, which has torch read a source file",
            persistent("module", ORDERED_DICT, "/etc/passwd", "source"),
            Expected.REFUSED,
        ),
        attack(
            "module id of a class that is not allowed",
            persistent("module", name("torch.nn.modules.linear", "Linear"), "/etc/passwd", "source"),
            Expected.REFUSED,
            "torch.nn.modules.linear.Linear",
        ),
        field("storage class a dtype", kind=name("torch", "float32")),
        field("storage class torch.Tensor", kind=name("torch", "Tensor")),
        field("storage class OrderedDict", kind=ORDERED_DICT),
        field("storage class None", kind=Code(b"N")),
        field("storage class a string", kind=code("FloatStorage")),
        field("storage class an int", kind=code(7)),
        field("storage class a storage", kind=storage()),
        field("storage class a function", kind=name("torch._utils", "_rebuild_tensor_v2")),
        field(
            "storage class that torch never had",
            "torch.FooStorage",
            kind="FooStorage",
            expected=Expected.REFUSED,
        ),
        field(
            "storage class of another module",
            "torch.sparse.FloatStorage",
            kind=name("torch.sparse", "FloatStorage"),
            expected=Expected.REFUSED,
        ),
        field("key ../", "../0", key="../0"),
        field("key ../data/0", key="../data/0"),
        field("key absolute", "/etc/passwd", key="/etc/passwd"),
        field("key empty", key=""),
        field("key of a leading space", key=" 0"),
        field("key of a leading zero", key="00"),
        field("key ./0", key="./0"),
        field("key of the record's whole name", key="archive/data/0"),
        field("key without record", "data/1", key="1"),
        field("key with NUL", key="0\0"),
        field("key with NUL and more", key="0\0.bin"),
        field("key of 70 000 characters", key="0" * 70_000),
        field("key with line break and escape sequence", key="\n\x1b[2J"),
        field("key that turns writing direction", key="\u202e0"),
        field("key not UTF-8", key=Code(b"U\2\xff0")),
        field("key with a lone surrogate", key="\ud800"),
        field("key None", key=None),
        field("key a list", key=[]),
        field("key a dict", key=Code(EMPTY_DICT)),
        field("key bytes", key=b"0"),
        field("key the int 0", key=0),
        field("key a tuple", key=("0",)),
        field("location unknown to torch", "nonsense", location="nonsense", expected=Expected.TORCH),
        field("location empty", location="", expected=Expected.TORCH),
        field("location of CUDA device 9999", "CUDA", location="cuda:9999", expected=Expected.TORCH),
        field("location in capitals", location="CPU", expected=Expected.TORCH),
        field("location an int", location=0),
        field("location None", location=None),
        field("location bytes", location=b"cpu"),
        field("location of a million characters", location="x" * 1_000_000),
        field("location not UTF-8", location=Code(b"U\4cpu\xff")),
        field("location with a lone surrogate", location="cpu\ud800"),
        field("location with NUL", location="cpu\0", expected=Expected.TORCH),
        attack(
            "location of a CUDA device, with map_location",
            {"weight": tensor(storage(location="cuda:0"))},
            Expected.EQUAL,
            map_location="cpu",
        ),
        attack(
            "location meta", {"weight": tensor(storage(location="meta"))}, Expected.EQUAL, value=meta
        ),
        attack(
            "one key at two locations", [tensor(), tensor(storage(location="cuda:0"))], Expected.FORMAT
        ),
        numel("-1", -1),
        numel("-2^63", -(2**63)),
        numel("2^63", 2**63),
        numel("2^64", 2**64),
        numel("2^64 + 16", 2**64 + NUMEL),
        numel("2^62, whose bytes wrap to none", 2**62),
        numel("2^62 + 16, whose bytes wrap to the record's", 2**62 + NUMEL),
        numel("2^63 - 1", 2**63 - 1),
        numel("a float", 16.0),
        numel("a string", "16"),
        numel("None", None),
        numel("a tuple", (16,)),
        numel("True", True),
    ),
)  # fmt: skip
