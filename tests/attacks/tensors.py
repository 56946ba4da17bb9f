"""Tensors that are odd but valid, and storages whose records are not theirs."""

from functools import partial

import torch
from assembler import (
    APPENDS,
    DATA,
    EMPTY_LIST,
    MARK,
    NUMEL,
    Code,
    call,
    checkpoint,
    get,
    long4,
    name,
    ordered_dict,
    pickle,
    put,
    storage,
    tensor,
)

from attacks.attack import Attack, Expected, Family

UTILS = "torch._utils"
NBYTES = len(DATA)
BASE = partial(torch.arange, float(NUMEL))  # what the storage of 16 floats holds


def v3(dtype, over=None, size=(NUMEL,), offset=0, metadata=None):
    """Return what newer releases write for newer dtypes: a tensor over a storage of bytes."""
    over = untyped() if over is None else over
    dtype = name("torch", dtype) if isinstance(dtype, str) else dtype
    more = () if metadata is None else (metadata,)
    return call(
        name(UTILS, "_rebuild_tensor_v3"), over, offset, size, (1,), False, ordered_dict(), dtype, *more
    )


def untyped(numel=NBYTES, **fields):
    return storage(kind=name("torch.storage", "UntypedStorage"), numel=numel, **fields)


def parameter(data, requires_grad=True):
    return call(name(UTILS, "_rebuild_parameter"), data, requires_grad, ordered_dict())


def file(value, storages=None):
    return checkpoint(pickle(value), storages)


# --------------------------------------------------------------------------------- odd but valid


def view(size, stride, offset=0):
    return tensor(None, offset, size, stride)


def padded(number, size=8):
    """LONG1 of so many bytes."""
    return Code(b"\x8a" + bytes([size]) + number.to_bytes(size, "little", signed=True))


#: Sizes, strides and offset over 16 floats: what the file says, and what it is equal to.
_VIEWS = {
    "transposed": ((4, 4), (1, 4)),
    "offset": ((5,), (2,), 3),
    "stride 0": ((3, 2), (0, 1), 1),
    "all strides 0": ((4, 4), (0, 0), 15),
    "overlapping rows": ((3, 4), (1, 1)),
    "last element": ((1,), (1,), 15),
    "no dimension": ((), (), 15),
    "(0, 5) over a storage": ((0, 5), (5, 1)),
    "empty at the end of the storage": ((0,), (1,), 16),
    "empty with a huge stride": ((0, 2), (2**62, 2**62)),
    "huge stride of a dimension of 1": ((1, 16), (2**62, 1)),
    "64 dimensions": ((1,) * 63 + (16,), (1,) * 64),
    "2^36 elements over one float": ((2**36,), (0,), 3),
    "2^60 elements over one float": ((2**30, 2**30), (0, 0), 3),
}
_SPELLINGS = {
    "sizes as torch.Size": tensor(None, 0, call(name("torch", "Size"), (16,)), (1,)),
    "strides as torch.Size": tensor(None, 0, (16,), call(name("torch", "Size"), (1,))),
    "sizes as LONG1 with zeros": tensor(None, padded(0), (padded(16),), (padded(1),)),
    "sizes as LONG4": tensor(None, long4(b"\0"), (long4(b"\x10\0\0"),), (1,)),
    "sizes as BININT1": tensor(None, Code(b"K\0"), (Code(b"K\x10"),), (Code(b"K\1"),)),
    "_rebuild_tensor": call(name(UTILS, "_rebuild_tensor"), storage(), 0, (16,), (1,)),
    "_rebuild_tensor_v3 over a storage of bytes": v3("float32"),
    "_rebuild_tensor_v3 over a storage of floats": v3("float32", storage()),
    "metadata None": tensor(None, 0, (16,), (1,), False, None, None),
    "metadata empty": tensor(None, 0, (16,), (1,), False, None, {}),
    "metadata that says nothing": tensor(None, 0, (16,), (1,), False, None, {"conj": False, "neg": False}),
    "hooks None": call(name(UTILS, "_rebuild_tensor_v2"), storage(), 0, (16,), (1,), False, None),
    "hooks a dict": tensor(None, 0, (16,), (1,), False, {}),
}
_KINDS = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


def of_bytes(data, dtype):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().view(dtype)


def each_kind():
    """Yield an attack for each class of storages."""
    for kind, dtype in _KINDS.items():
        count = NBYTES // torch.empty(0, dtype=dtype).element_size()
        value = tensor(storage(kind=f"{kind}Storage", numel=count), 0, (count,))
        yield Attack(
            f"storage of {str(dtype).removeprefix('torch.')}",
            partial(file, value, {"0": b"\1" * 64}),
            Expected.EQUAL,
            value=partial(of_bytes, b"\1" * 64, dtype),
        )


def views_of_one(count):
    """Return a file of as many views of one storage, whose id it has once."""
    return file(Code(put(storage(), 0) + EMPTY_LIST + MARK + tensor(get(0)) * count + APPENDS))


def storages_of_one(count):
    keys = [str(i) for i in range(count)]
    return file([tensor(storage(key)) for key in keys], dict.fromkeys(keys, DATA))


def odd(title, value, expected, storages=None):
    return Attack(title, partial(file, value, storages), Expected.EQUAL, value=expected)


ODD_TENSORS = Family(
    "Tensors that are odd but valid",
    (
        *(
            odd(title, view(*args), lambda args=args: BASE().as_strided(*args))
            for title, args in _VIEWS.items()
        ),
        *(odd(title, value, BASE) for title, value in _SPELLINGS.items()),
        *each_kind(),
        odd("requires_grad", tensor(None, 0, (16,), (1,), True), lambda: BASE().requires_grad_()),
        odd("Parameter", parameter(tensor()), lambda: torch.nn.Parameter(BASE())),
        odd(
            "Parameter of integers",
            parameter(tensor(storage(kind="IntStorage")), False),
            lambda: torch.nn.Parameter(of_bytes(DATA, torch.int32), requires_grad=False),
        ),
        odd("storage alone", storage(), lambda: BASE().storage()),
        odd(
            "conjugate view",
            tensor(storage(kind="ComplexFloatStorage", numel=8), 0, (8,), (1,), False, None, {"conj": True}),
            lambda: of_bytes(DATA, torch.complex64).conj(),
        ),
        odd(
            "negative view",
            tensor(None, 0, (16,), (1,), False, None, {"neg": True}),
            lambda: torch._neg_view(BASE()),
        ),
        odd("empty storage", tensor(storage(numel=0), 0, (0,)), lambda: torch.empty(0), {"0": b""}),
        odd(
            "empty tensors of two dtypes over empty storages",
            [tensor(storage(numel=0), 0, (0,)), tensor(storage("1", "IntStorage", numel=0), 0, (0,))],
            lambda: [torch.empty(0), torch.empty(0, dtype=torch.int32)],
            {"0": b"", "1": b""},
        ),
        odd("two views of one storage", [tensor(), view((4,), (1,), 4)], lambda: [b := BASE(), b[4:8]]),
        odd(
            "bytes 2 to 255 as booleans",
            tensor(storage(kind="BoolStorage", numel=256), 0, (256,)),
            lambda: of_bytes(bytes(range(256)), torch.bool),
            {"0": bytes(range(256))},
        ),
        Attack(
            "20 000 views of one storage",
            partial(views_of_one, 20_000),
            Expected.EQUAL,
            value=lambda: list(BASE().expand(20_000, NUMEL)),
        ),
        Attack(
            "3000 storages",
            partial(storages_of_one, 3000),
            Expected.EQUAL,
            value=lambda: [BASE() for _ in range(3000)],
        ),
    ),
)


# ------------------------------------------------------------------- a storage and its record disagree

_SIZES = {
    "numel twice": (tensor(storage(numel=32)),),
    "numel twice, and all of it used": (tensor(storage(numel=32), 0, (32,)),),
    "numel, one more": (tensor(storage(numel=17)),),
    "numel, one less": (tensor(storage(numel=15), 0, (15,)),),
    "numel half": (tensor(storage(numel=8), 0, (8,)),),
    "numel 2^40": (tensor(storage(numel=2**40)),),
    "numel 2^61": (tensor(storage(numel=2**61)),),
    "numel whose bytes wrap to those of the record": (tensor(storage(numel=2**62 + 16)),),
    "numel whose bytes wrap to none": (tensor(storage(numel=2**62), 0, (1,)), b""),
    "numel 0 of 16": (tensor(storage(numel=0), 0, (0,)),),
    "storage alone, numel twice": (storage(numel=32),),
    "bytes twice": (v3("float32", untyped(128)),),
    "bytes, one more": (v3("float32", untyped(65)),),
    "bytes, one less": (v3("float32", untyped(63), (15,)),),
    "bytes half": (v3("float32", untyped(32), (8,)),),
    "bytes 2^62": (v3("float32", untyped(2**62)),),
    "bytes 0 of 64": (v3("float32", untyped(0), (0,)),),
    "bytes counted in floats": (v3("float32", untyped(16), (4,)),),
    "doubles counted in floats": (tensor(storage(kind="DoubleStorage")),),
    "record of 63 bytes": (tensor(), DATA[:-1]),
    "record of 65 bytes": (tensor(), DATA + b"x"),
    "record of 60 bytes": (tensor(), DATA[:-4]),
    "record of 68 bytes": (tensor(), DATA + bytes(4)),
    "record of 0 bytes": (tensor(), b""),
    "record of 0 bytes, of which nothing is used": (tensor(None, 0, (0,)), b""),
    "record of 128 bytes": (tensor(), DATA * 2),
    "record of 1 byte for an empty storage": (tensor(storage(numel=0), 0, (0,)), b"x"),
}
#: Second descriptions of a storage that the file described as 16 floats before.
_TWICE = {
    "two dtypes of one size": tensor(storage(kind="IntStorage")),
    "two dtypes of different sizes": tensor(storage(kind="DoubleStorage", numel=8), 0, (8,)),
    "two dtypes of different sizes and one numel": tensor(storage(kind="DoubleStorage"), 0, (1,)),
    "then a smaller numel": tensor(storage(numel=8), 0, (8,)),
    "then a bigger numel": tensor(storage(numel=32), 0, (32,)),
    "then a bigger numel that nothing uses": storage(numel=32),
    "then numel 0": tensor(storage(numel=0), 0, (0,)),
    "then 2^62 + 16 elements": tensor(storage(numel=2**62 + 16), 0, (1,)),
    "then a storage of bytes": untyped(),
    "then a tensor over bytes": v3("float32"),
}


def later(first, second):
    """Return a second use of a key behind a thousand uses of another one."""
    return [first, *[tensor(storage("1"))] * 1000, second]


STORAGES = Family(
    "Storages and their records",
    (
        *(
            Attack(title, partial(file, value, {"0": record[0] if record else DATA}), Expected.FORMAT, ("0",))
            for title, (value, *record) in _SIZES.items()
        ),
        *(
            Attack(f"one key, {title}", partial(file, [tensor(), second]), Expected.FORMAT)
            for title, second in _TWICE.items()
        ),
        Attack(
            "one key, then a bigger numel a thousand storages later",
            partial(file, later(tensor(), storage(numel=32)), {"0": DATA, "1": DATA}),
            Expected.FORMAT,
        ),
        Attack("a bigger numel first", partial(file, [storage(numel=32), tensor()]), Expected.FORMAT),
        Attack("a storage of bytes first", partial(file, [untyped(), tensor()]), Expected.FORMAT),
        Attack(
            "a record that is not used lies about nothing",
            partial(file, tensor(), {"0": DATA, "1": b"x"}),
            Expected.EQUAL,
            value=BASE,
        ),
    ),
)
