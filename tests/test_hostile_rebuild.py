"""Sparse, quantized and nested tensors that lie about themselves: the threat list, §7.14."""

import pickle
import struct

import assembler as a
import hostile
import pytest
import torch
import torch._weights_only_unpickler as weights_only
from assembler import call, checkpoint, name, ordered_dict, storage, tensor

import zerocopy

UTILS = "torch._utils"
STORAGES = {
    "0": a.DATA,
    "2": bytes(range(64)),
    "3": struct.pack("<3d", 0.5, 0.25, 0.125),
}


def has(path):
    return path in weights_only._get_allowed_globals()


needs_qtensor = pytest.mark.skipif(not has(f"{UTILS}._rebuild_qtensor"), reason="not on this release's list")
needs_nested = pytest.mark.skipif(
    not has(f"{UTILS}._rebuild_nested_tensor"), reason="not on this release's list"
)


def integers(*values):
    """Return an int64 tensor of these values, and the storage it needs."""
    key = "i" + "_".join(map(str, values))
    data = struct.pack(f"<{len(values)}q", *values)
    return tensor(storage(key, "LongStorage", numel=len(values)), 0, (len(values),), (1,)), {key: data}


def layout(kind="sparse_coo"):
    return call(name("torch.serialization", "_get_layout"), f"torch.{kind}")


def coo(indices, count, size, *more, rows=1):
    key = "indices"
    flat = struct.pack(f"<{len(indices)}q", *indices)
    columns = len(indices) // rows
    over = tensor(storage(key, "LongStorage", numel=len(indices)), 0, (rows, columns), (columns, 1))
    value = call(
        name(UTILS, "_rebuild_sparse_tensor"), layout(), (over, tensor(None, 0, (count,)), size, *more)
    )
    return checkpoint(a.pickle(value), STORAGES | {key: flat})


def csr(crow, col, count, size, kind="sparse_csr"):
    crow, crows = integers(*crow)
    col, cols = integers(*col)
    value = call(
        name(UTILS, "_rebuild_sparse_tensor"), layout(kind), (crow, col, tensor(None, 0, (count,)), size)
    )
    return checkpoint(a.pickle(value), STORAGES | crows | cols)


def test_valid_coo(tmp_path):
    (tmp_path / "x.pt").write_bytes(coo((0, 2), 2, (4,)))
    assert torch.equal(zerocopy.load(tmp_path / "x.pt").to_dense(), torch.tensor([0.0, 0.0, 1.0, 0.0]))


def test_valid_csr(tmp_path):
    (tmp_path / "x.pt").write_bytes(csr((0, 1, 2), (0, 1), 2, (2, 2)))
    assert torch.equal(zerocopy.load(tmp_path / "x.pt").to_dense(), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


SPARSE = {
    "COO index -1": lambda: coo((-1, 0), 2, (4,)),
    "COO index = size": lambda: coo((0, 4), 2, (4,)),
    "COO index 2^62": lambda: coo((0, 2**62), 2, (4,)),
    "COO 3 indices, 4 values": lambda: coo((0, 1, 2), 4, (4,)),
    "COO negative size": lambda: coo((0, 1), 2, (-4,)),
    "COO dense size overflows": lambda: coo((0, 0, 0, 0), 1, (2**62, 2**62, 2**62, 2**62), rows=4),
    "COO size missing": lambda: coo((0, 1), 2, ()),
    "COO coalesced, repeated": lambda: coo((1, 1), 2, (4,), True),
    "COO coalesced, unsorted": lambda: coo((2, 1), 2, (4,), True),
    "CSR crow decreasing": lambda: csr((0, 2, 1), (0,), 1, (2, 2)),
    "CSR crow end": lambda: csr((0, 1, 3), (0, 1), 2, (2, 2)),
    "CSR crow[0]": lambda: csr((-1, 1, 2), (0, 1), 2, (2, 2)),
    "CSR column -1": lambda: csr((0, 1, 2), (0, -1), 2, (2, 2)),
    "CSR column 2^40": lambda: csr((0, 1, 2), (0, 2**40), 2, (2, 2)),
    "CSC row 2^40": lambda: csr((0, 1, 2), (0, 2**40), 2, (2, 2), "sparse_csc"),
    "layout dense": lambda: csr((0, 1, 2), (0, 1), 2, (2, 2), "strided"),
    "layout unknown": lambda: csr((0, 1, 2), (0, 1), 2, (2, 2), "float32"),
    "layout with a dot": lambda: csr((0, 1, 2), (0, 1), 2, (2, 2), "nn.functional"),
}


@pytest.mark.parametrize("case", SPARSE)
def test_sparse(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", SPARSE[case]())) is zerocopy.FormatError


@pytest.mark.parametrize("values", [(0, 2, 1), (0, 1, 3), (-1, 1, 2), (0, 1, 2)])
def test_sparse_csr_of_1_13(values, tmp_path):
    """``_rebuild_sparse_csr_tensor`` is on the list of 1.13 alone."""
    crow, crows = integers(*values)
    col, cols = integers(0, 2**40)
    rebuild = name(UTILS, "_rebuild_sparse_csr_tensor")
    value = call(rebuild, layout("sparse_csr"), (crow, col, tensor(None, 0, (2,)), (2, 2)))
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(value), STORAGES | crows | cols))
    assert isinstance(error, (zerocopy.FormatError, pickle.UnpicklingError))


def quantized(scheme, *parameters, size=(16,), kind="QUInt8Storage", key="2", numel=64, more=None):
    scheme = name("torch", scheme)
    stride = (4, 1)[-len(size) :]
    over = storage(key, kind, numel=numel)
    value = call(
        name(UTILS, "_rebuild_qtensor"), over, 0, size, stride, (scheme, *parameters), False, ordered_dict()
    )
    return checkpoint(a.pickle(value), STORAGES | (more or {}))


def channels(count=3, axis=0, points=(0, 2, 1)):
    scales = tensor(storage("3", "DoubleStorage", numel=3), 0, (count,), (1,))
    zeros, storages = integers(*points)
    return quantized("per_channel_affine", scales, zeros, axis, size=(3, 4), more=storages)


@needs_qtensor
def test_valid_quantized(tmp_path):
    (tmp_path / "x.pt").write_bytes(quantized("per_tensor_affine", 0.5, 3))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert loaded.q_scale() == 0.5 and loaded.q_zero_point() == 3
    assert loaded.int_repr().tolist() == list(range(16))
    (tmp_path / "x.pt").write_bytes(channels())
    assert zerocopy.load(tmp_path / "x.pt").q_per_channel_scales().tolist() == [0.5, 0.25, 0.125]


QUANTIZED = {
    "scale NaN": lambda: quantized("per_tensor_affine", float("nan"), 3),
    "scale infinite": lambda: quantized("per_tensor_affine", float("inf"), 3),
    "scale -1": lambda: quantized("per_tensor_affine", -1.0, 3),
    "scale 0": lambda: quantized("per_tensor_affine", 0.0, 3),
    "scale 'x'": lambda: quantized("per_tensor_affine", "x", 3),
    "scale None": lambda: quantized("per_tensor_affine", None, 3),
    "scale a long integer": lambda: quantized("per_tensor_affine", 10**400, 3),
    "zero point 2^40": lambda: quantized("per_tensor_affine", 0.5, 2**40),
    "zero point 256": lambda: quantized("per_tensor_affine", 0.5, 256),
    "zero point 'x'": lambda: quantized("per_tensor_affine", 0.5, "x"),
    "scheme a dtype": lambda: quantized("float32", 0.5, 3),
    "scheme symmetric": lambda: quantized("per_tensor_symmetric", 0.5, 3),
    "no parameters": lambda: quantized("per_tensor_affine"),
    "too many parameters": lambda: quantized("per_tensor_affine", 0.5, 3, 4),
    "over floats": lambda: quantized("per_tensor_affine", 0.5, 3, kind="FloatStorage", key="0", numel=16),
    "larger than its storage": lambda: quantized("per_tensor_affine", 0.5, 3, size=(1000,)),
    "one scale, three channels": lambda: channels(1),
    "two zero points, three channels": lambda: channels(points=(0, 2)),
    "three zero points, one of them -1": lambda: channels(points=(0, 2, -1)),
    "axis 9": lambda: channels(3, 9),
    "axis -7": lambda: channels(3, -7),
    "axis 1": lambda: channels(3, 1),
    "axis 'x'": lambda: channels(3, "x"),
}


@needs_qtensor
@pytest.mark.parametrize("case", QUANTIZED)
def test_quantized(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", QUANTIZED[case]())) is zerocopy.FormatError


@needs_nested
@pytest.mark.parametrize("start", [-1, 13, 2**40])
def test_nested_leaves_its_buffer(start, tmp_path):
    starts, storages = integers(start)
    one, ones = integers(1)
    four, fours = integers(4)

    def column(made, key):
        return tensor(storage(key, "LongStorage", numel=1), 0, (1, 1), (1, 1))

    value = call(
        name(UTILS, "_rebuild_nested_tensor"), tensor(), column(four, "i4"), column(one, "i1"), starts
    )
    data = checkpoint(a.pickle(value), STORAGES | storages | ones | fours)
    assert type(hostile.refusal(tmp_path / "x.pt", data)) is zerocopy.FormatError
