"""Writes pickles at random: programs over the binary opcodes, right for the most part and a little wrong now and then.

A program is a list of instructions, not bytes, so that mutations hit what the reader sees as one thing. All chance
comes from one ``Random``: Hypothesis gives one that shrinks (:func:`programs`), ``random.Random`` one that is fast.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import assembler as a
from hypothesis import strategies as st

#: Class of a storage: bytes an element, whether tensors over it may require grad.
STORAGES = {
    "FloatStorage": (4, True), "DoubleStorage": (8, True), "HalfStorage": (2, True), "BFloat16Storage": (2, True),
    "LongStorage": (8, False), "IntStorage": (4, False), "CharStorage": (1, False), "ByteStorage": (1, False),
    "BoolStorage": (1, False), "ComplexFloatStorage": (8, True), "QUInt8Storage": (1, False),
}  # fmt: skip
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "complex64", "bfloat16", "bool", "uint8")
SCHEMES = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric")
TEXTS = ("", "a", "weight", "_metadata", "conj", "neg", "é", "\ud800", "0", "latin1", "cpu", "a" * 300)
HOLDERS = ("a", "tag", "data", "grad", "__class__")  # names of attributes
INTEGERS = (0, 1, 2, 3, 7, 255, 256, 65535, 65536, -1, -2, 2**31 - 1, -(2**31))
WIDE = (0, 1, -1, 127, 128, -128, -129, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 2**200, -(2**521))
REALS = (0.0, -0.0, 1.5, 1e300, float("inf"), float("nan"))
#: Replacements for an opcode: all opcodes, and some other bytes.
OPCODES = bytes(sorted({*b"(.012FIJKLMNPQRSTUVXabcd}eghijl]opqrst)uGBC", *range(0x80, 0x99), 0x00, 0xFF}))


@dataclass(frozen=True)
class Program:
    """A pickle, and the contents of the storages that it names."""

    instructions: tuple[bytes, ...]
    storages: dict[str, bytes] = field(default_factory=dict)

    @property
    def pickle(self) -> bytes:
        """Return the bytes of the pickle."""
        return b"".join(self.instructions)

    def file(self) -> bytes:
        """Return a checkpoint that holds it."""
        return a.checkpoint(self.pickle, self.storages)


def programs(plain: bool = False) -> st.SearchStrategy[Program]:
    """Return programs; plain ones have data opcodes alone, so that Python's pickle can read them too."""
    return st.randoms(use_true_random=False).map(lambda random: program(random, plain))


def program(random: Random, plain: bool = False) -> Program:
    """Write one program."""
    writer = _Writer(random, plain)
    writer.op(b"\x80" + bytes([random.choice((2, 2, 2, 3, 4, 5))]))
    writer.value(random.choice((1, 2, 3, 4)))
    writer.op(a.STOP)
    instructions = _framed(random, writer.out)
    for _ in range(random.choice((0, 0, 0, 0, 0, 0, 1, 1, 2))):
        instructions = mutated(random, instructions)
    if random.randrange(30) == 0:
        instructions = [*instructions, b"rest"]
    return Program(tuple(instructions), writer.contents)


def _framed(random: Random, instructions: list[bytes]) -> list[bytes]:
    if random.randrange(12):
        return instructions
    head, *body = instructions
    length = sum(map(len, body)) + random.choice((0, 0, 0, 1, -1))
    return [head, b"\x95" + struct.pack("<Q", max(length, 0)), *body]


def mutated(random: Random, instructions: list[bytes]) -> list[bytes]:
    """Return a program with one instruction swapped, deleted, doubled, moved, or with another argument."""
    changed = list(instructions)
    at = random.randrange(len(changed))
    old = changed[at]
    match random.choice(("opcode", "argument", "argument", "delete", "double", "move", "cut")):
        case "opcode":
            changed[at] = bytes([random.choice(OPCODES)]) + old[1:]
        case "argument" if len(old) > 1:
            which = random.randrange(1, len(old))
            other = (old[which] + random.choice((1, 255, 0x80))) % 256
            changed[at] = old[:which] + bytes([other]) + old[which + 1 :]
        case "delete":
            del changed[at]
        case "double":
            changed.insert(at, old)
        case "move":
            changed.insert(random.randrange(len(changed)), changed.pop(at))
        case "cut":
            changed[at] = old[: random.randrange(len(old) + 1)]
    return changed or [a.STOP]


class _Writer:
    def __init__(self, random: Random, plain: bool) -> None:
        self.random = random
        self.plain = plain
        self.out: list[bytes] = []
        self.memo: list[int] = []
        self.storages: list[tuple[str, str, int]] = []
        self.contents: dict[str, bytes] = {}
        self.left = 40  # values
        self.modern = plain or random.randrange(3) == 0  # opcodes that torch's own reader lacks

    def op(self, *instructions: bytes) -> None:
        self.out += instructions

    def rarely(self, times: int = 15) -> bool:
        return self.random.randrange(times) == 0

    # -------------------------------------------------------------------------------- values

    def value(self, depth: int) -> None:
        """Write any value, and often remember it."""
        self.left -= 1
        if self.memo and self.rarely(10):
            return self.recall(self.random.choice(self.memo))
        makers: list[Callable[[int], None]] = [self.atom]
        if depth > 0 and self.left > 0:
            makers += [self.container, self.container]
            makers += [] if self.plain else [self.call, self.tensor, self.tensor]
        self.random.choice(makers)(depth)
        if self.rarely(3):
            self.remember()
        return None

    def remember(self, reuse: bool = True) -> int:
        index = self.random.choice((len(self.memo), *self.memo)) if reuse else len(self.memo)
        form = self.random.randrange(8)
        if form == 0 and index == len(self.memo) and self.modern:
            self.op(a.MEMOIZE)
        elif form < 3:
            self.op(b"r" + struct.pack("<I", index))
        else:
            self.op(b"q" + bytes([index]))
        if index not in self.memo:
            self.memo.append(index)
        return index

    def recall(self, index: int) -> None:
        index += self.rarely(60)
        self.op(b"h" + bytes([index]) if self.random.randrange(3) else b"j" + struct.pack("<I", index))

    def atom(self, depth: int = 0) -> None:
        makers = [self.number, self.number, self.text, self.text, self.constant]
        makers += [self.byte_string, self.real] if self.modern or self.rarely(4) else []
        self.random.choice(makers)()

    def constant(self) -> None:
        self.op(self.random.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}")))

    def real(self) -> None:
        self.op(a.code(self.random.choice(REALS)))

    def number(self) -> None:
        form = self.random.randrange(8)
        if form < 5:
            self.integer(self.random.choice(INTEGERS))
        else:
            value = self.random.choice(WIDE)
            digits = value.to_bytes(
                value.bit_length() // 8 + self.random.choice((1, 1, 2)), "little", signed=True
            )
            self.op(a.long4(digits) if form == 7 and self.modern else b"\x8a" + bytes([len(digits)]) + digits)

    def integer(self, value: int) -> None:
        """Write an integer in the form that pickle takes, or a longer one."""
        forms = [b"K" + bytes([value])] if 0 <= value < 2**8 else []
        forms += [b"M" + struct.pack("<H", value)] if 0 <= value < 2**16 else []
        forms += [b"J" + struct.pack("<i", value)] if -(2**31) <= value < 2**31 else [a.code(value)]
        self.op(forms[0] if self.random.randrange(4) else self.random.choice(forms))

    def text(self, choices: tuple[str, ...] = TEXTS) -> None:
        utf8 = self.random.choice(choices).encode("utf-8", "surrogatepass")
        if self.rarely(100):
            utf8 = b"\xff"
        modern = ((b"\x8c", "<B"), (b"\x8d", "<Q"), (b"U", "<B")) if self.modern else ()
        self.blob(utf8, (b"X", "<I"), (b"X", "<I"), (b"X", "<I"), *modern)

    def byte_string(self) -> None:
        data = self.random.choice((b"", b"\0", b"abc", b"\xff" * 3, b"x" * 256))
        forms = [(b"B", "<I"), (b"C", "<B"), (b"\x8e", "<Q"), (b"\x96", "<Q"), (b"U", "<B"), (b"T", "<i")]
        self.blob(data, *(forms if self.modern else forms[4:5]))

    def blob(self, data: bytes, *forms: tuple[bytes, str]) -> None:
        opcode, length = self.random.choice(forms)
        if length == "<B" and len(data) > 255:
            data = data[:255]
        self.op(opcode + struct.pack(length, len(data)) + data)

    # ---------------------------------------------------------------------------- containers

    def container(self, depth: int) -> None:
        makers = [self.new_tuple, self.new_list, self.new_dict, self.new_dict]
        makers += [self.new_set, self.new_frozenset] if self.modern else []
        self.random.choice(makers)(depth)

    def some(self) -> range:
        return range(self.random.choice((0, 1, 1, 2, 2, 3, 4)))

    def new_tuple(self, depth: int) -> None:
        count = len(self.some())
        if 1 <= count <= 3 and self.random.randrange(4):
            for _ in range(count):
                self.value(depth - 1)
            self.op(bytes([0x84 + count]))
        else:
            self.marked(count, lambda: self.value(depth - 1), a.TUPLE)

    def marked(self, count: int, item: Callable[[], None], end: bytes) -> None:
        self.op(a.MARK)
        for _ in range(count):
            item()
        self.op(end)

    def new_list(self, depth: int) -> None:
        self.op(a.EMPTY_LIST)
        itself = self.remember() if self.rarely(6) else None
        for _ in self.some():
            self.value(depth - 1)
            self.op(a.APPEND)
        if self.random.randrange(2):
            self.marked(len(self.some()), lambda: self.value(depth - 1), a.APPENDS)
        if itself is not None and self.rarely(4):
            self.recall(itself)
            self.op(a.APPEND)

    def new_dict(self, depth: int, key: Callable[[], None] | None = None) -> None:
        self.op(a.EMPTY_DICT)
        if self.rarely(5):
            self.remember()
        self.items(depth, key or self.key)

    def items(self, depth: int, key: Callable[[], None]) -> None:
        for _ in self.some():
            key()
            self.value(depth - 1)
            self.op(a.SETITEM)
        if self.random.randrange(2):
            self.op(a.MARK)
            for _ in self.some():
                key()
                self.value(depth - 1)
            self.op(a.SETITEMS)

    def key(self) -> None:
        form = self.random.randrange(12)
        if form == 0:
            self.value(1)
        elif form == 1:
            self.key_tuple()
        elif form < 4:
            self.atom()
        else:
            self.text()

    def key_tuple(self) -> None:
        self.text()
        self.number()
        self.op(b"\x86")

    def new_set(self, depth: int) -> None:
        self.op(a.EMPTY_SET)
        self.marked(len(self.some()), self.key, a.ADDITEMS)

    def new_frozenset(self, depth: int) -> None:
        self.marked(len(self.some()), self.key, b"\x91")

    # -------------------------------------------------------------------- globals and calls

    def name(self, module: str, name: str) -> None:
        if self.modern and self.rarely(6):
            for part in (module, name):
                self.op(a.code(part))
            self.op(a.STACK_GLOBAL)
        else:
            self.op(a.name(module, name))

    def arguments(self, *right: Callable[[], None]) -> None:
        """Write a tuple of arguments, one of them wrong, too many or missing now and then."""
        makers = list(right)
        if self.rarely(25) and makers:
            makers[self.random.randrange(len(makers))] = lambda: self.value(1)
        if self.rarely(50):
            makers.append(lambda: self.value(1))
        if self.rarely(50) and makers:
            makers.pop()
        self.op(a.MARK)
        for maker in makers:
            maker()
        self.op(a.TUPLE)

    def called(self, module: str, name: str, *arguments: Callable[[], None]) -> None:
        self.name(module, name)
        self.arguments(*arguments)
        self.op(a.NEWOBJ if self.rarely(60) else a.REDUCE)

    def call(self, depth: int) -> None:
        builtins = self.random.choice(("builtins", "__builtin__"))
        match self.random.randrange(16):
            case 0 | 1 | 2 | 3:
                self.ordered_dict(depth)
            case 4:
                self.called("collections", "Counter", lambda: self.new_dict(1))
                if self.random.randrange(2):
                    self.items(1, self.text)
            case 5:
                self.called(builtins, "set", lambda: self.listed(self.key))
            case 6:
                self.called("torch", "Size", lambda: self.shape([self.random.choice((0, 1, 2, 5))]))
            case 7:
                index = partial(self.integer, self.random.choice((0, 1, 127, 128)))
                kind = partial(self.text, ("cpu", "cuda", "meta", "mps", "?"))
                self.called("torch", "device", kind, *([index] * self.random.randrange(2)))
            case 8:
                self.called(builtins, "complex", self.real, self.real)
            case 9:
                encoded = (self.text, self.codec)
                forms = ((), (self.byte_string,), encoded, (self.number,))
                self.called(builtins, "bytearray", *self.random.choice(forms))
            case 10:
                self.called("_codecs", "encode", self.text, self.codec)
            case 11:
                self.called(builtins, "bytes", *((self.atom,) * self.rarely(4)))
            case 12:
                self.name("torch", self.random.choice((*DTYPES, *SCHEMES, "FloatStorage", "Tensor", "Size")))
            case 13:
                self.called("torch", self.random.choice(("Tensor", "FloatTensor")), lambda: self.integer(3))
            case 14:
                self.called("torch.serialization", "_get_layout", self.layout)
            case 15:
                self.name(*self.random.choice((("os", "getcwd"), ("torch", "_utils._rebuild_tensor_v2"))))

    def codec(self) -> None:
        self.text(("latin1", "latin1", "latin1", "utf-8", "utf8", "ascii", "rot13"))

    def listed(self, item: Callable[[], None]) -> None:
        self.op(a.EMPTY_LIST)
        self.marked(len(self.some()), item, a.APPENDS)

    def layout(self) -> None:
        self.text(("torch.sparse_coo", "torch.sparse_csr", "torch.strided", "torch"))

    def ordered_dict(self, depth: int) -> None:
        def pair() -> None:
            self.key()
            self.value(depth - 1)
            self.op(b"\x86")

        self.called("collections", "OrderedDict", *((lambda: self.listed(pair),) * self.rarely(4)))
        self.items(depth, self.key)
        if self.rarely(4):
            self.new_dict(1, lambda: self.text(("_metadata", "_metadata", "items", "__class__", "x")))
            self.op(b"b")

    # ------------------------------------------------------------------------------- tensors

    def shape(self, numbers: list[int]) -> None:
        """Write a tuple of integers, one of them a little wrong now and then."""
        numbers = list(numbers)
        if numbers and self.rarely(25):
            at = self.random.randrange(len(numbers))
            numbers[at] = self.random.choice((numbers[at] + 1, numbers[at] - 1, 2**40, 2**62, 2**63))
        self.op(a.MARK)
        for number in numbers:
            self.integer(number)
        self.op(b"l" if self.rarely(200) else a.TUPLE)

    def storage(self, kinds: tuple[str, ...] = tuple(STORAGES), elsewhere: str = "cuda:0") -> tuple[str, int]:
        """Write a storage, new or existing; return its class and its number of elements."""
        known = [known for known in self.storages if known[1] in kinds]
        if not known or self.random.randrange(3) == 0:
            key = str(len(self.storages))
            kind, numel = self.random.choice(kinds), self.random.choice((0, 1, 4, 6, 9, 12))
            self.storages.append((key, kind, numel))
            known = self.storages
            values = (i % 2 if kind == "BoolStorage" else i % 3 for i in range(numel))
            data = b"".join(value.to_bytes(STORAGES[kind][0], "little") for value in values)
            self.contents[key] = (
                data if self.random.randrange(30) else self.random.choice((data[:-1], data + b"?"))
            )
        key, kind, numel = self.random.choice(known[-3:])
        location = self.random.choice((elsewhere, "?")) if self.rarely(40) else "cpu"
        said = numel + self.random.choice((1, -1, 100)) if self.rarely(40) else numel
        self.arguments(
            partial(self.op, a.code("module" if self.rarely(200) else "storage")),
            partial(self.name, "torch", self.random.choice(list(STORAGES)) if self.rarely(50) else kind),
            partial(self.op, a.code(key)),
            partial(self.op, a.code(location)),
            partial(self.integer, said),
        )
        self.op(a.BINPERSID)
        return kind, numel

    def geometry(self, numel: int) -> tuple[int, list[int], list[int]]:
        """Return offset, size and stride that suit a storage."""
        size = [self.random.choice((0, 1, 2, 3)) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3)))]
        stride = [self.random.choice((0, 1, 1, 2, 3)) for _ in size]
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else -1
        if last >= numel:
            size, stride, last = [numel], [1], numel - 1
        return self.random.randrange(max(numel - last, 1)), size, stride

    def flag(self, value: bool = False) -> None:
        self.op(a.code(value or self.rarely(10)))

    def hooks(self) -> None:
        match self.random.randrange(30):
            case 0:
                self.new_dict(1)
            case 1:
                self.op(b"N")
            case 2:
                self.ordered_dict(1)
            case _:
                self.op(a.ordered_dict())

    def metadata(self) -> None:
        if self.rarely(3):
            self.new_dict(0, partial(self.text, ("conj", "neg")))
        else:
            self.op(a.code({self.random.choice(("conj", "neg")): self.rarely(2)}))

    def dense(self) -> tuple[Callable[[], None], ...]:
        """Return what writes storage, offset, size and stride."""
        found: list[Any] = []

        def storage() -> None:
            kinds = tuple(kind for kind in STORAGES if kind[0] != "Q" or self.rarely(30))
            _, numel = self.storage(kinds, "meta")
            found[:] = self.geometry(numel)

        def number(i: int) -> Any:
            return found[i] if found else (0, [], [])[i]

        def offset() -> None:
            self.integer(number(0) + (self.random.choice((1, -1, 2**62)) if self.rarely(40) else 0))

        return storage, offset, lambda: self.shape(number(1)), lambda: self.shape(number(2))

    def tensor(self, depth: int = 0) -> None:
        match self.random.randrange(16):
            case 0:
                self.called("torch._utils", "_rebuild_tensor", *self.dense())
            case 1:
                self.called(
                    "torch._utils", "_rebuild_tensor_v3", *self.dense(), self.flag, self.hooks, self.dtype
                )
            case 2 | 3 | 4:
                flags = (self.tensor, partial(self.flag, True), self.hooks)
                if self.rarely(3):
                    self.called("torch._utils", "_rebuild_parameter_with_state", *flags, self.state)
                else:
                    self.called("torch._utils", "_rebuild_parameter", *flags)
            case 5:
                self.storage()
            case 6:
                self.sparse()
            case 7:
                self.quantized()
            case 8:
                self.typed()
            case 9:
                shape = [self.random.choice((0, 1, 2, 3)) for _ in range(2)]
                sizes = (partial(self.shape, shape), partial(self.shape, [shape[1], 1]))
                self.called("torch._utils", "_rebuild_meta_tensor_no_storage", self.dtype, *sizes, self.flag)
            case _:
                more = (self.metadata,) * self.rarely(6)
                self.called("torch._utils", "_rebuild_tensor_v2", *self.dense(), self.flag, self.hooks, *more)
        if self.rarely(80):
            self.new_dict(1)
            self.op(b"b")

    def dtype(self) -> None:
        self.name("torch", self.random.choice(DTYPES))

    def state(self) -> None:
        self.new_dict(1, partial(self.text, HOLDERS))

    def vector(self, kind: str, rows: int = 0) -> Callable[[], None]:
        """Return what writes a tensor of one dimension, or of two."""

        def write() -> None:
            self.name("torch._utils", "_rebuild_tensor_v2")
            self.op(a.MARK)
            numel = self.storage((kind,))[1]
            columns = min(numel // max(rows, 1), 3)
            self.integer(0)
            self.shape([rows, columns] if rows else [columns])
            self.shape([columns, 1] if rows else [1])
            self.op(b"\x89", a.ordered_dict(), a.TUPLE, a.REDUCE)

        return write

    def sparse(self) -> None:
        def parts() -> None:
            size = partial(self.shape, [3] * self.random.choice((1, 1, 2)))
            coalesced = [self.flag] * self.rarely(3)
            self.arguments(self.vector("LongStorage", 1), self.vector("FloatStorage"), size, *coalesced)

        layout = partial(self.called, "torch.serialization", "_get_layout", self.layout)
        self.called("torch._utils", "_rebuild_sparse_tensor", layout, parts)

    def quantized(self) -> None:
        def quantizer() -> None:
            scheme = partial(self.name, "torch", self.random.choice((*SCHEMES[:1] * 5, *SCHEMES)))
            scale = partial(self.op, a.code(self.random.choice((0.5, 0.5, 0.5, 0.0, float("nan")))))
            self.arguments(scheme, scale, partial(self.integer, self.random.choice((0, 3, 255, 256))))

        found: list[int] = []
        parts = (
            lambda: found.append(self.storage(("QUInt8Storage",))[1]),
            partial(self.integer, 0),
            lambda: self.shape(found[:1]),
            lambda: self.shape([1] * len(found[:1])),
        )
        self.called("torch._utils", "_rebuild_qtensor", *parts, quantizer, self.flag, self.hooks)

    def typed(self) -> None:
        """Write a tensor with attributes."""
        function = partial(self.name, "torch._utils", "_rebuild_tensor_v2")
        parts = partial(self.arguments, *self.dense(), self.flag, self.hooks)
        cls = partial(self.name, "torch", "Tensor")
        self.called("torch._tensor", "_rebuild_from_type_v2", function, cls, parts, self.state)
