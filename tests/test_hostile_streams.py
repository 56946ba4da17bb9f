"""Pickles whose bytes are broken, deep or repetitive: the threat list, §7.3."""

import collections
import contextlib
import pickle
import struct

import assembler as a
import hostile
import pytest
import torch
from assembler import Code, call, checkpoint, get, name, put

import zerocopy

PROTO = b"\x80\x02"


def frame(size, body=b""):
    return b"\x80\x04\x95" + struct.pack("<Q", size) + body


def nested(opening, closing, depth):
    return PROTO + opening * depth + b"N" + closing * depth + b"."


def chained(link, depth=100_000, empty=a.EMPTY_LIST):
    """Containers made side by side, each then put into the one before: the memo nests them."""
    made = b"".join(put(Code(empty), i) for i in range(depth))
    return PROTO + made + b"".join(link(get(i), get(i + 1)) for i in range(depth - 1)) + get(0) + b"."


FORMAT = {
    "empty": b"",
    "only STOP": b".",
    "PROTO and STOP": PROTO + b".",
    "no STOP": PROTO + b"N",
    "cut in PROTO": b"\x80",
    "cut in a string": PROTO + b"X\x05\0\0\0abc",
    "cut in a length": PROTO + b"X\x05\0",
    "cut in GLOBAL": PROTO + b"ccollections\nOrd",
    "cut in BINFLOAT": PROTO + b"G\0\0",
    "TUPLE3 of two": PROTO + b"NN\x87.",
    "TUPLE1 of none": PROTO + b"\x85.",
    "TUPLE1 across a mark": PROTO + b"N(\x85.",
    "REDUCE of one": PROTO + b")R.",
    "REDUCE without arguments": PROTO + b"ccollections\nOrderedDict\nR.",
    "BUILD of one": PROTO + b"}b.",
    "BINPUT of nothing": PROTO + b"q\0N.",
    "MEMOIZE of nothing": PROTO + b"\x94N.",
    "APPEND on nothing": PROTO + b"Na.",
    "BINPERSID of nothing": PROTO + b"Q.",
    "STOP behind a mark": PROTO + b"N(.",
    "TUPLE without MARK": PROTO + b"Nt.",
    "APPENDS without MARK": PROTO + b"]Ne.",
    "SETITEMS, odd": PROTO + b"}(NNNu.",
    "SETITEM of one": PROTO + b"}Ns.",
    "memo entry never put": PROTO + b"h\x07.",
    "memo entry never put, far": PROTO + b"j\xff\xff\xff\xff.",
    "memo index 2^32-1": PROTO + b"Nr\xff\xff\xff\xff.",
    "memo index 2^31": PROTO + b"Nr\0\0\0\x80.",
    "BINUNICODE of 2 GiB": PROTO + b"X\0\0\0\x80abc.",
    "BINUNICODE8 of 2^62": PROTO + b"\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "BINBYTES8 of 2^64-1": PROTO + b"\x8e" + struct.pack("<Q", 2**64 - 1) + b"abc.",
    "BYTEARRAY8 of 1 TiB": PROTO + b"\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "BINBYTES of 4 GiB": PROTO + b"B\xff\xff\xff\xffabc.",
    "BINSTRING, negative": PROTO + b"T\xff\xff\xff\xffabc.",
    "LONG1 past the end": PROTO + b"\x8a\xff1.",
    "LONG4 of 2 GiB": PROTO + b"\x8b\xff\xff\xff\x7f1.",
    "LONG4, negative": PROTO + b"\x8b\xff\xff\xff\xff1.",
    "FRAME too long": frame(1000, b"N."),
    "FRAME of 2^64-1": frame(2**64 - 1, b"N."),
    "FRAME in a frame": frame(12, frame(1)[2:] + b"NN."),
    "opcode across a frame": frame(3, b"X\x01\0\0\0a."),
    "invalid UTF-8": PROTO + b"X\x02\0\0\0\xc3(.",
    "overlong UTF-8": PROTO + b"X\x02\0\0\0\xc0\x80.",
    "invalid UTF-8, short": b"\x80\x04\x8c\x01\xff.",
    "invalid UTF-8 as Python 2's str": PROTO + b"U\x01\xff.",
    "list as a key": PROTO + b"}]Ns.",
    "dict as a key": PROTO + b"}}Ns.",
    "bytearray as a key": PROTO + b"}\x96" + bytes(8) + b"Ns.",
    "list in a tuple as a key": PROTO + b"}]\x85Ns.",
    "list in a set": b"\x80\x04\x8f(]\x90.",
    "list in a frozenset": b"\x80\x04(]\x91.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05N\x98.",
    "undefined opcode": PROTO + b"\xff.",
    "undefined opcode 0": PROTO + b"\0.",
    "dimension of 320 000 bits": a.pickle(a.tensor(size=(2**320_000,))),
    "200 000 lists": nested(b"]", b"a", 200_000),
    "200 000 tuples": nested(b"", b"\x85", 200_000),
    "50 000 dicts": nested(b"}K\1", b"s", 50_000),
    "1001 lists": nested(b"]", b"a", 1002),
    "a million marks": PROTO + b"(" * 1_000_001 + b"N.",
    "a million values": PROTO + b"N" * 1_000_001 + b".",
    "100 000 lists through the memo": chained(lambda outer, inner: outer + inner + b"a"),
    "100 000 dicts through the memo": chained(lambda o, i: o + b"K\1" + i + b"s", empty=a.EMPTY_DICT),
    "5000 states through the memo": chained(
        lambda o, i: o + b"}X\1\0\0\0x" + i + b"sb", 5000, call(name("collections", "OrderedDict"))
    ),
    "deep tuple as a key": PROTO + b"}N" + b"\x85" * 9 + b"Ns.",
    "wide tuple as a key": a.pickle(Code(a.EMPTY_DICT + a.code((1,) * 1025) + b"Ns")),
    "doubled tuple as a key": PROTO + b"}K\1" + b"q\0h\0\x86" * 40 + b"Ns.",
    "doubled tuple in a set": b"\x80\x04\x8f(K\1" + b"q\0h\0\x86" * 40 + b"\x90.",
    "set of doubled tuples": a.pickle(
        call(name("builtins", "set"), Code(b"]K\1" + b"q\0h\0\x86" * 40 + b"a"))
    ),
}

UNSUPPORTED = {
    "text PUT of 23 digits": PROTO + b"Np" + b"9" * 23 + b"\n.",
    "text GET": PROTO + b"Np0\ng0\n.",
    "text INT with letters": PROTO + b"Iabc\n.",
    "text LONG": PROTO + b"L1L\n.",
    "text FLOAT": PROTO + b"F1.0\n.",
    "text STRING without quotes": PROTO + b"Sabc\n.",
    "text UNICODE": PROTO + b"Vabc\n.",
    "POP": PROTO + b"NN0.",
    "POP_MARK": PROTO + b"N(1.",
    "DUP": PROTO + b"N2.",
    "DUP doubling": PROTO + b"]" + b"2\x86" * 60 + b".",
    "LIST": PROTO + b"(l.",
    "DICT": PROTO + b"(d.",
    "tensor as a key": a.pickle(Code(a.EMPTY_DICT + a.tensor() + b"Ns")),
}

LOADS = {
    "PROTO 255": (b"\x80\xff]."),
    "no PROTO": (b"]."),
    "marks left at STOP": (PROTO + b"(((]."),
    "values left at STOP": (PROTO + b"NN]."),
    "bytes after STOP": (PROTO + b"].\xff\xff garbage"),
    "frames": (frame(2, b"].")),
    "a frame that ends early": (frame(1, b"].")),
    "999 lists": nested(b"]", b"a", 999),
    "tuple doubled 60 times": PROTO + b"]K\1" + b"q\0h\0\x86" * 60 + b"a.",
    "30 levels of 10 references": PROTO + b"]" + b"q\0]" + b"(" + b"h\0" * 10 + b"e" + 29 * (
        b"q\0]" + b"(" + b"h\0" * 10 + b"e") + b".",
    "list that contains itself": PROTO + b"]q\0h\0a.",
    "dict that contains itself": PROTO + b"]}q\0K\1h\0sa.",
    "20 000 keys of one hash": a.pickle([{i * (2**61 - 1): None for i in range(1, 20_001)}]),
    "20 000 keys": a.pickle([dict.fromkeys(range(20000))]),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMAT)
def test_format_error(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", checkpoint(FORMAT[case]))) is zerocopy.FormatError


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case, tmp_path):
    assert (
        type(hostile.refusal(tmp_path / "x.pt", checkpoint(UNSUPPORTED[case]))) is zerocopy.UnsupportedError
    )


@pytest.mark.parametrize("case", LOADS)
def test_loads(case, tmp_path):
    (tmp_path / "x.pt").write_bytes(checkpoint(LOADS[case]))
    assert type(zerocopy.load(tmp_path / "x.pt")) is list


def test_cycle_is_a_cycle(tmp_path):
    (tmp_path / "x.pt").write_bytes(checkpoint(LOADS["list that contains itself"]))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert loaded[0] is loaded


def test_value_needed_to_make_itself(tmp_path):
    """A tuple cannot hold itself without a list between them; one that does must not crash the builder."""
    through_list = PROTO + b"]q\0\x85q\1h\0h\1a0h\1."  # POP: refused before that matters
    for data in (through_list, PROTO + b"]q\0\x85q\1h\0h\1a."):
        (tmp_path / "x.pt").write_bytes(checkpoint(data))
        with contextlib.suppress(hostile.CLEAN):
            zerocopy.load(tmp_path / "x.pt")


def test_global_whose_name_is_no_string(tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(b"\x80\x04K\1K\2\x93."))
    assert isinstance(error, (zerocopy.FormatError, pickle.UnpicklingError))


def test_refused_global_outranks_a_broken_stream(tmp_path):
    data = PROTO + name("nowhere", "nothing") + b"\xff"
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(data))
    assert "nowhere.nothing" in str(error)


def test_every_two_opcodes(tmp_path):
    """No pair of opcodes, on a stack of a few values, does anything but load or refuse."""
    head = PROTO + b"]}N(" + a.tensor() + name("collections", "OrderedDict") + b")"
    outcomes = collections.Counter()
    for first in range(256):
        for second in b"(.0Rab\x81\x85\x93Qsut":
            tail = bytes([first, second]) + b"\1\n\1\n" + b"."
            try:
                zerocopy.load(checkpoint(head + tail))
                outcomes["loaded"] += 1
            except hostile.CLEAN as error:
                outcomes[type(error).__name__] += 1
    assert outcomes["FormatError"] > 1000


def test_set_of_protocol_2_is_a_set(tmp_path):
    (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle(call(name("__builtin__", "set"), [1, "a"]))))
    assert zerocopy.load(tmp_path / "x.pt") == {1, "a"}


def test_billion_laughs_share_one_tensor(tmp_path):
    pickled = a.pickle(Code(put(a.tensor(), 0) + a.EMPTY_LIST + a.MARK + get(0) * 1000 + a.APPENDS))
    (tmp_path / "x.pt").write_bytes(checkpoint(pickled))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert all(tensor is loaded[0] for tensor in loaded)
    assert torch.equal(loaded[0], torch.arange(16.0))
