"""Hypothesis strategies: state dicts as people nest them, over storages shared in all ways."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from conftest import outcome, saved_bytes, stock_load
from hypothesis import strategies as st


def _survives(tensor: torch.Tensor) -> bool:
    """Return whether stock torch of this release writes and reads a tensor."""
    return outcome(lambda: stock_load(io.BytesIO(saved_bytes(tensor))))[0] == "value"


def _all_dtypes() -> list[torch.dtype]:
    """Return the dtypes that stock torch.save of this release writes, without the quantized ones."""
    found = {value: name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    found = {dtype: name for dtype, name in found.items() if not name.startswith(("qint", "quint"))}
    tensors = (outcome(lambda d=d: torch.zeros(16, dtype=torch.uint8).view(d)) for d in found)
    return [t.dtype for kind, t, *_ in tensors if kind == "value" and _survives(t)]


def keeps_conj() -> bool:
    """Return whether torch.save of this release writes that a tensor is a conjugate view."""
    view = torch.ones(2, dtype=torch.complex64).conj()
    return torch.load(io.BytesIO(saved_bytes(view))).is_conj()


DTYPES = _all_dtypes()
#: Stock torch cannot read back a float8 tensor that requires grad.
DIFFERENTIABLE = [
    dtype
    for dtype in DTYPES
    if (dtype.is_floating_point or dtype.is_complex)
    and _survives(torch.zeros(16, dtype=torch.uint8).view(dtype).requires_grad_())
]
_FLAGS = keeps_conj()


def filled(dtype: torch.dtype, numel: int, seed: int) -> torch.Tensor:
    """Return a vector of random bits: NaNs, infinities and denormals come by themselves."""
    generator = torch.Generator().manual_seed(seed)
    size = numel * torch.empty(0, dtype=dtype).element_size()
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (size,), dtype=torch.uint8, generator=generator).view(dtype)


@st.composite
def views(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """Return a view of a vector: any strides, overlapping or not, 0-dim and empty ones among them."""
    sizes = draw(st.lists(st.integers(0, 3), max_size=4))
    strides = [draw(st.integers(0, 5)) for _ in sizes]
    span = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    if 0 not in sizes and span > base.numel():
        sizes, strides, span = [base.numel()], [1], base.numel()
    last = base.numel() - (0 if 0 in sizes else span)
    view = base.as_strided(sizes, strides, draw(st.integers(0, max(last, 0))))
    if _FLAGS and view.dtype.is_complex and draw(st.booleans()):
        view = view.conj()
    if _FLAGS and view.dtype in (torch.float32, torch.complex64) and draw(st.booleans()):
        view = torch._neg_view(view)
    return draw(_as_leaf(view))


@st.composite
def _as_leaf(draw: st.DrawFn, view: torch.Tensor) -> torch.Tensor:
    differentiable = view.dtype in DIFFERENTIABLE
    kind = draw(st.sampled_from(("tensor", "tensor", "parameter", "attributes")))
    if kind == "tensor" or not differentiable or view.is_conj() or view.is_neg():
        return view.requires_grad_(differentiable and draw(st.booleans()))
    parameter = torch.nn.Parameter(view, draw(st.booleans()))
    if kind == "attributes":
        parameter.tag, parameter.sizes = draw(st.text(max_size=3)), [1, 2]
    return parameter


@st.composite
def tensor_pools(draw: st.DrawFn) -> list[torch.Tensor]:
    """Return tensors over a few storages, several on one among them."""
    pool: list[torch.Tensor] = []
    for _ in range(draw(st.integers(1, 3))):
        base = filled(draw(st.sampled_from(DTYPES)), draw(st.integers(0, 40)), draw(st.integers(0, 99)))
        pool += draw(st.lists(views(base), min_size=1, max_size=3))
    return pool


def _plain() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.booleans() | st.none()
    return numbers | st.text() | st.binary(min_size=1)


def _values() -> st.SearchStrategy[Any]:
    torch_values = (
        st.sampled_from(DTYPES)
        | st.lists(st.integers(0, 2**40), max_size=4).map(torch.Size)
        | st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")])
    )
    keys = (
        st.text(max_size=5)
        | st.integers()
        | st.binary(min_size=1, max_size=3)
        | st.tuples(st.integers(), st.text(max_size=2))
    )
    return (
        _plain()
        | torch_values
        | st.complex_numbers()
        | st.binary().map(bytearray)
        | st.sets(keys, max_size=4)
    )


def _with_metadata(items: dict[str, Any]) -> OrderedDict[str, Any]:
    made = OrderedDict(items)
    made._metadata = OrderedDict({"": {"version": 2}})
    return made


@dataclass(frozen=True)
class _Nth:
    """Stands for a tensor of the pool, drawn apart: strategies that hold tensors are slow to print."""

    index: int


_NAMES = st.text(max_size=8)
_NESTED = st.recursive(
    st.integers(0, 8).map(_Nth) | _values(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_NAMES, inner, max_size=4)
        | st.dictionaries(_NAMES, inner, max_size=4).map(OrderedDict)
        | st.dictionaries(_NAMES, inner, max_size=4).map(_with_metadata)
    ),
    max_leaves=12,
)


def _filled_in(value: Any, pool: list[torch.Tensor]) -> Any:
    if isinstance(value, _Nth):
        return pool[value.index % len(pool)]
    if type(value) in (list, tuple):
        return type(value)(_filled_in(item, pool) for item in value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _filled_in(value[key], pool)
    return value


@st.composite
def checkpoints(draw: st.DrawFn) -> dict[str, Any]:
    """Return a nested checkpoint in which tensors and containers occur more than once."""
    pool = draw(tensor_pools())
    once, again = (_filled_in(draw(_NESTED), pool) for _ in range(2))
    return {"state": once, "pool": pool, "tied": [once, again], 7: again, "spans": math.pi}
