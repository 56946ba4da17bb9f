"""Tensors over storages that do not hold them: the threat list, §7.11 to §7.13."""

import pickle
import struct

import assembler as a
import hostile
import pytest
import torch
from assembler import Code, call, checkpoint, name, ordered_dict, storage, tensor

import zerocopy

LONGS = struct.pack("<8q", *range(8))


def loaded(path, value, storages=None):
    path.write_bytes(checkpoint(a.pickle(value), storages))
    return zerocopy.load(path)


def parameter(data, requires_grad=True):
    return call(name("torch._utils", "_rebuild_parameter"), data, requires_grad, ordered_dict())


def v3(dtype, over, size, *more):
    return tensor(
        over, 0, size, (1,), False, None, name("torch", dtype), *more, function="_rebuild_tensor_v3"
    )


VALID = {
    "transposed": (tensor(None, 0, (4, 4), (1, 4)), lambda t: t.reshape(4, 4).t()),
    "offset": (tensor(None, 3, (5,), (2,)), lambda t: t[3:13:2]),
    "stride 0": (tensor(None, 1, (3, 2), (0, 1)), lambda t: t[1:3].expand(3, 2)),
    "overlapping rows": (tensor(None, 0, (3, 4), (1, 1)), lambda t: t.unfold(0, 4, 1)[:3]),
    "last element": (tensor(None, 15, (1,), (1,)), lambda t: t[15:]),
    "0-d": (tensor(None, 15, (), ()), lambda t: t[15]),
    "(0, 5) over a storage": (tensor(None, 0, (0, 5), (5, 1)), lambda t: t[:0].reshape(0, 5)),
    "empty at the end": (tensor(None, 16, (0,), (1,)), lambda t: t[16:]),
    "huge stride on a dimension of 1": (tensor(None, 0, (1, 16), (2**62, 1)), lambda t: t.reshape(1, 16)),
    "64 dimensions": (tensor(None, 0, (1,) * 63 + (16,), (1,) * 64), lambda t: t.reshape((1,) * 63 + (16,))),
    "sizes as torch.Size": (tensor(None, 0, call(name("torch", "Size"), (4,)), (1,)), lambda t: t[:4]),
    "requires_grad": (tensor(None, 0, (16,), (1,), True), lambda t: t),
    "rebuild_tensor": (
        call(name("torch._utils", "_rebuild_tensor"), storage(), 0, (16,), (1,)),
        lambda t: t,
    ),
    "Parameter": (parameter(tensor()), lambda t: t),
    "metadata None": (tensor(None, 0, (16,), (1,), False, None, None), lambda t: t),
    "metadata empty": (tensor(None, 0, (16,), (1,), False, None, {}), lambda t: t),
}


@pytest.mark.parametrize("case", VALID)
def test_loads_equal(case, tmp_path):
    value, expected = VALID[case]
    tensor = loaded(tmp_path / "x.pt", value)
    expected = expected(torch.arange(16.0))
    assert torch.equal(tensor, expected)
    assert tensor.shape == expected.shape
    assert tensor.requires_grad == (case in ("requires_grad", "Parameter"))
    assert isinstance(tensor, torch.nn.Parameter) == (case == "Parameter")


def test_empty_storage(tmp_path):
    value = tensor(storage(numel=0), 0, (0,), (1,))
    assert loaded(tmp_path / "x.pt", value, {"0": b""}).shape == (0,)


KINDS = [
    *("Double", "Float", "Half", "BFloat16", "ComplexFloat", "ComplexDouble"),
    *("Long", "Int", "Short", "Char", "Byte", "Bool"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_storage_class(kind, tmp_path):
    dtype = getattr(torch, f"{kind}Storage").dtype
    count = 64 // torch.empty(0, dtype=dtype).element_size()
    value = tensor(storage(kind=f"{kind}Storage", numel=count), 0, (count,), (1,))
    tensor_ = loaded(tmp_path / "x.pt", value, {"0": b"\1" * 64})
    assert tensor_.dtype == dtype
    assert bytes(tensor_.view(torch.uint8).tolist() if dtype != torch.bool else b"\1" * 64) == b"\1" * 64


def test_views_of_one_storage_share_it(tmp_path):
    views = loaded(tmp_path / "x.pt", [tensor(), tensor(None, 4, (4,), (1,))])
    views[1][0] = -1.0
    assert views[0][4] == -1.0


def test_many_views_and_storages(tmp_path):
    many = a.Code(a.put(storage(), 0) + a.EMPTY_LIST + a.MARK + tensor(a.get(0)) * 20_000 + a.APPENDS)
    views = loaded(tmp_path / "x.pt", many)
    assert len({view.data_ptr() for view in views}) == 1
    keys = [str(i) for i in range(3000)]
    values = [tensor(storage(key)) for key in keys]
    tensors = loaded(tmp_path / "x.pt", values, dict.fromkeys(keys, a.DATA))
    assert torch.equal(tensors[2999], torch.arange(16.0))


def test_huge_view(tmp_path):
    view = loaded(tmp_path / "x.pt", tensor(None, 3, (2**36,), (0,)))
    assert view[2**35] == 3.0


def test_bool_bytes_load_as_they_are(tmp_path):
    data = bytes(range(64))
    value = tensor(storage(kind="BoolStorage", numel=64), 0, (64,), (1,))
    assert bytes(loaded(tmp_path / "x.pt", value, {"0": data}).view(torch.uint8).tolist()) == data


NUMELS = {
    "numel twice": (tensor(storage(numel=32)), a.DATA),
    "numel one more": (tensor(storage(numel=17)), a.DATA),
    "record of 63 bytes": (tensor(), a.DATA[:-1]),
    "record of 65 bytes": (tensor(), a.DATA + b"x"),
    "numel 2^40": (tensor(storage(numel=2**40)), a.DATA),
    "numel 8 of 16": (tensor(storage(numel=8), 0, (8,)), a.DATA),
    "record of 0 bytes": (tensor(), b""),
    "numel 0, record of 64 bytes": (tensor(storage(numel=0), 0, (0,)), a.DATA),
    "one key, two dtypes": ([tensor(), tensor(storage(kind="IntStorage"))], a.DATA),
    "one key, two dtypes of different sizes": (
        [tensor(), tensor(storage(kind="DoubleStorage", numel=8), 0, (8,))],
        a.DATA,
    ),
    "one key, then a smaller numel": ([tensor(), tensor(storage(numel=8), 0, (8,))], a.DATA),
    "one key, then a bigger numel": ([tensor(), tensor(storage(numel=32), 0, (32,))], a.DATA),
    "one key, typed and untyped": (
        [tensor(), storage(kind=name("torch.storage", "UntypedStorage"), numel=64)],
        a.DATA,
    ),
}


@pytest.mark.parametrize("case", NUMELS)
def test_numel_and_record_disagree(case, tmp_path):
    value, data = NUMELS[case]
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value), {"0": data}))
    assert type(error) is zerocopy.FormatError


def sized(size, stride=None, offset=0):
    return tensor(None, offset, size, (1,) * len(size) if stride is None else stride)


GEOMETRY = {
    "20 of 16": sized((20,)),
    "offset 1 + 16": sized((16,), offset=1),
    "offset 16": sized((1,), offset=16),
    "offset 17, empty": sized((0,), offset=17),
    "offset 10^9": sized((1,), offset=10**9),
    **{
        f"offset {offset}": sized((1,), offset=offset)
        for offset in (-1, -4, 2**62, 2**63, -(2**63), None, 0.0, "0")
    },
    "offset False": sized((1,), offset=False),
    "stride 16": sized((2,), (16,)),
    "stride 2^62": sized((2,), (2**62,)),
    "(size-1)*stride = 2^64": sized((5,), (2**62,)),
    "strides whose sum wraps": sized((2, 2, 2), (2**62, 2**62, 2**62)),
    "stride -1": sized((2,), (-1,)),
    "stride -1 with offset": sized((16,), (-1,), 15),
    "strides mixed": sized((2, 2), (4, -1), 1),
    "stride -1 on a dimension of 1": sized((1,), (-1,)),
    "size -1": sized((-1,)),
    "(-4)*(-4)": sized((-4, -4)),
    "2^32 * 2^32": sized((2**32, 2**32), (0, 0)),
    "three dimensions, 2^64": sized((2**30, 2**30, 16), (0, 0, 0)),
    "size 2^63": sized((2**63,), (0,)),
    "size 2^62 with stride 0": sized((2**62,), (0,)),
    "0 * 2^124": sized((0, 2**62, 2**62), (1, 1, 1)),
    "two sizes, one stride": tensor(None, 0, (2, 2), (1,)),
    "size a string": tensor(None, 0, "ab", (1, 1)),
    "size floats": sized((16.0,)),
    "size bools": sized((True,)),
    "size None": tensor(None, 0, None, (1,)),
    "size of None": sized((None,)),
    "size tuples": sized(((16,),)),
    "size a list": tensor(None, 0, [16], (1,)),
    "stride a list": tensor(None, 0, (16,), [1]),
    "65 dimensions": sized((1,) * 65),
    "100 000 dimensions": sized((1,) * 100_000),
    "empty with offset 10^15": sized((0,), offset=10**15),
    "storage an int": tensor(1),
    "storage None": tensor(Code(b"N")),
    "storage a tensor": tensor(tensor()),
    "too few arguments": call(name("torch._utils", "_rebuild_tensor_v2"), storage(), 0, (1,)),
    "too many arguments": tensor(None, 0, (1,), (1,), False, None, None, None),
    "arguments a list": Code(name("torch._utils", "_rebuild_tensor_v2") + a.code([]) + a.REDUCE),
    "grad on integers": tensor(storage(kind="IntStorage"), 0, (16,), (1,), True),
    "grad 'yes'": tensor(None, 0, (16,), (1,), "yes"),
    "grad 1": tensor(None, 0, (16,), (1,), 1),
    "Parameter with grad on integers": parameter(tensor(storage(kind="IntStorage"))),
    "Parameter of a storage": parameter(storage()),
    "Parameter of None": parameter(None),
    "metadata no dict": tensor(None, 0, (16,), (1,), False, None, [1]),
    "metadata no bool": tensor(None, 0, (16,), (1,), False, None, {"conj": 1}),
    "conj of floats": tensor(None, 0, (16,), (1,), False, None, {"conj": True}),
    "conj of bytes": v3("int8", storage(), (1,), {"conj": True}),
    "quantized storage": tensor(storage(kind="QInt8Storage", numel=64), 0, (1,)),
    "dtype quantized": v3("qint8", storage(), (1,)),
    "dtype a string": tensor(None, 0, (1,), (1,), False, None, "float32", function="_rebuild_tensor_v3"),
    "dtype None": tensor(None, 0, (1,), (1,), False, None, None, function="_rebuild_tensor_v3"),
    "dtype too wide": v3("float64", storage(), (9,)),
}


@pytest.mark.parametrize("case", GEOMETRY)
def test_format_error(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(GEOMETRY[case])))
    assert type(error) is zerocopy.FormatError, repr(error)


def test_unknown_metadata(tmp_path):
    value = tensor(None, 0, (16,), (1,), False, None, {"other": True})
    assert type(hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value)))) is zerocopy.UnsupportedError


META = {
    "2^124 elements": ((2**62, 2**62), (1, 1)),
    "size -1": ((-1,), (1,)),
    "(-4)*(-4)": ((-4, -4), (1, 1)),
    "stride -1": ((4,), (-1,)),
    "strides missing": ((4,), ()),
    "65 dimensions": ((1,) * 65, (1,) * 65),
    "size a string": ("4", (1,)),
}


@pytest.mark.parametrize("case", META)
def test_meta_tensor(case, tmp_path):
    rebuild = name("torch._utils", "_rebuild_meta_tensor_no_storage")
    value = call(rebuild, name("torch", "float32"), *META[case], False)
    assert type(hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value)))) is zerocopy.FormatError


@pytest.mark.parametrize("case", GEOMETRY)
def test_checked_also_behind_another_function(case, tmp_path):
    """The natively checked calls have Python twins, reached through ``_rebuild_from_type_v2``."""
    function, _, arguments = bytes(GEOMETRY[case]).partition(b"\n")[2].partition(b"\n")
    rebuild = name("torch._tensor", "_rebuild_from_type_v2")
    inner = Code(arguments[: -len(a.REDUCE)])
    value = Code(
        rebuild
        + a.MARK
        + name("torch._utils", function)
        + name("torch", "Tensor")
        + inner
        + b"}"
        + a.TUPLE
        + a.REDUCE
    )
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value)))
    assert isinstance(error, (zerocopy.FormatError, pickle.UnpicklingError)), repr(error)
