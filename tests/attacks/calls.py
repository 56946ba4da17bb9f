"""Calls of what a file may name, with arguments that it must not get."""

from collections import OrderedDict

import torch
from assembler import (
    EMPTY_LIST,
    NUMEL,
    REDUCE,
    Code,
    call,
    checkpoint,
    name,
    new,
    pickle,
    stack_name,
    storage,
    tensor,
)

from attacks.attack import TRAP, Attack, Expected, Family

TENSOR = name("torch", "Tensor")
ENCODE = name("_codecs", "encode")
STRIDED = call(name("torch.serialization", "_get_layout"), "torch.strided")


def attack(what, made, expected=Expected.FORMAT, *says, **more):
    return Attack(what, lambda: checkpoint(pickle(made)), expected, says, **more)


def refused(what, made, *says, **more):
    return attack(what, made, Expected.REFUSED, *says, **more)


def equal(what, made, value):
    return attack(what, made, Expected.EQUAL, value=lambda: value)


def builtin(function, *arguments, module="builtins"):
    return call(name(module, function), *arguments)


def torchs(function, *arguments):
    return call(name("torch", function), *arguments)


def codec(what, name, text="x"):
    return refused(f"codec {what}", call(ENCODE, text, name))


def typed(rebuild, *arguments):
    """Rebuild function and arguments as a typed tensor has them."""
    return call(name("torch._tensor", "_rebuild_from_type_v2"), rebuild, TENSOR, arguments, {})


#: Calls that would allocate by a number of the file, or return uninitialised memory.
_ALLOCATING = (
    attack("bytearray of 2^40", builtin("bytearray", 2**40)),
    attack("bytearray of 64", builtin("bytearray", 64)),
    attack("bytearray of 2^40 under Python 2's name", builtin("bytearray", 2**40, module="__builtin__")),
    attack("bytes of 2^40", builtin("bytes", 2**40)),
    refused("torch.Tensor of 2^38", torchs("Tensor", 2**38)),
    refused("torch.Tensor of 64, which nobody has written", torchs("Tensor", 64)),
    refused("torch.Tensor of a storage", torchs("Tensor", storage())),
    refused("torch.Tensor of 2^38 by NEWOBJ", new(TENSOR, 2**38)),
    refused("torch.FloatTensor of 2^38", torchs("FloatTensor", 2**38)),
    refused("torch.FloatTensor of 64, which nobody has written", torchs("FloatTensor", 64)),
    refused("torch.cuda.FloatTensor of 2^38", call(name("torch.cuda", "FloatTensor"), 2**38)),
    refused("torch.sparse.FloatTensor of 2^38", call(name("torch.sparse", "FloatTensor"), 2**38)),
    refused("UntypedStorage of 2^40", torchs("UntypedStorage", 2**40)),
    refused("UntypedStorage of 2^40 in its own module", call(name("torch.storage", "UntypedStorage"), 2**40)),
    refused("TypedStorage of 2^40", call(name("torch.storage", "TypedStorage"), 2**40)),
    refused("FloatStorage of 2^38", torchs("FloatStorage", 2**38)),
    refused("FloatStorage of 64, which nobody has written", torchs("FloatStorage", 64)),
    refused("FloatStorage of 2^38 by NEWOBJ", new(name("torch", "FloatStorage"), 2**38)),
    refused("typed tensor made by torch.Tensor of 2^38", typed(TENSOR, 2**38)),
    refused("typed tensor made by FloatStorage of 2^38", typed(name("torch", "FloatStorage"), 2**38)),
    attack(
        "wrapper subclass of 2^38 elements of torch.Tensor",
        call(name("torch._utils", "_rebuild_wrapper_subclass"), TENSOR, name("torch", "float32"),
             (2**38,), (1,), 0, STRIDED, "cpu", False),
        needs="torch._utils._rebuild_wrapper_subclass",
    ),
)  # fmt: skip

_CODECS = (
    codec("that does not exist, which would be imported", TRAP),
    codec("with a dot", "os.path"),
    codec("idna, which is quadratic", "idna", "x" * 100_000),
    codec("punycode, which is quadratic", "punycode", "\u0100" * 30_000),
    codec("zip", "zip"),
    codec("rot13", "rot13"),
    codec("unicode_escape", "unicode_escape"),
    codec("utf-7", "utf-7"),
    codec("utf-16", "utf-16"),
    codec("in capitals", "LATIN1"),
    codec("empty", ""),
    refused("_codecs.decode", call(name("_codecs", "decode"), b"x", "latin1"), "_codecs.decode"),
    refused("_codecs.lookup", call(name("_codecs", "lookup"), TRAP), "_codecs.lookup"),
    refused("codecs.encode", call(name("codecs", "encode"), "x", "latin1"), "codecs.encode"),
    attack("encode of bytes", call(ENCODE, b"x", "latin1")),
    attack("encode of a number", call(ENCODE, 7, "latin1")),
    attack("encode beyond latin1", call(ENCODE, "\u0100", "latin1")),
    attack("encode beyond ascii", call(ENCODE, "\xff", "ascii")),
    attack("encode of a lone surrogate", call(ENCODE, "\ud800", "utf-8")),
    attack("encode with an error handler", call(ENCODE, "\u0100", "latin1", "ignore")),
    attack("encode with a codec that is no text", call(ENCODE, "x", 1)),
)  # fmt: skip

_ARGUMENTS = (
    attack("Size of a string", torchs("Size", "abc")),
    attack("Size of a number", torchs("Size", 7)),
    attack("Size of a list, which nobody writes", torchs("Size", [NUMEL])),
    attack("Size of [2^70]", torchs("Size", [2**70])),
    attack("Size of (2^70,)", torchs("Size", (2**70,))),
    attack("Size of a float", torchs("Size", (1.5,))),
    attack("Size of a tensor", torchs("Size", tensor())),
    attack("Size of Sizes", torchs("Size", (torchs("Size", (1,)),))),
    attack("device with index 10^9", torchs("device", "cuda", 10**9)),
    attack("device with index 128", torchs("device", "cuda", 128)),
    attack("device with index -1", torchs("device", "cuda", -1)),
    attack("device whose name has an index beyond 64 bits", torchs("device", "cuda:99999999999999999999")),
    attack("device of two indices", torchs("device", "cuda:1", 1)),
    attack("device unknown", torchs("device", "nonsense")),
    attack("device empty", torchs("device", "")),
    attack("device a number", torchs("device", 0)),
    attack("device not UTF-8", torchs("device", Code(b"U\x04cpu\xff"))),
    attack("device with a lone surrogate", torchs("device", "cpu\ud800")),
    attack("device with NUL", torchs("device", "cpu\0")),
    attack("device of 70 000 characters", torchs("device", "x" * 70_000)),
    attack("complex of strings", builtin("complex", "1", "2")),
    attack("complex of a string", builtin("complex", "1")),
    attack("set of a number", builtin("set", 7)),
    attack("set of a string", builtin("set", "abc")),
    attack("set of a tensor", builtin("set", tensor())),
    attack("OrderedDict of triples", call(name("collections", "OrderedDict"), [(1, 2, 3)])),
    attack("OrderedDict of a number", call(name("collections", "OrderedDict"), 7)),
    attack("OrderedDict of two lists", call(name("collections", "OrderedDict"), [], [])),
    attack("Counter of a list", call(name("collections", "Counter"), [1])),
    attack("Counter of a number", call(name("collections", "Counter"), 7)),
    attack("bytearray of text alone", builtin("bytearray", "abc")),
    attack("bytearray of a list", builtin("bytearray", [1, 2])),
    attack("bytearray of three arguments", builtin("bytearray", "a", "latin-1", "ignore")),
    attack("arguments that are a list", Code(name("collections", "OrderedDict") + EMPTY_LIST + REDUCE)),
    attack("arguments that are None", Code(name("collections", "OrderedDict") + b"N" + REDUCE)),
    refused("call of a dtype", torchs("float32")),
    refused("call of a tensor", call(tensor(), 1)),
    refused("call of a dict", call(Code(b"}"), 1)),
    refused("call of text", call(Code(b"X\1\0\0\0x"), 1)),
    refused("call of what a call made", call(call(name("collections", "OrderedDict")))),
    attack("rebuild of nothing", call(name("torch._utils", "_rebuild_tensor_v2"))),
)  # fmt: skip

_VALUES = (
    equal("bytes as protocol 2 writes them", call(ENCODE, "a\xff", "latin1"), b"a\xff"),
    equal("no bytes as protocol 2 writes them", builtin("bytes", module="__builtin__"), b""),
    equal("bytearray as protocol 2 writes it", builtin("bytearray", "a\xff", "latin-1"), bytearray(b"a\xff")),
    equal("bytearray of bytes", builtin("bytearray", b"ab"), bytearray(b"ab")),
    equal("set under Python 2's name", builtin("set", [1, 2], module="__builtin__"), {1, 2}),
    equal("complex", builtin("complex", 1.0, 2.0), 1 + 2j),
    equal("OrderedDict of pairs", call(name("collections", "OrderedDict"), [("a", 1)]), OrderedDict(a=1)),
    equal("Size", torchs("Size", (2, 3)), torch.Size([2, 3])),
    equal("device", torchs("device", "cuda", 1), torch.device("cuda", 1)),
    equal("dtype", name("torch", "float32"), torch.float32),
    equal("dtype by STACK_GLOBAL", stack_name("torch", "int64"), torch.int64),
)

CALLS = Family("Calls of what a file may have", (*_ALLOCATING, *_CODECS, *_ARGUMENTS, *_VALUES))
