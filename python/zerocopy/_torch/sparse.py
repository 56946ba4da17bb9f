"""Sparse tensors: their parts, and the checks that torch makes of those that it loads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from zerocopy._torch.private_names import private, private_or_none


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Check the sparse tensors that torch queues in a block. If the block fails, take them out of the queue."""
    of_thread = private_or_none("torch._utils._get_sparse_tensors_to_validate")  # 2.15 and later
    noted = of_thread() if of_thread else private_or_none("torch._utils._sparse_tensors_to_validate")
    if noted is None:  # a later release keeps the queue elsewhere, and may still check it
        yield
        (private_or_none("torch._utils._validate_loaded_sparse_tensors") or (lambda: None))()
        return
    before = len(noted)
    try:
        yield
    except BaseException:
        del noted[before:]
        raise
    if len(noted) > before:
        private("torch._utils._validate_loaded_sparse_tensors")()


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of a sparse tensor, coalesced or not."""
    return private("torch.Tensor._indices")(tensor), private("torch.Tensor._values")(tensor)


def as_coalesced(tensor: torch.Tensor, flag: bool) -> torch.Tensor:
    """Set whether a sparse tensor counts as coalesced, and return it."""
    made: torch.Tensor = private("torch.Tensor._coalesced_")(tensor, flag)
    return made


def checks(are_made: bool) -> dict[str, Any]:
    """Return the argument that says whether a new sparse tensor is checked. Releases warn where it is missing."""
    # 1.13 has no such argument, and always checks.
    return {"check_invariants": are_made} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}
