"""Small files that would take much memory, time or stack."""

import struct

from assembler import (
    APPEND,
    APPENDS,
    BINPERSID,
    DATA,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_SET,
    MARK,
    NUMEL,
    REDUCE,
    SETITEM,
    SETITEMS,
    STACK_GLOBAL,
    TUPLE,
    Code,
    call,
    checkpoint,
    code,
    get,
    name,
    ordered_dict,
    pickle,
    put,
    storage,
    tensor,
)

from attacks.attack import MEBIBYTE, Attack, Expected, Family, good

PROTO, PROTO_4 = b"\x80\x02", b"\x80\x04"
UTILS = "torch._utils"

#: A view of as many elements over one: legal by itself, 256 GiB as soon as somebody copies it.
HUGE = 2**36
WIDE = tensor(None, 0, (HUGE,), (0,))
INDICES = tensor(storage("1", "LongStorage", numel=2), 0, (1, HUGE), (0, 0))
LONGS = tensor(storage("1", "LongStorage", numel=2), 0, (HUGE,), (0,))
BYTES = storage("2", "QUInt8Storage", numel=64)
STORAGES = {
    "0": DATA,
    "1": struct.pack("<2q", 0, 1),
    "2": bytes(64),
    "3": struct.pack("<2q", 2**40, 2**40 + 1),
}


def bomb(what, make, expected=Expected.FORMAT, **more):
    """`make` returns a value's opcodes, or a whole pickle."""

    def data():
        made = make()
        return checkpoint(pickle(made) if isinstance(made, Code) else made, STORAGES)

    return Attack(what, data, expected, **more)


def loads(what, make, **more):
    return bomb(what, make, Expected.LOADS, **more)


# ---------------------------------------------------------------------------- depth and number


def nested(opening, closing, depth):
    return PROTO + opening * depth + b"N" + closing * depth + b"."


def chained(link, depth=100_000, empty=EMPTY_LIST):
    """Containers made side by side, each then put into the one before: the memo nests them."""
    made = b"".join(put(Code(empty), i) for i in range(depth))
    return PROTO + made + b"".join(link(get(i), get(i + 1)) for i in range(depth - 1)) + get(0) + b"."


def doubled(times):
    """A tuple of a tuple twice, of a tuple twice...: 2^times paths lead to its end."""
    return b"K\1" + b"q\0h\0\x86" * times


def wide(levels, references):
    level = b"q\0]" + MARK + b"h\0" * references + APPENDS
    return PROTO + b"]" + level * levels + b"."


def colliding(count):
    """Integers that Python gives one hash value."""
    return pickle({i * (2**61 - 1): None for i in range(1, count + 1)})


def itself():
    value = []
    value.append(value)
    return value


_DICT = name("collections", "OrderedDict")

_DEPTH = (
    bomb("200 000 lists, one in the other", lambda: nested(b"]", b"a", 200_000)),
    bomb("200 000 tuples, one in the other", lambda: nested(b"", b"\x85", 200_000)),
    bomb("50 000 dicts, one in the other", lambda: nested(b"}K\1", b"s", 50_000)),
    bomb("50 000 sets' tuples, one in the other", lambda: PROTO_4 + b"\x8f(N" + b"\x85" * 50_000 + b"\x90."),
    bomb("lists that nest 1001 deep", lambda: nested(b"]", b"a", 1002)),
    bomb("tuples that nest 1001 deep", lambda: nested(b"", b"\x85", 1002)),
    loads("lists that nest 1000 deep", lambda: nested(b"]", b"a", 1001)),
    bomb("100 000 lists through the memo", lambda: chained(lambda o, i: o + i + APPEND)),
    bomb("100 000 dicts through the memo",
         lambda: chained(lambda o, i: o + b"K\1" + i + b"s", empty=EMPTY_DICT)),
    bomb(
        "5000 states through the memo",
        lambda: chained(
            lambda o, i: o + b"}X\1\0\0\0x" + i + b"sb", 5000, call(name("collections", "OrderedDict"))
        ),
    ),
    bomb("2000 calls, one in the other",
         lambda: PROTO + (_DICT + b"]K\1") * 2000 + b"N" + b"\x86a\x85R" * 2000 + b"."),
    bomb("a million marks", lambda: PROTO + MARK * 1_000_001 + b"N."),
    bomb("a million values", lambda: PROTO + b"N" * 1_000_001 + b"."),
    loads("999 999 values in a list", lambda: PROTO + b"](" + b"N" * 999_000 + b"e."),
    loads("a million empty lists", lambda: PROTO + b"]" + (MARK + b"]" * 100_000 + APPENDS) * 10 + b".",
          memory=512 * MEBIBYTE),
    bomb("list that contains itself", lambda: PROTO + b"]q\0h\0a.", Expected.EQUAL, value=itself),
    loads("dict that contains itself", lambda: PROTO + b"}q\0K\1h\0s."),
    loads("two lists that contain each other", lambda: PROTO + b"]q\0]q\1h\0ah\1a."),
    loads("OrderedDict whose state holds it",
          lambda: Code(put(ordered_dict(), 0) + code({}) + code("x") + get(0) + SETITEM + b"b")),
    loads("30 levels of 10 references", lambda: wide(30, 10)),
    loads("900 levels of 100 references", lambda: wide(900, 100)),
    loads("tuple doubled 60 times", lambda: PROTO + doubled(60) + b"."),
    loads("list of a tuple doubled 60 times", lambda: PROTO + b"]" + doubled(60) + b"a."),
    bomb("a thousand references to one tensor",
         lambda: Code(put(tensor(), 0) + EMPTY_LIST + MARK + get(0) * 1000 + APPENDS), Expected.EQUAL,
         value=lambda: [good()["weight"]] * 1000),
)  # fmt: skip

_KEYS = (
    bomb("tuple doubled 40 times, as a key", lambda: PROTO + EMPTY_DICT + doubled(40) + b"Ns."),
    bomb("tuple doubled 40 times, as a key of an OrderedDict",
         lambda: PROTO + ordered_dict()[:-2] + doubled(40) + b"Ns."),
    bomb("tuple doubled 40 times, in a set", lambda: PROTO_4 + EMPTY_SET + MARK + doubled(40) + b"\x90."),
    bomb("tuple doubled 40 times, in a frozenset", lambda: PROTO_4 + MARK + doubled(40) + b"\x91."),
    bomb("tuple doubled 40 times, in a call of set",
         lambda: call(name("builtins", "set"), Code(EMPTY_LIST + doubled(40) + APPEND))),
    bomb("tuple doubled 40 times, in a call of Counter",
         lambda: call(name("collections", "Counter"), Code(EMPTY_LIST + doubled(40) + APPEND))),
    bomb("deep tuple as a key", lambda: PROTO + EMPTY_DICT + b"N" + b"\x85" * 9 + b"Ns."),
    loads("tuple of depth 8 as a key", lambda: PROTO + EMPTY_DICT + b"N" + b"\x85" * 8 + b"Ns."),
    bomb("tuple of 1025 items as a key", lambda: Code(EMPTY_DICT + code((1,) * 1025) + b"Ns")),
    loads("tuple of 1024 items as a key", lambda: Code(EMPTY_DICT + code((1,) * 1024) + b"Ns")),
    loads("5000 keys of one hash value", lambda: colliding(5000), seconds=20),
    loads("20 000 keys", lambda: pickle(dict.fromkeys(range(20_000)))),
    loads("one key 100 000 times",
          lambda: Code(put("key", 0) + EMPTY_DICT + MARK + (get(0) + b"N") * 100_000 + SETITEMS)),
)  # fmt: skip


# ------------------------------------------------------------------------- values repeated by the memo


def again(setup, each, times):
    """Return `setup`, whose result `each` changes many times."""
    return Code(setup + each * times)


def listed(*remembered):
    return b"".join(put(value, i) for i, value in enumerate(remembered)) + EMPTY_LIST


def apply(*arguments):
    return MARK + b"".join(arguments) + TUPLE + REDUCE + APPEND


def encoded(codec):
    setup = listed(_LONG, name("_codecs", "encode"), codec)
    return lambda: again(setup, get(1) + apply(get(0), get(2)), 2000)


def made_of(function, value, times=2000):
    """Calls of a function that copies its argument."""
    return lambda: again(listed(value, function), get(1) + apply(get(0)), times)


def repeated(times, path, *arguments):
    """Calls of a function with the same arguments."""
    module, _, attribute = path.rpartition(".")
    setup = listed(name(module, attribute), *arguments)
    return lambda: again(setup, get(0) + apply(*(get(i + 1) for i in range(len(arguments)))), times)


def _metadata():
    """Tensors whose metadata say the same thing 100 000 times."""
    metadata = Code(EMPTY_DICT + MARK + (code("conj") + b"\x89") * 100_000 + SETITEMS)
    setup = listed(metadata, storage(), ordered_dict(), name(UTILS, "_rebuild_tensor_v2"), (1,))
    return again(setup, get(3) + apply(get(1), b"K\0", get(4), get(4), b"\x89", get(2), get(0)), 100_000)


_LONG = "a" * MEBIBYTE
_MANY = dict.fromkeys(map(str, range(10_000)))
_DENSE = (storage(), 0, (NUMEL,), (1,), False, ordered_dict())
_BYTEARRAY = name("builtins", "bytearray")

_REPEATED = (
    bomb("2000 encodings of a long text to utf-8", encoded("utf-8")),
    bomb("2000 encodings of a long text to ascii", encoded("ascii")),
    bomb("2000 encodings of a long text to latin1", encoded("latin1")),
    bomb("2000 bytearrays of a long text",
         lambda: again(listed(_LONG, _BYTEARRAY, "utf-8"), get(1) + apply(get(0), get(2)), 2000)),
    bomb("2000 bytearrays of long bytes", made_of(_BYTEARRAY, _LONG.encode())),
    bomb("2000 sets of a long list", made_of(name("builtins", "set"), list(range(50_000)))),
    bomb("2000 Counters of a long dict",
         made_of(name("collections", "Counter"), {i: i for i in range(20_000)})),
    bomb("2000 OrderedDicts of a long list",
         made_of(name("collections", "OrderedDict"), [(i, i) for i in range(20_000)]), memory=128 * MEBIBYTE),
    bomb("2000 sizes of a long tuple", made_of(name("torch", "Size"), tuple(range(50_000)))),
    bomb("2000 names of a mebibyte",
         lambda: again(listed(_LONG), get(0) + get(0) + STACK_GLOBAL + APPEND, 2000), Expected.REFUSED),
    bomb("100 000 storages of one long key",
         lambda: again(listed(("storage", name("torch", "FloatStorage"), _LONG, "cpu", NUMEL)),
                       get(0) + BINPERSID + APPEND, 100_000)),
    bomb("20 000 times one long integer as a key",
         lambda: again(put(2 ** (8 * MEBIBYTE) - 1, 0) + EMPTY_DICT, get(0) + b"N" + SETITEM, 20_000)),
    bomb("20 000 times one long tuple as a key",
         lambda: again(put((1,) * 1000, 0) + EMPTY_DICT, get(0) + b"N" + SETITEM, 20_000)),
    bomb("100 000 times one long text as a key",
         lambda: again(put(_LONG, 0) + EMPTY_DICT, get(0) + b"N" + SETITEM, 100_000), Expected.LOADS),
    bomb("100 000 times long metadata", _metadata),
    bomb("100 OrderedDicts with 10 000 attributes",
         lambda: again(put(_MANY, 0) + EMPTY_LIST,
                       name("collections", "OrderedDict") + b")R" + get(0) + b"b" + APPEND, 100)),
    bomb("100 Parameters with 10 000 attributes",
         repeated(100, f"{UTILS}._rebuild_parameter_with_state", tensor(), True, ordered_dict(), _MANY)),
    bomb("100 typed tensors with 10 000 attributes",
         repeated(100, "torch._tensor._rebuild_from_type_v2", name(UTILS, "_rebuild_tensor_v2"),
                  name("torch", "Tensor"), _DENSE, _MANY),
         needs="torch._tensor._rebuild_from_type_v2"),
)  # fmt: skip


# -------------------------------------------------------------------------------- views of stride 0


def layout(kind):
    return call(name("torch.serialization", "_get_layout"), f"torch.{kind}")


def sparse(kind, *arguments):
    return lambda: call(name(UTILS, "_rebuild_sparse_tensor"), layout(kind), arguments)


def quantized(*scheme):
    rebuild = name(UTILS, "_rebuild_qtensor")
    return lambda: call(rebuild, BYTES, 0, (HUGE,), (0,), scheme, False, ordered_dict())


def converted():
    rebuild = name(UTILS, "_rebuild_device_tensor_from_cpu_tensor")
    return call(rebuild, WIDE, name("torch", "float64"), "cpu", False)


def jagged():
    return call(name(UTILS, "_rebuild_nested_tensor"), tensor(), INDICES, INDICES, LONGS)


_VIEWS = (
    loads("tensor of 2^36 elements over one", lambda: WIDE),
    loads("Parameter of 2^36 elements over one",
          lambda: call(name(UTILS, "_rebuild_parameter"), WIDE, True, ordered_dict())),
    bomb("sparse COO of 2^36 elements over one", sparse("sparse_coo", INDICES, WIDE, (4,))),
    bomb("sparse COO of 2^36 elements over one, coalesced", sparse("sparse_coo", INDICES, WIDE, (4,), True)),
    bomb("sparse CSR of 2^36 elements over one", sparse("sparse_csr", LONGS, LONGS, WIDE, (4, 4))),
    bomb("tensor of a device of 2^36 elements over one", converted),
    bomb("nested tensor of 2^36 elements over one", jagged, needs=f"{UTILS}._rebuild_nested_tensor"),
    bomb("quantized tensor of 2^36 elements over 64", quantized(name("torch", "per_tensor_affine"), 0.5, 3),
         needs=f"{UTILS}._rebuild_qtensor"),
    bomb("2^36 scales over one", quantized(name("torch", "per_channel_affine"), WIDE, LONGS, 0),
         needs=f"{UTILS}._rebuild_qtensor"),
)  # fmt: skip

#: Of a file with a million bytes: what is made of them once is made of them often.
_MANY_ELEMENTS = 250_000
_BIG_STORAGES = {
    "0": struct.pack("<f", 1) * _MANY_ELEMENTS,
    "1": struct.pack(f"<{_MANY_ELEMENTS}q", *range(_MANY_ELEMENTS)),
    "2": bytes(_MANY_ELEMENTS),
}
_FLOATS = tensor(storage(numel=_MANY_ELEMENTS), 0, (_MANY_ELEMENTS,))
_INTEGERS = storage("1", "LongStorage", numel=_MANY_ELEMENTS)
_INDICES = tensor(_INTEGERS, 0, (1, _MANY_ELEMENTS), (_MANY_ELEMENTS, 1))
_ZEROS = tensor(_INTEGERS, 0, (_MANY_ELEMENTS,), (0,))


def big(what, make, **more):
    return Attack(what, lambda: checkpoint(pickle(make()), _BIG_STORAGES), Expected.FORMAT, **more)


_COPIES = (
    big("1000 conversions of a large tensor",
        repeated(1000, f"{UTILS}._rebuild_device_tensor_from_cpu_tensor", _FLOATS, name("torch", "float64"),
                 "cpu", False)),
    big("20 000 sparse tensors of the same large parts",
        repeated(20_000, f"{UTILS}._rebuild_sparse_tensor", layout("sparse_coo"),
                 (_INDICES, _FLOATS, (_MANY_ELEMENTS,)))),
    big("200 quantized tensors of the same many scales",
        repeated(200, f"{UTILS}._rebuild_qtensor", storage("2", "QUInt8Storage", numel=_MANY_ELEMENTS), 0,
                 (_MANY_ELEMENTS,), (1,), (name("torch", "per_channel_affine"), _FLOATS, _ZEROS, 0), False,
                 ordered_dict()), needs=f"{UTILS}._rebuild_qtensor"),
)  # fmt: skip

#: An integer of thirty thousand bytes: to multiply with such takes a while, as dimensions of a tensor minutes.
_WIDE_INTEGER = 1 << 240_000
_DIMENSIONS = (2**62,) * 3000
_META = f"{UTILS}._rebuild_meta_tensor_no_storage"
_JAGGED = "torch.nested._internal.nested_tensor"


def meta(size):
    return lambda: call(name(UTILS, _META.rpartition(".")[2]), name("torch", "float32"), size, size, False)


def jagged_tensor(offsets):
    values, none = tensor(), Code(b"N")
    rows = {"values": values, "offsets": offsets, "lengths": none, "_ragged_idx": 1, "_metadata_cache": {}}
    rebuild, kind = name(_JAGGED, "_rebuild_njt"), name(_JAGGED, "NestedTensor")
    return lambda: call(name("torch._tensor", "_rebuild_from_type_v2"), rebuild, kind, (rows,), {})


#: Offsets 2^40 and 2^40 + 1.
LONG_PAIR = tensor(storage("3", "LongStorage", numel=2), 0, (2,), (1,))

_NUMBERS = (
    bomb("meta tensor of an integer of 30 000 bytes", meta((_WIDE_INTEGER,))),
    bomb("meta tensor of 3000 dimensions of 2^62", meta(_DIMENSIONS)),
    bomb("sparse tensor of 3000 dimensions of 2^62", sparse("sparse_coo", tensor(), tensor(), _DIMENSIONS)),
    bomb("sparse tensor of an integer of 30 000 bytes", sparse("sparse_coo", tensor(), tensor(), (_WIDE_INTEGER,))),
    bomb("quantized tensor at an offset of 30 000 bytes",
         lambda: call(name(UTILS, "_rebuild_qtensor"), BYTES, _WIDE_INTEGER, (1,), (1,),
                      (name("torch", "per_tensor_affine"), 0.5, 3), False, ordered_dict()),
         needs=f"{UTILS}._rebuild_qtensor"),
    bomb("nested tensor at offsets of 30 000 bytes",
         lambda: call(name(UTILS, "_rebuild_nested_tensor"), tensor(), INDICES, INDICES, [_WIDE_INTEGER] * 4),
         needs=f"{UTILS}._rebuild_nested_tensor"),
    bomb("jagged tensor of rows outside of its values", jagged_tensor(LONG_PAIR), needs=f"{_JAGGED}._rebuild_njt"),
    bomb("layout of a mesh, called",
         lambda: call(name("torch.distributed._mesh_layout", "_FlatLayout"), (2**40,), (1,)), Expected.REFUSED),
    bomb("64 conversions to elements that are 16 times as wide",
         repeated(64, f"{UTILS}._rebuild_device_tensor_from_cpu_tensor",
                  tensor(storage("2", "ByteStorage", numel=64), 0, (64,)), name("torch", "complex128"), "cpu", False),
         Expected.LOADS),
)  # fmt: skip

BOMBS = Family("Bombs", (*_DEPTH, *_KEYS, *_REPEATED, *_VIEWS, *_COPIES, *_NUMBERS))
