"""Small files that would take much memory or time: each is loaded in a child with little of either."""

import struct

import assembler as a
import hostile
import pytest
from assembler import Code, call, checkpoint, get, name, ordered_dict, put, tensor

import zerocopy

pytestmark = pytest.mark.plain_memory("little memory and little time are what is asked for")

MEGABYTE = 2**20
SECONDS = 20  # a second's work at most, on a slow machine
CLEAN = {kind.__name__ for kind in hostile.CLEAN}
UTILS = "torch._utils"

#: A tensor of 2^36 elements over one: legal by itself, 256 GiB as soon as somebody copies it.
HUGE = 2**36
WIDE = tensor(None, 0, (HUGE,), (0,))
INDICES = tensor(a.storage("1", "LongStorage", numel=2), 0, (1, HUGE), (0, 0))
LONGS = tensor(a.storage("1", "LongStorage", numel=2), 0, (HUGE,), (0,))
BYTES = a.storage("2", "QUInt8Storage", numel=64)
STORAGES = {"0": a.DATA, "1": struct.pack("<2q", 0, 1), "2": bytes(64)}


def layout(kind):
    return call(name("torch.serialization", "_get_layout"), f"torch.{kind}")


def again(setup, each, times):
    """What `setup` leaves on the stack, changed by `each` many times."""
    return Code(setup + each * times)


def listed(*remembered):
    return b"".join(put(value, i) for i, value in enumerate(remembered)) + a.EMPTY_LIST


def apply(*arguments):
    return a.MARK + b"".join(arguments) + a.TUPLE + a.REDUCE + a.APPEND


LONG = "a" * MEGABYTE
SMALL = b"K\0"
TEXTS = [LONG, name("_codecs", "encode"), name("builtins", "bytearray"), name("builtins", "set")]

#: Values that cost little to write, repeated: what each repetition costs must be little too.
REPEATED = {
    "encode to utf-8": lambda: again(listed(*TEXTS, "utf-8"), get(1) + apply(get(0), get(4)), 20_000),
    "encode to ascii": lambda: again(listed(*TEXTS, "ascii"), get(1) + apply(get(0), get(4)), 20_000),
    "encode to latin1": lambda: again(listed(*TEXTS, "latin1"), get(1) + apply(get(0), get(4)), 20_000),
    "bytearray of text": lambda: again(listed(*TEXTS, "utf-8"), get(2) + apply(get(0), get(4)), 20_000),
    "bytearray of bytes": lambda: again(listed(LONG.encode(), TEXTS[2]), get(1) + apply(get(0)), 20_000),
    "set of a list": lambda: again(listed(list(range(50_000)), TEXTS[3]), get(1) + apply(get(0)), 20_000),
    "Size of a tuple": lambda: again(
        listed(tuple(range(50_000)), name("torch", "Size")), get(1) + apply(get(0)), 20_000
    ),
    "long names": lambda: again(listed(LONG), get(0) + get(0) + a.STACK_GLOBAL + a.APPEND, 20_000),
    "long key of a storage": lambda: again(
        listed(("storage", name("torch", "FloatStorage"), LONG, "cpu", 16)),
        get(0) + a.BINPERSID + a.APPEND,
        100_000,
    ),
    "long integer as a key": lambda: again(
        put(2 ** (8 * MEGABYTE) - 1, 0) + a.EMPTY_DICT, get(0) + b"N" + a.SETITEM, 100_000
    ),
    "metadata": lambda: again(
        listed(
            Code(a.EMPTY_DICT + a.MARK + (a.code("conj") + b"\x89") * 100_000 + a.SETITEMS),
            a.storage(), ordered_dict(), name(UTILS, "_rebuild_tensor_v2"), (1,),
        ),
        get(3) + apply(get(1), SMALL, get(4), get(4), b"\x89", get(2), get(0)),
        100_000,
    ),
}  # fmt: skip

BUILT = {
    "sparse COO over stride 0": lambda: call(
        name(UTILS, "_rebuild_sparse_tensor"), layout("sparse_coo"), (INDICES, WIDE, (4,))
    ),
    "sparse COO over stride 0, coalesced": lambda: call(
        name(UTILS, "_rebuild_sparse_tensor"), layout("sparse_coo"), (INDICES, WIDE, (4,), True)
    ),
    "sparse CSR over stride 0": lambda: call(
        name(UTILS, "_rebuild_sparse_tensor"), layout("sparse_csr"), (LONGS, LONGS, WIDE, (4, 4))
    ),
    "tensor of a device over stride 0": lambda: call(
        name(UTILS, "_rebuild_device_tensor_from_cpu_tensor"), WIDE, name("torch", "float64"), "cpu", False
    ),
    "nested over stride 0": lambda: call(
        name(UTILS, "_rebuild_nested_tensor"), tensor(), INDICES, INDICES, LONGS
    ),
    "quantized over stride 0": lambda: call(
        name(UTILS, "_rebuild_qtensor"), BYTES, 0, (HUGE,), (0,),
        (name("torch", "per_tensor_affine"), 0.5, 3), False, ordered_dict(),
    ),
    "scales over stride 0": lambda: call(
        name(UTILS, "_rebuild_qtensor"), BYTES, 0, (HUGE,), (0,),
        (name("torch", "per_channel_affine"), WIDE, LONGS, 0), False, ordered_dict(),
    ),
}  # fmt: skip


def outcome(path, data):
    path.write_bytes(data)
    kind, message = hostile.bounded([path], seconds=SECONDS)[0]
    assert len(message) <= hostile.LONGEST_MESSAGE + len(str(path))
    return kind


@pytest.mark.parametrize("case", REPEATED)
def test_repeated_reference_costs_little(case, tmp_path):
    assert outcome(tmp_path / "x.pt", checkpoint(a.pickle(REPEATED[case]()))) in CLEAN | {"loaded"}


@pytest.mark.parametrize("case", BUILT)
def test_no_rebuild_walks_a_huge_view(case, tmp_path):
    """Nor asks for its memory: a machine that has that much would give it."""
    path = tmp_path / "x.pt"
    path.write_bytes(checkpoint(a.pickle(BUILT[case]()), STORAGES))
    kind, message = hostile.bounded([path], seconds=SECONDS)[0]
    assert kind in CLEAN
    assert "alloc" not in message and "memory" not in message


def test_huge_view_itself_loads(tmp_path):
    assert outcome(tmp_path / "x.pt", checkpoint(a.pickle(WIDE))) == "loaded"


def test_deflate_bombs(tmp_path):
    zeros = a.deflate(bytes(64 * MEGABYTE))
    opcodes = a.deflate(b"\x80\x02" + b"N" * 128 * MEGABYTE + b".")
    pickled = a.good()
    sized = {"size": 128 * MEGABYTE + 3}
    cases = {
        "gives 64 MiB for 64 bytes": [
            a.Entry("a/data.pkl", pickled),
            a.Entry("a/data/0", a.DATA, 8, stored=zeros),
        ],
        "claims 1 TiB": [
            a.Entry("a/data.pkl", pickled),
            a.Entry("a/data/0", a.DATA, 8, central={"size": 2**32 - 1, "extra": a.zip64(2**40)}),
        ],
        "data.pkl of 128 MiB": [a.Entry("a/data.pkl", b"", 8, stored=opcodes, local=sized, central=sized)],
        "data.pkl claims 64 GiB": [
            a.Entry("a/data.pkl", pickled, 8, central={"size": 2**32 - 1, "extra": a.zip64(2**36)})
        ],
    }  # fmt: skip
    paths = []
    for i, records in enumerate(cases.values()):
        paths.append(tmp_path / f"{i}.pt")
        paths[-1].write_bytes(a.archive([*records, a.Entry("a/version", b"3\n")]))
    for case, (kind, message) in zip(cases, hostile.bounded(paths, seconds=SECONDS), strict=True):
        assert kind == zerocopy.FormatError.__name__, (case, message)


def test_many_records(tmp_path):
    records = a.entries() + [a.Entry(f"archive/extra/{i}", b"", align=1) for i in range(70_000)]
    path = tmp_path / "x.pt"
    path.write_bytes(a.archive(records, wide={}, entries=0xFFFF, here=0xFFFF))
    assert hostile.bounded([path], seconds=SECONDS)[0][0] == "loaded"
