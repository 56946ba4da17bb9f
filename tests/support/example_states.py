"""State dicts that try every size of a read, and every slot of a ring."""

from __future__ import annotations

from typing import Any

import torch


def state_of_all_sizes() -> dict[str, Any]:
    """Return tensors that are larger than a request, smaller than a page, empty, tied, of every width."""
    base = torch.arange(2_500_000, dtype=torch.float32)
    small = {f"small.{i}": torch.full((i % 77,), i, dtype=torch.int16) for i in range(300)}
    return {
        "large": base,
        "tied": base[7:1000],
        "double": torch.arange(70_000, dtype=torch.float64),
        "complex": torch.arange(9.0).to(torch.complex64),
        "bytes": torch.arange(255, dtype=torch.uint8),
        **small,
        "last": torch.arange(1_100_000, dtype=torch.int64),
    }


def large_state() -> dict[str, torch.Tensor]:
    """Return 30 MB: more chunks than a ring of three slots has."""
    return {f"layer.{i}": torch.arange(i, i + 377_003, dtype=torch.float32) for i in range(20)}
