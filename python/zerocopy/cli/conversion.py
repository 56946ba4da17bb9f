"""Compares the source and the target of a conversion, bit for bit, tensor by tensor."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerocopy.cli.comparison import Comparison
from zerocopy.cli.output import escaped, listed
from zerocopy.converting import shard_plan
from zerocopy.converting.elements import elements_of
from zerocopy.converting.sources import Sources


def difference(
    options: argparse.Namespace, dtype: torch.dtype | None, keep: Callable[[str], bool] | None
) -> str:
    """Return the first difference between the tensors of the sources and of the target, or an empty string."""
    target = Path(options.target)
    if options.max_shard_size is not None:
        target = shard_plan.layout_of(target, shard_plan.SUFFIXES).index_path
    with (
        Sources(options.sources, keep, options.strip_prefix, dtype=dtype, unknown=options.unknown) as wanted,
        Sources([target], unknown=options.unknown) as found,
    ):
        if unequal := sorted(wanted.tensors.keys() ^ found.tensors.keys()):
            return f"only one of the two has {listed(map(escaped, unequal))}"
        for name, tensor in wanted.tensors.items():
            if differs := _difference(tensor.read(), found.tensors[name].read()):
                return f"{escaped(name)} differs: {differs}"
    return ""


def _difference(wanted: torch.Tensor, found: torch.Tensor) -> str:
    if not (_is_dense(wanted) and _is_dense(found)):
        return Comparison().difference(wanted, found)
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        return f"{wanted.dtype} {tuple(wanted.shape)} and {found.dtype} {tuple(found.shape)}"
    if not wanted.numel():
        return ""
    wanted, found = _contiguous(wanted), _contiguous(found)  # kept alive while their bytes are compared
    return "" if torch.equal(_bytes_of(wanted), _bytes_of(found)) else "other bits"


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a tensor, because torch compares faster than Python."""
    return torch.frombuffer(elements_of(tensor), dtype=torch.uint8)


def _is_dense(tensor: Any) -> bool:
    special = tensor.is_quantized or tensor.is_meta or getattr(tensor, "is_nested", False)
    return tensor.layout is torch.strided and not special


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
