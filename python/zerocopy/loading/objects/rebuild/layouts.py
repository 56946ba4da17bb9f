"""Sparse, quantized and nested tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch

from zerocopy import _torch
from zerocopy._torch import safe_globals, sparse
from zerocopy._torch.private_names import private
from zerocopy.loading.objects.rebuild.registry import (
    QUANTIZED,
    SAFE,
    are_integers,
    checked_version_of,
    require,
    require_inside,
    within_storage,
)


@checked_version_of("torch.serialization._get_layout")
def get_layout(name: str) -> torch.layout:
    """Return the layout called ``"torch.sparse_coo"`` and the like."""
    layout = vars(torch).get(name.removeprefix("torch."))  # getattr would import some submodules
    require(isinstance(layout, torch.layout), f"layout {name[:64]!r}")
    return cast(torch.layout, layout)


@checked_version_of("torch._utils._rebuild_sparse_tensor")
def rebuild_sparse_tensor(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """Return a sparse tensor with checked indices: later, indices out of range would write out of bounds."""
    # On the meta device there are no indices to check, wherever the file's own are.
    is_meta = torch.empty(0).is_meta or any(isinstance(part, torch.Tensor) and part.is_meta for part in data)
    checks = sparse.checks(not is_meta)
    if layout is not torch.sparse_coo:
        compressed, plain, values, size = data
        _require_shape(size)
        within_storage(compressed, plain, values)
        return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, **checks)
    indices, values, size, *flag = data
    _require_shape(size)
    require([type(coalesced) for coalesced in flag] in ([], [bool]), "whether a sparse tensor is coalesced")
    within_storage(indices, values)
    tensor = torch.sparse_coo_tensor(indices, values, size, **checks)
    if flag == [True] and not is_meta:
        found, _ = sparse.parts(tensor.coalesce())
        require(torch.equal(found, indices), "a sparse tensor that claims to be coalesced")
    # Without the flag, torch takes a tensor with fewer than two elements for coalesced.
    return sparse.as_coalesced(tensor, flag[0]) if flag else tensor


def _require_shape(size: Any) -> None:
    """Require what torch asks of a sparse tensor's shape only if it has elements."""
    shaped = isinstance(size, (tuple, list)) and all(type(n) is int and n >= 0 for n in size)
    require(shaped and math.prod(n or 1 for n in size) < 2**63, "a sparse tensor's shape")


# torch 1.13 wrote this name; later releases lack it.
SAFE["torch._utils._rebuild_sparse_csr_tensor"] = rebuild_sparse_tensor


@checked_version_of("torch._utils._rebuild_qtensor")
def rebuild_qtensor(
    storage: Any,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    quantizer: tuple[Any, ...],
    requires_grad: bool,
    backward_hooks: Any,
) -> torch.Tensor:
    """Return a quantized tensor whose scales and zero points suit it."""
    require(not backward_hooks, "backward hooks")
    lowest, highest, bytes_each, packed = QUANTIZED[storage.dtype]
    require(type(offset) is int and are_integers(size) and are_integers(stride), "a quantized tensor's shape")
    elements = _torch.untyped(storage).nbytes() // bytes_each * packed
    require_inside(elements, offset, size, stride)
    require(math.prod(size) <= elements, "a tensor that repeats its storage")
    scheme = quantizer[0]
    if scheme is torch.per_tensor_affine:
        _, scale, zero_point = quantizer
        scales, zero_points = [scale], [zero_point]
    else:
        require(
            scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams), "a quantizer scheme"
        )
        _, scales, zero_points, axis = quantizer
        scales, zero_points = _numbers(scales), _numbers(zero_points)
        require(isinstance(axis, int) and 0 <= axis < len(size), "a quantizer axis")
        require(len(scales) == len(zero_points) == size[axis], "scales for another number of channels")
    require(all(math.isfinite(s) and s > 0 for s in scales), "a quantizer scale that is not positive")
    if scheme is not torch.per_channel_affine_float_qparams:  # the zero points of that scheme are floats
        require(all(lowest <= z <= highest for z in zero_points), "a zero point out of range")
    return private("torch._utils._rebuild_qtensor")(
        storage, offset, size, stride, quantizer, requires_grad, {}
    )


def _numbers(values: Any) -> list[float]:
    """Return the numbers of a tensor of one dimension, or of a list. A list of lists may be endless."""
    if isinstance(values, torch.Tensor):
        within_storage(values)
        require(values.dim() == 1, "scales of another shape")
        return cast(list[float], values.tolist())
    require(
        isinstance(values, (list, tuple)) and {*map(type, values)} <= {int, float}, "scales of another kind"
    )
    return list(values)


@checked_version_of("torch._utils._rebuild_nested_tensor")
def rebuild_nested_tensor(
    buffer: torch.Tensor, sizes: torch.Tensor, strides: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Return a nested tensor whose parts lie inside its buffer."""
    # torch reads the memory of these three tensors without regard to their strides.
    plain = [sizes, strides, *(offsets,) * isinstance(offsets, torch.Tensor)]
    within_storage(buffer, *plain)
    require(
        all(part.dtype is torch.int64 and part.is_contiguous() for part in plain), "a nested tensor's shapes"
    )
    starts = offsets.tolist() if isinstance(offsets, torch.Tensor) else list(offsets)
    require(
        len(starts) == len(sizes) == len(strides) and sizes.shape == strides.shape, "a nested tensor's shapes"
    )
    for size, stride, start in zip(sizes.tolist(), strides.tolist(), starts, strict=True):
        require_inside(buffer.numel(), start, size, stride)
    return private("torch._utils._rebuild_nested_tensor")(buffer, sizes, strides, offsets)


_JAGGED = {"values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"}


@checked_version_of("torch.nested._internal.nested_tensor._rebuild_njt")
def rebuild_jagged_tensor(arguments: dict[str, Any]) -> torch.Tensor:
    """Return a jagged nested tensor whose rows lie inside its values."""
    require(isinstance(arguments, dict) and arguments.keys() <= _JAGGED, "a jagged tensor's arguments")
    values, offsets = arguments["values"], arguments["offsets"]
    lengths = arguments.get("lengths")
    plain = [offsets, *(lengths,) * (lengths is not None)]
    within_storage(values, *plain)
    require(
        all(part.dtype in (torch.int32, torch.int64) and part.dim() == 1 for part in plain),
        "a jagged tensor's rows",
    )
    ragged = arguments.get("_ragged_idx", 1)
    require(type(ragged) is int and 1 <= ragged <= values.dim(), "a jagged tensor's ragged dimension")
    count = offsets.numel() - 1
    require(count >= 0 and (lengths is None or lengths.numel() == count), "a jagged tensor's rows")
    if not any(part.is_meta for part in plain):  # meta tensors have no values that could be checked
        starts, room = offsets.tolist(), values.shape[ragged - 1]
        ends = starts[1:] if lengths is None else map(operator.add, starts, lengths.tolist())
        require(
            all(0 <= start <= end <= room for start, end in zip(starts, ends, strict=False)),
            "a jagged tensor's row outside of its values",
        )
    cache = arguments.get("_metadata_cache") or {}
    require(
        isinstance(cache, dict) and cache.keys() <= {"min_seqlen", "max_seqlen"}, "a jagged tensor's lengths"
    )
    for bound in cache.values():
        is_empty = isinstance(bound, torch.Tensor) and bound.numel() == 0  # its shape has the number
        require(type(bound) is int or is_empty, "a jagged tensor's lengths")
    require(type(arguments.get("requires_grad", False)) is bool, "whether a jagged tensor requires grad")
    return safe_globals.jagged_tensor(arguments)
