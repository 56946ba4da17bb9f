"""Calls of what may be called, with arguments that it must not get: the threat list, §7.1."""

import contextlib
import pickle

import assembler as a
import hostile
import pytest
import torch
from assembler import Code, call, checkpoint, name, new, stack_name

import zerocopy

TENSOR = name("torch", "Tensor")

#: Calls that would allocate as much as the file says, or hand out memory that nobody has written.
ALLOCATING = {
    "bytearray": lambda: call(name("builtins", "bytearray"), 2**40),
    "bytearray, Python 2": lambda: call(name("__builtin__", "bytearray"), 2**40),
    "torch.Tensor": lambda: call(name("torch", "Tensor"), 2**38),
    "torch.Tensor, small": lambda: call(name("torch", "Tensor"), 64),
    "torch.Tensor by NEWOBJ": lambda: new(name("torch", "Tensor"), 64),
    "torch.FloatTensor": lambda: call(name("torch", "FloatTensor"), 2**38),
    "UntypedStorage": lambda: call(name("torch", "UntypedStorage"), 2**40),
    "torch.storage.UntypedStorage": lambda: call(name("torch.storage", "UntypedStorage"), 2**40),
    "FloatStorage": lambda: call(name("torch", "FloatStorage"), 2**38),
    "_rebuild_from_type_v2": lambda: call(
        name("torch._tensor", "_rebuild_from_type_v2"), TENSOR, TENSOR, (2**38,), {}
    ),
    "_make_wrapper_subclass": lambda: call(
        name("torch._utils", "_rebuild_wrapper_subclass"), TENSOR, name("torch", "float32"), (2**38,), (1,),
        0, call(name("torch.serialization", "_get_layout"), "torch.strided"), "cpu", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOCATING)
def test_no_allocation_by_number(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(ALLOCATING[case]())))
    assert isinstance(error, (pickle.UnpicklingError, zerocopy.FormatError))


WRONG_ARGUMENTS = {
    "Size of a string": lambda: call(name("torch", "Size"), "abc"),
    "Size of 2^70": lambda: call(name("torch", "Size"), [2**70]),
    "Size of (2^70,)": lambda: call(name("torch", "Size"), (2**70,)),
    "device index 10^9": lambda: call(name("torch", "device"), "cuda", 10**9),
    "device index -1": lambda: call(name("torch", "device"), "cuda", -1),
    "device index in the name": lambda: call(name("torch", "device"), "cuda:99999999999999999999"),
    "device unknown": lambda: call(name("torch", "device"), "nonsense"),
    "device empty": lambda: call(name("torch", "device"), ""),
    "device not UTF-8": lambda: call(name("torch", "device"), Code(b"U\x04cpu\xff")),
    "device with a surrogate": lambda: call(name("torch", "device"), "cpu\ud800"),
    "complex of strings": lambda: call(name("builtins", "complex"), "1", "2"),
    "set of a number": lambda: call(name("builtins", "set"), 7),
    "OrderedDict of triples": lambda: call(name("collections", "OrderedDict"), [(1, 2, 3)]),
    "encode of bytes": lambda: call(name("_codecs", "encode"), b"x", "latin1"),
    "encode beyond latin1": lambda: call(name("_codecs", "encode"), "\u0100", "latin1"),
    "arguments no tuple": lambda: Code(name("collections", "OrderedDict") + a.EMPTY_LIST + a.REDUCE),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(WRONG_ARGUMENTS[case]())))
    assert type(error) is zerocopy.FormatError


VALUES = {
    "bytes by protocol 2": (lambda: call(name("_codecs", "encode"), "a\xff", "latin1"), b"a\xff"),
    "set by protocol 2": (lambda: call(name("__builtin__", "set"), [1, 2]), {1, 2}),
    "bytearray": (lambda: call(name("builtins", "bytearray"), b"ab"), bytearray(b"ab")),
    "complex": (lambda: call(name("builtins", "complex"), 1.0, 2.0), 1 + 2j),
    "Size": (lambda: call(name("torch", "Size"), (2, 3)), torch.Size([2, 3])),
    "device": (lambda: call(name("torch", "device"), "cuda", 1), torch.device("cuda", 1)),
    "dtype": (lambda: name("torch", "float32"), torch.float32),
    "STACK_GLOBAL": (lambda: stack_name("torch", "int64"), torch.int64),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_load(case, tmp_path):
    made, value = VALUES[case]
    (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle(made())))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize("module", ["torch", "torch.storage", "torch.cuda"])
def test_storage_class_that_this_release_lacks(module, tmp_path):
    """A name of the machine's own table need not be an attribute of that module."""
    for kind in ("QInt8Storage", "FloatStorage", "UntypedStorage"):
        (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle([name(module, kind)])))
        with contextlib.suppress(hostile.CLEAN):
            zerocopy.load(tmp_path / "x.pt")
