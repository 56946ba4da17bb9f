"""Writes the pickle of a flat dict of tensors without making tensors, so that many small ones take little memory."""

from __future__ import annotations

import itertools
import math
import pickle
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from zerocopy import _core
from zerocopy.converting.sources import Sources, SourceTensor, dtype_in_target
from zerocopy.loading.formats.safetensors import METADATA
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.archive import CheckpointPlan, PickleWithStorages
from zerocopy.saving.mapped_files import MappedFiles

if TYPE_CHECKING:
    import torch

_PROTOCOL = 2
_BEGIN = pickle.PROTO + bytes([_PROTOCOL])
_TUPLES = (pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
_PUT = pickle.BINPUT + b"\0"
#: The classes of storages, by torch's names of dtypes. Later dtypes have none: their tensors name the dtype.
_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip


class _Global(NamedTuple):
    """A function or class by its name."""

    module: str
    name: str


_ORDERED_DICT = _Global("collections", "OrderedDict")


class FlatPickle(PickleWithStorages):
    """An ``OrderedDict`` of tensors of ``.safetensors`` files by name, as ``torch.save`` would write it.

    Each tensor is contiguous and has a storage of its own: bytes of a file, or converted bytes. Tied names share one.
    """

    def __init__(self, sources: Sources, names: list[str], dtype: torch.dtype | None) -> None:
        self.sizes = []
        self._heap, self._sources = Heap(), sources
        self._tensors: list[SourceTensor] = []
        self._names: list[tuple[str, str]] = []  # one name of each storage's tensor, and its dtype
        memo = _Memo()
        counts = Counter(sources.tensors[name] for name in names)
        tied: dict[SourceTensor, bytes] = {}
        pieces = [_BEGIN, memo.shared(_ORDERED_DICT), pickle.EMPTY_TUPLE, pickle.REDUCE, pickle.MARK]
        for name in names:
            pieces.append(_opcodes(name))
            tensor = sources.tensors[name]
            if tensor in tied:
                pieces.append(tied[tensor])
                continue
            entry = tensor.entry()
            wanted = dtype_in_target(entry.dtype, dtype)
            if wanted not in _STORAGES:
                _require_dtype(wanted)
            size = math.prod(entry.shape) * _core.itemsize(wanted)
            pieces.append(_tensor(memo, wanted, entry.shape, entry.stride, str(len(self.sizes)), size))
            self.sizes.append(size)
            self._tensors.append(tensor)
            self._names.append((name, wanted))
            if counts[tensor] > 1:
                put, tied[tensor] = memo.next()
                pieces.append(put)
        pieces.append(pickle.SETITEMS)
        if sources.metadata:
            pieces += [_opcodes({METADATA: sources.metadata}), pickle.BUILD]
        self.pickle = b"".join([*pieces, pickle.STOP])

    @staticmethod
    def can_write(sources: Sources) -> bool:
        """Return whether all sources are tensors of ``.safetensors`` files."""
        tensors = set(sources.tensors.values())  # one may have a hundred thousand names
        return not sources.others and all(tensor.layer.container == "safetensors" for tensor in tensors)

    def storage(self, number: int) -> torch.UntypedStorage:
        """Make and return a storage."""
        from zerocopy import _torch

        self._heap.used(self.sizes[number])
        return _torch.untyped_of(self._tensors[number].read())

    def is_kept(self, number: int) -> bool:
        """Return False: :meth:`storage` makes a temporary storage."""
        return False

    def add(self, number: int, plan: CheckpointPlan, mapped: MappedFiles) -> None:
        """Add a storage to a plan: the bytes of the file, or the converted bytes."""
        extent = self._sources.extent_of(*self._names[number])
        if extent is None:
            super().add(number, plan, mapped)
        else:
            plan.part(str(number), self.sizes[number], extent, mapped)


class _Memo:
    """Objects that a pickle contains once, and then refers to by their memo numbers."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._gets: dict[Any, bytes] = {}

    def next(self) -> tuple[bytes, bytes]:
        """Return the opcodes that store the top of the stack in the memo, and those that load it again."""
        number = next(self._numbers)
        if number < 256:
            return pickle.BINPUT + bytes([number]), pickle.BINGET + bytes([number])
        packed = struct.pack("<I", number)
        return pickle.LONG_BINPUT + packed, pickle.LONG_BINGET + packed

    def shared(self, value: Any) -> bytes:
        """Return the opcodes of a value that the pickle contains once, and then refers to."""
        if (get := self._gets.get(value)) is not None:
            return get
        put, self._gets[value] = self.next()
        return _opcodes(value) + put


def _require_dtype(name: str) -> None:
    from zerocopy.loading.objects import builder

    builder.dtype(name)  # raises if this release does not have it


def _tensor(
    memo: _Memo, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], key: str, size: int
) -> bytes:
    """Return the opcodes of a tensor over a whole storage, given by its key, as torch pickles it."""
    shared = memo.shared
    if typed := _STORAGES.get(dtype):
        function, kind, numel = "_rebuild_tensor_v2", _Global("torch", typed), math.prod(shape)
    else:
        function, kind, numel = "_rebuild_tensor_v3", _Global("torch.storage", "UntypedStorage"), size
    return b"".join(
        [
            shared(_Global("torch._utils", function)), pickle.MARK,
            pickle.MARK, shared("storage"), shared(kind), _opcodes(key), shared("cpu"), _opcodes(numel),
            pickle.TUPLE, pickle.BINPERSID,
            _opcodes(0), _opcodes(shape), _opcodes(stride), _opcodes(False),
            shared(_ORDERED_DICT), pickle.EMPTY_TUPLE, pickle.REDUCE,  # of hooks: each tensor has its own
            b"" if typed else shared(_Global("torch", dtype)), pickle.TUPLE, pickle.REDUCE,
        ]
    )  # fmt: skip


def _opcodes(value: Any) -> bytes:
    """Return the opcodes that leave a value on the stack, and nothing in the memo."""
    if isinstance(value, _Global):
        return pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode()
    if isinstance(value, tuple):
        items, count = b"".join(map(_opcodes, value)), len(value)
        return items + _TUPLES[count] if count < len(_TUPLES) else pickle.MARK + items + pickle.TUPLE
    if isinstance(value, dict):
        items = b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items())
        return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
    code = pickle.dumps(value, _PROTOCOL)[len(_BEGIN) : -len(pickle.STOP)]
    return code if isinstance(value, int) else code.removesuffix(_PUT)
