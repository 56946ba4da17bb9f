"""Describes an object as lines of text that can be compared across processes: values, identity, shared memory.

``describe(value)`` returns pairs of a path within the object and a text. Two objects that cannot be told apart have the
same lines. Besides types and values the lines say which objects are one object, which tensors have one storage, and
which storages change when one byte of another storage is written.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import enum
import functools
import hashlib
import re
import types
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from equality import untyped

Lines = list[tuple[str, str]]

_STRIDED_PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
_TORCH_ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_MAX_TEXT = 300


def digest(data: Any) -> str:
    """Return a short hash of bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def without_addresses(text: str) -> str:
    """Return a text in which no address differs from process to process."""
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


class Region(NamedTuple):
    """Memory of a storage or an array, named by the first path that leads to it."""

    path: str
    address: int
    size: int

    def bytes(self) -> Any:
        """Return the memory as a NumPy array of bytes, which can be written."""
        return numpy.ctypeslib.as_array((ctypes.c_ubyte * self.size).from_address(self.address))


def describe(value: Any) -> Lines:
    """Return the lines that describe an object. The object is the same afterwards."""
    return Description(value).lines


class Description:
    """Walks through an object once.

    Attributes
    ----------
    lines : list of tuple of str
        Paths and texts.
    regions : list of Region
        The memory that can be written.
    """

    def __init__(self, value: Any) -> None:
        self.lines: Lines = []
        self.regions: list[Region] = []
        self._seen: dict[int, str] = {}
        self._storages: dict[int, str] = {}
        self._hooks: dict[int, int] = {}
        self._kept: list[Any] = []  # an address names an object only as long as that lives
        with torch.no_grad():
            self._value(value, "result")
            self._shared_memory()

    def scribble(self) -> None:
        """Invert all memory: no other process may notice."""
        for region in self.regions:
            memory = region.bytes()
            numpy.invert(memory, out=memory)

    def _add(self, path: str, text: str) -> None:
        self.lines.append(
            (path, text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… {digest(text.encode())}")
        )

    def _value(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in _ATOMS or isinstance(value, _TORCH_ATOMS):
            self._add(path, f"{kind.__name__} {value!r}")
        elif isinstance(value, type):
            self._add(path, f"class {value.__module__}.{value.__qualname__}")
        elif isinstance(value, types.ModuleType):
            self._add(path, f"module {value.__name__}")
        elif isinstance(value, enum.Enum):
            self._add(path, f"{kind.__name__}.{value.name}")
        elif isinstance(value, tuple):
            self._add(path, f"{_name(kind)} of {len(value)}")
            self._items(value, path)
            self._attributes(value, path)
        elif kind is frozenset:
            self._add(path, f"frozenset of {len(value)}")
            self._items(sorted(value, key=repr), path)
        elif isinstance(value, weakref.ref):
            self._add(path, "weak reference")
            self._value(value(), f"{path}()")
        elif isinstance(value, types.MethodType):
            self._add(path, f"method {value.__func__.__qualname__}")
            self._value(value.__self__, f"{path}.__self__")
        elif isinstance(value, _FUNCTIONS):
            self._add(path, f"builtin {value.__qualname__}")
        elif id(value) in self._seen:
            self._add(path, f"the same object as {self._seen[id(value)]}")
        else:
            self._seen[id(value)] = path
            self._kept.append(value)
            self._object(value, path)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, torch.jit.ScriptModule):
            self._script_module(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, numpy.ndarray):
            self._array(value, path)
        elif isinstance(value, torch.storage.TypedStorage):
            self._add(path, f"TypedStorage {value.dtype}")
            self._storage(value.untyped() if hasattr(value, "untyped") else value._storage, path)
        elif isinstance(value, torch.UntypedStorage):
            self._add(path, "UntypedStorage")
            self._storage(value, path)
        elif isinstance(value, torch.Generator):
            self._add(path, f"Generator {value.device} {digest(value.get_state().numpy().tobytes())}")
        elif isinstance(value, memoryview):
            self._add(
                path, f"memoryview {value.format} {value.shape} {value.readonly} {digest(value.tobytes())}"
            )
        elif isinstance(value, (bytearray, bytes)):
            self._add(path, f"{_name(kind)} of {len(value)}: {digest(value)}")
        elif isinstance(value, functools.partial):
            self._add(path, _name(kind))
            self._value((value.func, value.args, value.keywords), f"{path}.partial")
            self._attributes(value, path)
        elif isinstance(value, list):
            self._add(path, f"{_name(kind)} of {len(value)}")
            self._items(value, path)
            self._attributes(value, path)
        elif isinstance(value, (set, frozenset)):
            self._add(path, f"{_name(kind)} of {len(value)}")
            self._items(sorted(value, key=repr), path)
            self._attributes(value, path)
        elif isinstance(value, Mapping) and not isinstance(value, types.MappingProxyType):
            self._mapping(value, path)
        elif isinstance(value, Path):
            self._add(path, repr(value))
        elif isinstance(value, BaseException):
            self._add(path, f"{_name(kind)}: {without_addresses(str(value))}")
            self._value(value.args, f"{path}.args")
            self._attributes(value, path)
        else:
            self._other(value, path)

    def _other(self, value: Any, path: str) -> None:
        """Describe an object by its attributes, or by what pickle would write of it."""
        self._add(path, _name(type(value)))
        if isinstance(value, torch.optim.Optimizer):  # its own __getstate__ leaves all else out
            self._value((value.state, value.param_groups), f"{path}, state")
            return
        kind = type(value)
        if isinstance(value, torch.utils.hooks.RemovableHandle):
            self._attributes(value, path)
            return
        if hasattr(value, "__dict__") and kind.__reduce__ is object.__reduce__:
            # A class that says itself what its state is may leave out what it can make again.
            state = None
            if kind.__getstate__ is not object.__getstate__:
                with contextlib.suppress(Exception):  # it has none
                    state = value.__getstate__()
            if state is None:
                self._attributes(value, path)
            else:
                self._value(state, f"{path}, state")
            return
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:  # pickle refuses the object
            self._add(f"{path}, shown", without_addresses(repr(value)))
            self._attributes(value, path)
            return
        if isinstance(reduced, str):
            self._add(f"{path}, name", reduced)
            return
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self._value((function, arguments, state), f"{path}, reduced")
        self._items(list(items or ()), path)
        self._items(list(pairs or ()), f"{path}, pairs")

    def _items(self, items: Any, path: str) -> None:
        for i, item in enumerate(items):
            self._value(item, f"{path}[{i}]")

    def _mapping(self, value: Any, path: str) -> None:
        # Keys of hooks are numbers that each process gives out for itself.
        are_hooks = "hook" in path.rpartition(".")[2]
        keys = list(value)
        shown = [self._hook_number(key) if are_hooks and type(key) is int else key for key in keys]
        simple = [repr(key) if type(key) in _ATOMS else f"<key {i}>" for i, key in enumerate(shown)]
        self._add(path, f"{_name(type(value))} of {len(keys)}")
        self._add(f"{path}, keys", ", ".join(simple))
        for key, name in zip(keys, simple, strict=True):
            if name.startswith("<"):
                self._value(key, f"{path}{name}")
            self._value(value[key], f"{path}[{name}]")
        if hasattr(value, "default_factory"):
            self._value(value.default_factory, f"{path}.default_factory")
        self._attributes(value, path)

    def _hook_number(self, key: int) -> str:
        return f"hook {self._hooks.setdefault(key, len(self._hooks))}"

    def _attributes(self, value: Any, path: str) -> None:
        """Describe attributes, in the order of their names: no program can rely on another order."""
        found = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    found.setdefault(name, getattr(value, name))
        is_handle = isinstance(value, torch.utils.hooks.RemovableHandle)
        for name in sorted(found, key=str):
            if is_handle and name == "id":
                self._add(f"{path}.id", self._hook_number(found[name]))
            else:
                self._value(found[name], f"{path}.{name}")

    def _function(self, value: Any, path: str) -> None:
        self._add(path, f"function {value.__module__}.{value.__qualname__}")
        if "<" in value.__qualname__:  # nested, or a lambda
            self._add(f"{path}, code", digest(value.__code__.co_code))
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            self._value((value.__defaults__, cells), f"{path}, closure")
        self._attributes(value, path)

    def _script_module(self, module: Any, path: str) -> None:
        """Describe what TorchScript has: the Python attributes are made anew at each access."""
        self._add(path, f"ScriptModule {module.original_name} {module.training}")
        self._add(f"{path}.code", module.code if hasattr(module, "forward") else "")
        for name, tensor in module.state_dict(keep_vars=True).items():
            self._tensor(tensor, f"{path}.{name}", "tensor of a script")

    # ------------------------------------------------------------------------------------- tensors

    def _tensor(self, tensor: torch.Tensor, path: str, name: str | None = None) -> None:
        name = name or _name(type(tensor))
        if torch.nn.parameter.is_lazy(tensor):
            self._add(path, f"{name} {tensor.dtype} {tensor.requires_grad}")
            return
        is_nested = getattr(tensor, "is_nested", False)
        shape = "nested" if is_nested else tuple(tensor.shape)
        self._add(path, f"{name} {tensor.dtype} {shape} {tensor.layout} {tensor.device}")
        flags = [
            flag
            for flag in ("requires_grad", "is_leaf", "retains_grad", "is_quantized", "is_sparse", "is_nested")
            if getattr(tensor, flag, False)
        ]
        flags += [flag for flag in ("is_inference", "is_conj", "is_neg") if getattr(tensor, flag)()]
        self._add(f"{path}, flags", ", ".join(flags))
        self._add(f"{path}, grad_fn", "None" if tensor.grad_fn is None else type(tensor.grad_fn).__name__)
        self._gradient(tensor, path)
        if tensor._backward_hooks:  # some functions of torch leave an empty dictionary there
            self._value(tensor._backward_hooks, f"{path}._backward_hooks")
        has_names = not is_nested and any(getattr(tensor, "names", ()))  # later releases have none
        if has_names:
            self._add(f"{path}, names", repr(tensor.names))
        with torch._C.DisableTorchFunction():
            content = tensor.detach()
            self._content(content.rename(None) if has_names else content, path)
        if hasattr(type(tensor), "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            self._value(context, f"{path}, context")
            for part in names:
                self._value(getattr(tensor, part), f"{path}.{part}")
        else:
            self._attributes(tensor, path)

    def _gradient(self, tensor: torch.Tensor, path: str) -> None:
        if tensor.is_leaf or getattr(tensor, "retains_grad", False):
            if tensor.grad is not None:
                self._value(tensor.grad, f"{path}.grad")
        else:
            self._add(f"{path}.grad", "of no leaf")

    def _content(self, tensor: torch.Tensor, path: str) -> None:
        if getattr(tensor, "is_nested", False):
            self._items(tensor.unbind(), path)
        elif tensor.layout is torch.sparse_coo:
            self._add(f"{path}, coalesced", str(tensor.is_coalesced()))
            self._value(tensor._indices(), f"{path}._indices()")
            self._value(tensor._values(), f"{path}._values()")
        elif tensor.layout in _STRIDED_PARTS:
            for part in _STRIDED_PARTS[tensor.layout]:
                self._value(getattr(tensor, part)(), f"{path}.{part}()")
        elif tensor.layout is not torch.strided:
            self._add(f"{path}, values", digest(tensor.to_dense().numpy().tobytes()))
        else:
            self._add(f"{path}, geometry", f"stride {tensor.stride()} offset {tensor.storage_offset()}")
            is_wrapper = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
            if not (tensor.is_meta or is_wrapper or tensor.device.type != "cpu"):
                self._strided(tensor, path)

    def _strided(self, tensor: torch.Tensor, path: str) -> None:
        self._storage(untyped(tensor), path)
        if tensor.is_quantized:
            self._add(f"{path}, quantizer", _quantizer(tensor))
            tensor = tensor.int_repr()
        plain = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = plain.clone().view(torch.uint8).numpy() if plain.numel() else b""
        shown = plain[:3].tolist() if plain.dtype in _SHOWN else ""
        self._add(f"{path}, values", f"{digest(data)} {shown}")

    def _storage(self, storage: torch.UntypedStorage, path: str) -> None:
        size = storage.nbytes()
        if size == 0:  # no write can tell two empty storages apart
            self._add(f"{path}, storage", "empty")
            return
        first = self._storages.setdefault(storage._cdata, path)
        if first != path:
            self._add(f"{path}, storage", f"that of {first}")
            return
        self._kept.append(storage)
        region = Region(path, storage.data_ptr(), size)
        self._add(f"{path}, storage", f"of its own, {size} bytes, {digest(region.bytes())}")
        self.regions.append(region)

    def _array(self, array: Any, path: str) -> None:
        flags = (
            f"writeable {array.flags.writeable}, C {array.flags.c_contiguous}, F {array.flags.f_contiguous}"
        )
        strides = array.strides if array.size else ""
        self._add(path, f"{_name(type(array))} {array.dtype} {array.shape} {strides} {flags}")
        if array.dtype.hasobject:
            self._items(array.ravel().tolist(), path)
        else:
            self._add(f"{path}, values", digest(array.tobytes()))
            if array.flags.writeable and array.nbytes:
                low, high = _bounds(array)
                self.regions.append(Region(path, low, high - low))
        self._attributes(array, path)

    # ------------------------------------------------------------------------------------- shared memory

    def _shared_memory(self) -> None:
        """Describe which regions share memory, by their addresses and by what a write to each region changes."""
        regions = sorted(self.regions, key=lambda region: region.address)
        found: dict[str, list[str]] = {}
        for i, one in enumerate(regions):
            for other in regions[i + 1 :]:
                if other.address >= one.address + one.size:
                    break
                first, second = sorted((one, other), key=self.regions.index)
                found.setdefault(first.path, []).append(
                    f"{second.path} at {second.address - first.address:+d}"
                )
        for path, others in sorted(found.items()):
            self._add(f"memory of {path}", "overlaps " + ", ".join(sorted(others)))
        for path, others in changed_by_writes(self.regions).items():
            self._add(f"write to {path}", "changes " + ", ".join(others))


def changed_by_writes(regions: list[Region]) -> dict[str, list[str]]:
    """Return for each region the other regions that a write to it changes, where there are any.

    All regions are filled with marks of their own at once; only those that lose their marks are looked at in pairs.
    """
    saved = [region.bytes().copy() for region in regions]
    try:
        suspects: set[int] = set()
        for mark in (lambda i: i % 251, lambda i: i // 251 % 251):
            for i, region in enumerate(regions):
                region.bytes().fill(mark(i))
            suspects |= {i for i, region in enumerate(regions) if (region.bytes() != mark(i)).any()}
        lost = sorted(suspects)
        return {} if not lost else _pairs(regions, lost)
    finally:
        for region, content in zip(regions, saved, strict=True):
            region.bytes()[:] = content


def _pairs(regions: list[Region], lost: list[int]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for region in regions:
        region.bytes().fill(0)
    for i in lost:
        region = regions[i]
        region.bytes().fill(1)
        for j, other in enumerate(regions):
            if i != j and other.bytes().any():
                found.setdefault(region.path, set()).add(other.path)
                found.setdefault(other.path, set()).add(region.path)
        region.bytes().fill(0)
    return {path: sorted(others) for path, others in sorted(found.items())}


# Values of these types are shown; of others only a hash is, since not all can be listed.
_SHOWN = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16}
_SHOWN |= {torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _quantizer(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()} {tensor.q_zero_point()}"
    scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{tensor.qscheme()} {scales.tolist()} {points.tolist()} {tensor.q_per_channel_axis()}"


def _bounds(array: Any) -> tuple[int, int]:
    """Return the addresses between which the elements of an array lie."""
    low = high = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize
