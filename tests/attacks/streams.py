"""Pickles whose bytes are broken, or odd but good."""

import struct
from collections import OrderedDict

import torch
from assembler import (
    ADDITEMS,
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_SET,
    MARK,
    MEMOIZE,
    REDUCE,
    SETITEM,
    SETITEMS,
    Code,
    call,
    checkpoint,
    code,
    good,
    name,
    ordered_dict,
    pickle,
    put,
    stack_name,
    tensor,
    text,
)

from attacks.attack import Attack, Expected, Family

PROTO, PROTO_4, PROTO_5 = b"\x80\x02", b"\x80\x04", b"\x80\x05"
TAIL = good()[2:]  # of the pickle that the others are made of, behind its PROTO


def stream(what, data, expected=Expected.FORMAT, *says, **more):
    return Attack(what, lambda: checkpoint(data), expected, says, **more)


def broken(what, opcodes, *says):
    return stream(what, PROTO + opcodes, Expected.FORMAT, *says)


def rare(what, opcodes):
    """Opcodes of protocol 0, and what no pickler writes."""
    return stream(what, PROTO + opcodes, Expected.UNSUPPORTED)


def equal(what, data, **more):
    return stream(what, data, Expected.EQUAL, **more)


def value(what, made, result):
    return equal(what, pickle(made), value=lambda: result)


def length(opcode, form, size):
    """An opcode that says more bytes follow than do."""
    return opcode + struct.pack(form, size) + b"abc."


def frame(size, body):
    return PROTO_4 + b"\x95" + struct.pack("<Q", size) + body


def cut(at):
    return stream(f"cut after {at} bytes of {len(good())}", good()[:at])


_CUTS = (
    stream("empty pickle", b""),
    stream("only STOP", b"."),
    stream("only PROTO and STOP", PROTO + b"."),
    stream("no STOP", good()[:-1]),
    *map(cut, (1, 2, 3, 6, 15, 30, 60, 100)),
    broken("cut in a string", b"X\x05\0\0\0abc"),
    broken("cut in a length", b"X\x05\0"),
    broken("cut in GLOBAL", b"ccollections\nOrd"),
    broken("cut in BINFLOAT", b"G\0\0"),
    stream("cut in a frame's length", PROTO_4 + b"\x95\1\0"),
)

_STACK = (
    broken("TUPLE3 of two", b"NN\x87."),
    broken("TUPLE2 of one", b"N\x86."),
    broken("TUPLE1 of none", b"\x85."),
    broken("TUPLE1 across a mark", b"N(\x85."),
    broken("TUPLE without MARK", b"Nt."),
    broken("REDUCE of one", b")R."),
    broken("REDUCE of none", REDUCE + b"."),
    broken("REDUCE without arguments", name("collections", "OrderedDict") + b"R."),
    broken("REDUCE whose arguments are a list", name("collections", "OrderedDict") + EMPTY_LIST + b"R."),
    broken("NEWOBJ of one", b")\x81."),
    broken("BUILD of one", EMPTY_DICT + BUILD + b"."),
    broken("BUILD of none", BUILD + b"."),
    broken("BINPUT of nothing", b"q\0N."),
    broken("LONG_BINPUT of nothing", b"r\0\0\0\0N."),
    broken("BINPUT behind a mark", b"N(q\0."),
    stream("MEMOIZE of nothing", PROTO_4 + MEMOIZE + b"N."),
    broken("APPEND on nothing", b"Na."),
    broken("APPENDS without MARK", b"]Ne."),
    broken("SETITEM of one", b"}Ns."),
    broken("SETITEM across a mark", b"}N(Ns."),
    broken("SETITEMS without MARK", b"}NNu."),
    broken("SETITEMS of an odd number", b"}(NNNu."),
    stream("ADDITEMS without MARK", PROTO_4 + EMPTY_SET + b"N" + ADDITEMS + b"."),
    stream("FROZENSET without MARK", PROTO_4 + b"N\x91."),
    stream("STACK_GLOBAL of one", PROTO_4 + b"X\1\0\0\0x\x93.", Expected.REFUSED),
    stream("STACK_GLOBAL of numbers", PROTO_4 + b"K\1K\2\x93."),
    stream("STACK_GLOBAL of bytes", PROTO_4 + code(b"torch") + code(b"float32") + b"\x93."),
    broken("BINPERSID of nothing", b"Q."),
    broken("STOP behind a mark", b"N(."),
)

_MEMO = (
    broken("memo entry never put", b"h\x07."),
    broken("memo entry never put, far", b"j\xff\xff\xff\xff."),
    broken("memo index 2^32 - 1", b"Nr\xff\xff\xff\xff."),
    broken("memo index 2^31", b"Nr\0\0\0\x80."),
    broken("memo index 2^31 - 1", b"Nr\xff\xff\xff\x7f."),
    broken("memo index beyond the pickle's length", b"Nr\0\0\1\0."),
    equal("memo entry put twice", PROTO + b"](K\1q\0K\2q\0h\0e.", value=lambda: [1, 2, 2]),
    rare("text PUT of 23 digits", b"Np" + b"9" * 23 + b"\n."),
    rare("text PUT, negative", b"Np-1\n."),
    rare("text GET", b"Np0\ng0\n."),
)  # fmt: skip

_LENGTHS = (
    broken("BINUNICODE of 2 GiB", length(b"X", "<I", 2**31)),
    broken("BINUNICODE of 4 GiB", length(b"X", "<I", 2**32 - 1)),
    broken("BINUNICODE of one byte more", length(b"X", "<I", 5)),
    broken("BINUNICODE8 of 2^62", length(b"\x8d", "<Q", 2**62)),
    broken("BINUNICODE8 of 2^64 - 1", length(b"\x8d", "<Q", 2**64 - 1)),
    broken("SHORT_BINUNICODE past the end", length(b"\x8c", "<B", 255)),
    broken("BINBYTES of 4 GiB", length(b"B", "<I", 2**32 - 1)),
    broken("BINBYTES8 of 2^64 - 1", length(b"\x8e", "<Q", 2**64 - 1)),
    broken("SHORT_BINBYTES past the end", length(b"C", "<B", 255)),
    broken("BYTEARRAY8 of 1 TiB", length(b"\x96", "<Q", 2**40)),
    broken("BINSTRING, negative", length(b"T", "<i", -1)),
    broken("BINSTRING of 2 GiB", length(b"T", "<i", 2**31 - 1)),
    broken("SHORT_BINSTRING past the end", length(b"U", "<B", 255)),
    broken("LONG1 past the end", length(b"\x8a", "<B", 255)),
    broken("LONG4 of 2 GiB", length(b"\x8b", "<i", 2**31 - 1)),
    broken("LONG4, negative", length(b"\x8b", "<i", -1)),
    stream("FRAME longer than the stream", frame(1000, b"N.")),
    stream("FRAME of one byte more", frame(3, b"N.")),
    stream("FRAME of 2^64 - 1", frame(2**64 - 1, b"N.")),
    stream("FRAME in a frame", frame(12, frame(1, b"")[2:] + b"NN.")),
    stream("opcode across a frame's end", frame(3, b"X\x01\0\0\0a.")),
    stream("GLOBAL across a frame's end", frame(8, name("collections", "OrderedDict") + b")R.")),
)

_CONTENT = (
    broken("invalid UTF-8", text(b"\xc3(") + b"."),
    broken("overlong UTF-8", text(b"\xc0\x80") + b"."),
    broken("UTF-8 cut in a character", text(b"\xe2\x82") + b"."),
    broken("UTF-8 beyond Unicode", text(b"\xf4\x90\x80\x80") + b"."),
    stream("invalid UTF-8 in a short string", PROTO_4 + b"\x8c\x01\xff."),
    broken("invalid UTF-8 in a string of Python 2", b"U\x01\xff."),
    broken("undefined opcode", b"\xff."),
    broken("undefined opcode 0", b"\0."),
    broken("undefined opcode behind a good tensor", tensor() + b"\xfe."),
    stream("NEXT_BUFFER without buffers", PROTO_5 + b"\x97."),
    stream("READONLY_BUFFER on None", PROTO_5 + b"N\x98."),
    stream("dimension of 320 000 bits", pickle(tensor(size=(2**320_000,)))),
    stream("offset of 320 000 bits", pickle(tensor(offset=-(2**320_000)))),
    broken("list as a key", b"}]Ns."),
    broken("dict as a key", b"}}Ns."),
    broken("set as a key", b"}\x8fNs."),
    broken("bytearray as a key", b"}\x96" + bytes(8) + b"Ns."),
    broken("list in a tuple as a key", b"}]\x85Ns."),
    stream("list in a set", PROTO_4 + b"\x8f(]\x90."),
    stream("list in a frozenset", PROTO_4 + b"(]\x91."),
    stream("tensor as a key", pickle(Code(EMPTY_DICT + tensor() + b"Ns")), Expected.LOADS),
    stream("tuple that holds itself", PROTO + b"]q\0\x85q\1h\0h\1a" + b"h\1.", Expected.UNSUPPORTED),
    stream("tuple that holds itself, with POP", PROTO + b"]q\0\x85q\1h\0h\1a0h\1.", Expected.UNSUPPORTED),
    stream("data.pkl of text", b"hello, world\n"),
    stream("data.pkl of zeros", bytes(1000)),
)  # fmt: skip

_RARE = (
    rare("text INT", b"I1\n."),
    rare("text INT with letters", b"Iabc\n."),
    rare("text LONG", b"L1L\n."),
    rare("text FLOAT", b"F1.0\n."),
    rare("text STRING without quotes", b"Sabc\n."),
    rare("text STRING", b"S'abc'\n."),
    rare("text UNICODE", b"Vabc\n."),
    rare("POP", b"NN0."),
    rare("POP_MARK", b"N(1."),
    rare("DUP", b"N2."),
    rare("DUP doubling", b"]" + b"2\x86" * 60 + b"."),
    rare("LIST", b"(l."),
    rare("DICT", b"(d."),
)

_ODD = (
    equal("PROTO 255", b"\x80\xff" + TAIL),
    equal("PROTO 0", b"\x80\x00" + TAIL),
    equal("no PROTO", TAIL),
    equal("PROTO three times", PROTO * 3 + TAIL),
    equal("marks left at STOP", PROTO + MARK * 3 + TAIL),
    equal("values left at STOP", PROTO + b"NK\1]" + TAIL),
    equal("bytes behind STOP", good() + b"\xff\xff garbage"),
    equal("another pickle behind STOP", good() + pickle(call(name("os", "system"), "true"))),
    equal("frames", frame(len(TAIL), TAIL)),
    equal("a frame that ends early", frame(1, EMPTY_DICT + pickle({"weight": tensor()})[3:])),
    equal("an empty frame", frame(0, TAIL)),
    equal("protocol 4", PROTO_4 + b"}\x94\x8c\x06weight" + tensor() + SETITEM + b"."),
    value("STACK_GLOBAL of an allowed name", stack_name("torch", "float32"), torch.float32),
    value("set of protocol 2", call(name("__builtin__", "set"), [1, "a"]), {1, "a"}),
    value("set of protocol 4", Code(EMPTY_SET + MARK + code(1) + ADDITEMS), {1}),
    value("frozenset of protocol 4", Code(MARK + code(1) + b"\x91"), frozenset({1})),
    value("bytes of protocol 3", b"a\xff", b"a\xff"),
    value("BINUNICODE8", Code(b"\x8d" + struct.pack("<Q", 3) + b"abc"), "abc"),
    value("BYTEARRAY8", Code(b"\x96" + struct.pack("<Q", 2) + b"ab"), bytearray(b"ab")),
    value("LONG4", Code(b"\x8b" + struct.pack("<i", 9) + bytes(8) + b"\1"), 2**64),
    value("LONG1 of no bytes", Code(b"\x8a\0"), 0),
    value("lone surrogate", "\ud800", "\ud800"),
    value("value beside an unused memo entry", [put(7, 9), 8], [7, 8]),
    value("OrderedDict of pairs", ordered_dict(("a", 1)), OrderedDict(a=1)),
    value("keys of every kind", {"": 1, 1: 2, 1.5: 3, None: 4, b"x": 5, (1, ("a", None)): 6},
          {"": 1, 1: 2, 1.5: 3, None: 4, b"x": 5, (1, ("a", None)): 6}),
    value("key that is infinite", {float("inf"): None}, {float("inf"): None}),
    value("1 and True as keys",
          Code(EMPTY_DICT + MARK + code(1) + code("a") + code(True) + code("b") + SETITEMS), {1: "b"}),
)  # fmt: skip

STREAMS = Family("Broken streams", (*_CUTS, *_STACK, *_MEMO, *_LENGTHS, *_CONTENT, *_RARE, *_ODD))
