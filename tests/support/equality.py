"""``assert_same(a, b)``: two loaded objects cannot be told apart, down to bits, ties and attributes."""

from __future__ import annotations

import copyreg
import io
import struct
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch

_STRIDED_PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def untyped(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return a tensor's storage on every release (1.13 has no ``Tensor.untyped_storage``)."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def storage_bytes(storage: torch.UntypedStorage) -> bytes:
    """Return all bytes of a CPU storage, whatever part of it a tensor shows."""
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def storages_of(value: Any) -> list[torch.UntypedStorage]:
    """Return every storage with bytes that ``assert_same`` would compare, once."""
    comparison = _Comparison(True)
    comparison.value(value, value, "root")
    found = {s._cdata: s for s in comparison.alive if isinstance(s, torch.UntypedStorage)}
    return list(found.values())


def assert_same(a: Any, b: Any, *, attributes: bool = True) -> None:
    """Assert that `a` and `b` have the same structure, types, bits, tensor geometry, flags and ties.

    With ``attributes=False`` Python attributes of tensors are not compared: some releases do not save them.
    """
    _Comparison(attributes).value(a, b, "root")


_GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType)
_ATOMS = (int, str, bytes, type(None), torch.dtype, torch.device, torch.layout, *_GLOBALS)


def _is_plain(value: Any) -> bool:
    """Return whether the attributes of an object are all there is to it."""
    return hasattr(value, "__dict__") and type(value).__reduce__ is object.__reduce__


def _pickled(value: Any) -> Any:
    """Return what pickle would write of an object, as plain values."""
    hasattr(value, "__dict__")  # makes it: exceptions are pickled with it if they have one
    registered = copyreg.dispatch_table.get(type(value))
    reduced = registered(value) if registered else value.__reduce_ex__(4)
    if isinstance(reduced, str):  # a global
        return reduced
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return function, arguments, state, list(items or ()), list(pairs or ())


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a shape and no memory of its own."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


class _Comparison:
    def __init__(self, attributes: bool) -> None:
        self.attributes = attributes
        self.partners: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self.alive: list[Any] = []  # an id says nothing once its object is gone

    def paired(self, a: Any, b: Any, where: str) -> bool:
        """Note that `a` corresponds to `b`; say whether that was known. Neither may have another partner."""
        forth, back = self.partners
        known = a in forth or b in back
        assert forth.setdefault(a, b) == b and back.setdefault(b, a) == a, f"{where}: tied differently"
        return known

    def value(self, a: Any, b: Any, where: str) -> None:
        assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
        if isinstance(a, float):
            assert struct.pack("d", a) == struct.pack("d", b), f"{where}: {a!r} and {b!r}"
        elif isinstance(a, complex):
            self.value((a.real, a.imag), (b.real, b.imag), where)
        elif isinstance(a, tuple):
            self.items(a, b, where)
            self.attributes_of(a, b, where)
        elif isinstance(a, types.MethodType):
            self.value((a.__func__, a.__self__), (b.__func__, b.__self__), where)
        elif isinstance(a, weakref.ref):
            self.value(a(), b(), where)
        elif isinstance(a, (set, frozenset)):
            self.items(sorted(a, key=repr), sorted(b, key=repr), where)
        elif isinstance(a, _ATOMS):
            assert a == b, f"{where}: {a!r} and {b!r}"
            if not isinstance(a, _GLOBALS):
                self.attributes_of(a, b, where)
        else:
            self.alive += (a, b)
            if not self.paired(("object", id(a)), ("object", id(b)), where):
                self.object(a, b, where)

    def object(self, a: Any, b: Any, where: str) -> None:
        if isinstance(a, torch.Tensor):
            self.tensor(a, b, where)
            if not self.attributes:
                return
        elif isinstance(a, bytearray):
            assert a == b, where
        elif isinstance(a, list):
            self.items(a, b, where)
        elif isinstance(a, Mapping):
            self.items(list(a), list(b), f"{where}, keys")
            for key, other in zip(a, b, strict=True):
                self.value(a[key], b[other], f"{where}[{key!r}]")
        elif isinstance(a, torch.storage.TypedStorage):
            assert a.dtype == b.dtype, where
            self.storage(a.untyped(), b.untyped(), where)
            return
        elif isinstance(a, torch.Generator):
            assert a.device == b.device and torch.equal(a.get_state(), b.get_state()), where
        elif not _is_plain(a):
            self.as_pickled(a, b, where)
        self.attributes_of(a, b, where)

    def as_pickled(self, a: Any, b: Any, where: str) -> None:
        try:
            parts = _pickled(a), _pickled(b)
        except (TypeError, RuntimeError):  # no pickle holds these: process groups, parts of programs
            assert a == b, f"{where}: {a!r} and {b!r}"
        else:
            self.value(*parts, f"{where}, as pickled")

    def attributes_of(self, a: Any, b: Any, where: str) -> None:
        if hasattr(a, "__tensor_flatten__"):  # says itself what it consists of
            (names, context), (other_names, other_context) = a.__tensor_flatten__(), b.__tensor_flatten__()
            self.value((names, context), (other_names, other_context), where)
            self.items([getattr(a, name) for name in names], [getattr(b, name) for name in names], where)
        elif hasattr(a, "__dict__"):
            self.value(dict(vars(a)), dict(vars(b)), f"{where}, attributes")

    def items(self, a: Any, b: Any, where: str) -> None:
        assert len(a) == len(b), f"{where}: {len(a)} and {len(b)} items"
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            self.value(left, right, f"{where}[{i}]")

    def tensor(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        if torch.nn.parameter.is_lazy(a):  # has no shape yet
            self.value((a.dtype, a.device, a.requires_grad), (b.dtype, b.device, b.requires_grad), where)
            return
        if getattr(a, "is_nested", False) and b.is_nested:
            assert (a.requires_grad, a.layout) == (b.requires_grad, b.layout), where
            self.items(list(a.detach().unbind()), list(b.detach().unbind()), where)
            if a.layout is torch.strided:
                self.items(_nested_shape(a), _nested_shape(b), where)
            return
        for name in ("dtype", "layout", "device", "shape", "requires_grad", "is_leaf", "is_quantized"):
            found = getattr(a, name), getattr(b, name)
            assert found[0] == found[1], f"{where}: {name} {found}"
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()), f"{where}: conj or neg"
        a, b = a.detach(), b.detach()
        if a.layout is torch.sparse_coo:
            assert a.is_coalesced() == b.is_coalesced(), where
            self.items((a._indices(), a._values()), (b._indices(), b._values()), where)
        elif a.layout in _STRIDED_PARTS:
            for part in _STRIDED_PARTS[a.layout]:
                self.tensor(getattr(a, part)(), getattr(b, part)(), f"{where}.{part}()")
        else:
            geometry = (a.stride(), a.storage_offset()), (b.stride(), b.storage_offset())
            assert geometry[0] == geometry[1], f"{where}: {geometry}"
            if not a.is_meta and not _is_wrapper(a):
                self.storage(untyped(a), untyped(b), where)
        if a.is_quantized:
            self.value(_quantizer(a), _quantizer(b), f"{where}, quantizer")

    def storage(self, a: torch.UntypedStorage, b: torch.UntypedStorage, where: str) -> None:
        assert a.nbytes() == b.nbytes(), f"{where}: storages of {a.nbytes()} and {b.nbytes()} bytes"
        if a.nbytes() == 0:  # some releases load one shared empty storage as several
            return
        self.alive += (a, b)
        if not self.paired(("storage", a._cdata), ("storage", b._cdata), where):
            assert storage_bytes(a) == storage_bytes(b), f"{where}: bytes differ"


def _nested_shape(tensor: torch.Tensor) -> list[torch.Tensor]:
    offsets = tensor._nested_tensor_storage_offsets()
    return [
        tensor._nested_tensor_size(),
        tensor._nested_tensor_strides(),
        *(offsets,) * torch.is_tensor(offsets),
    ]


def _quantizer(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return str(tensor.qscheme()), tensor.q_scale(), tensor.q_zero_point()
    return (
        str(tensor.qscheme()),
        tensor.q_per_channel_scales(),
        tensor.q_per_channel_zero_points(),
        tensor.q_per_channel_axis(),
    )


def pickles_bits() -> bool:
    """Return whether this release saves conjugate and negative bits. Those before 2.0 save the values without them."""
    file = io.BytesIO()
    torch.save(torch.tensor([1j]).conj(), file)
    file.seek(0)
    return bool(torch.load(file) == torch.tensor([-1j]))


def expected_of_save(saved: Any, loaded: Any) -> Any:
    """Return what a file of zerocopy.save holds of an object. It is what stock torch gives, but for forgotten bits."""
    if not isinstance(saved, torch.Tensor) or not (saved.is_conj() or saved.is_neg()) or pickles_bits():
        return loaded
    plain = saved.detach().resolve_conj().resolve_neg()
    return torch.nn.Parameter(plain) if isinstance(saved, torch.nn.Parameter) else plain
