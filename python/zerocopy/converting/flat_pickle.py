"""Writes the pickle of a flat dict of tensors without the tensors: a file of many small ones takes little memory so."""

from __future__ import annotations

import itertools
import math
import pickle
import struct
from collections import Counter, OrderedDict
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.converting.inputs import METADATA, Sources, SourceTensor
from zerocopy.lazy.conversion import cast_dtype
from zerocopy.loading.objects import builder
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.pickled_object import PickleWithStorages
from zerocopy.saving.pickler import PROTOCOL

_BEGIN = pickle.PROTO + bytes([PROTOCOL])
_TUPLES = (pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
_PUT = pickle.BINPUT + b"\0"


class FlatPickle(PickleWithStorages):
    """An ``OrderedDict`` of tensors of ``.safetensors`` files by name, as ``torch.save`` would write it.

    Each tensor is contiguous and has a storage of its own, in a file's mapping or of another dtype; tied names have
    one tensor.
    """

    def __init__(self, sources: Sources, names: list[str], dtype: torch.dtype | None) -> None:
        self.sizes = []
        self._heap = Heap()
        self._tensors: list[SourceTensor] = []
        memo = _Memo()
        templates: dict[str, _Template] = {}
        counts = Counter(sources.tensors[name] for name in names)
        tied: dict[SourceTensor, bytes] = {}
        pieces = [_BEGIN, memo.shared(OrderedDict), pickle.EMPTY_TUPLE, pickle.REDUCE, pickle.MARK]
        for name in names:
            pieces.append(_opcodes(name))
            tensor = sources.tensors[name]
            if tensor in tied:
                pieces.append(tied[tensor])
                continue
            entry = tensor.entry()
            template = templates.get(entry.dtype)
            if template is None:
                wanted = cast_dtype(builder.dtype(entry.dtype), dtype)
                template = templates[entry.dtype] = _Template(wanted, memo)
            pieces.append(template.tensor(entry, str(len(self.sizes))))
            self.sizes.append(math.prod(entry.shape) * template.element_size)
            self._tensors.append(tensor)
            if counts[tensor] > 1:
                put, tied[tensor] = memo.next()
                pieces.append(put)
        pieces.append(pickle.SETITEMS)
        if sources.metadata:
            pieces += [_opcodes({METADATA: sources.metadata}), pickle.BUILD]
        self.pickle = b"".join([*pieces, pickle.STOP])

    @staticmethod
    def can_write(sources: Sources) -> bool:
        """Return whether all sources are of that kind."""
        tensors = set(sources.tensors.values())  # one may have a hundred thousand names
        return not sources.others and all(tensor.layer.container == "safetensors" for tensor in tensors)

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return a storage, which is made now."""
        self._heap.used(self.sizes[number])
        return _torch.untyped_of(self._tensors[number].read())

    def is_kept(self, number: int) -> bool:
        """Return False: :meth:`storage` makes a temporary storage."""
        return False


class _Memo:
    """Objects that a pickle has once, and afterwards by their memo numbers."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._gets: dict[Any, bytes] = {}

    def next(self) -> tuple[bytes, bytes]:
        """Return the opcodes that keep the value on the stack, and those that bring it back."""
        number = next(self._numbers)
        if number < 256:
            return pickle.BINPUT + bytes([number]), pickle.BINGET + bytes([number])
        packed = struct.pack("<I", number)
        return pickle.LONG_BINPUT + packed, pickle.LONG_BINGET + packed

    def shared(self, value: Any) -> bytes:
        """Return the opcodes of a value that is the same wherever it occurs."""
        if (get := self._gets.get(value)) is not None:
            return get
        put, self._gets[value] = self.next()
        return _opcodes(value) + put


class _Template:
    """The opcodes by which this release of torch pickles dense tensors of one dtype, taken from one such tensor."""

    def __init__(self, dtype: torch.dtype, memo: _Memo) -> None:
        rebuild, (storage, _, _, _, *rest) = torch.empty(1, dtype=dtype, device="cpu").__reduce_ex__(PROTOCOL)
        described = _torch.pickled_storage(storage)
        assert described is not None, "the first argument of torch's rebuild functions"
        self._rebuild, self._rest, self._memo = rebuild, rest, memo
        self._storage_type, self._location = described.storage_type, described.location
        self._numel = described.numel  # of one element: storages without a type count bytes
        self.element_size = described.storage.nbytes()

    def tensor(self, entry: _C.TensorEntry, key: str) -> bytes:
        """Return the opcodes of a tensor over the storage of a key."""
        shared = self._memo.shared
        numel = math.prod(entry.shape) * self._numel
        return b"".join(
            [
                shared(self._rebuild), pickle.MARK,
                pickle.MARK, shared("storage"), shared(self._storage_type), _opcodes(key),
                shared(self._location), _opcodes(numel), pickle.TUPLE, pickle.BINPERSID,
                _opcodes(0), _opcodes(entry.shape), _opcodes(entry.stride),
                *[self._rest_of(value) for value in self._rest], pickle.TUPLE, pickle.REDUCE,
            ]
        )  # fmt: skip

    def _rest_of(self, value: Any) -> bytes:
        if isinstance(value, OrderedDict):  # of hooks: each tensor has its own
            return self._memo.shared(OrderedDict) + pickle.EMPTY_TUPLE + pickle.REDUCE
        return _opcodes(value) if isinstance(value, bool) else self._memo.shared(value)


def _opcodes(value: Any) -> bytes:
    """Return the opcodes that leave a value on the stack, and nothing in the memo."""
    if isinstance(value, tuple):
        items, count = b"".join(map(_opcodes, value)), len(value)
        return items + _TUPLES[count] if count < len(_TUPLES) else pickle.MARK + items + pickle.TUPLE
    if isinstance(value, dict):
        items = b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items())
        return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
    code = pickle.dumps(value, PROTOCOL)[len(_BEGIN) : -len(pickle.STOP)]
    return code if isinstance(value, int) else code.removesuffix(_PUT)
