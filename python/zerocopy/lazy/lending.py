"""Finds the argument that a function only reads. A lazy tensor there need not keep its data after the call."""

from __future__ import annotations

from typing import Any

import torch

_COPIES = frozenset([torch.Tensor.copy_, torch.ops.aten.copy_, torch.ops.aten.copy_.default])
_MODULE_LOAD = getattr(torch.Tensor, "module_load", None)  # 2.3 and later


def lent_argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument that the function only reads, and does not keep; None if there is none.

    It is the source of a copy. The destination is changed, so a lazy tensor there keeps its data.
    """
    if func in _COPIES:
        copied = args[1] if len(args) > 1 else None
    elif func is _MODULE_LOAD and func is not None:
        copied = None if kwargs.get("assign") or args[2:3] == (True,) else args[1]
    else:
        return None
    if copied is None or copied is args[0]:
        return None
    is_for_autograd = torch.is_grad_enabled() and getattr(copied, "requires_grad", False)
    return None if is_for_autograd else copied
