"""Checkpoints for jobs of many ranks: each rank reads, and writes, only its own bytes of plain files.

:class:`CheckpointReader`, :class:`LoadPlanner` and :class:`CheckpointWriter` plug into
``torch.distributed.checkpoint`` (PyTorch 2.3 and later); :func:`load_shard` and :func:`shard_plan` need nothing of it.
Importing this module imports none of it either.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zerocopy._torch import distributed as _distributed
from zerocopy.distributed.planning import ShardPlan, shard_plan
from zerocopy.distributed.shards import load_shard
from zerocopy.errors import UnsupportedError

if TYPE_CHECKING:
    from zerocopy.distributed.planner import LoadPlanner
    from zerocopy.distributed.reader import CheckpointReader
    from zerocopy.distributed.writer import CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter", "LoadPlanner", "ShardPlan", "load_shard", "shard_plan"]

_OF_DCP = {"CheckpointReader": "reader", "CheckpointWriter": "writer", "LoadPlanner": "planner"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _OF_DCP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _distributed.checkpoint_module() is None:
        found: Any = _unsupported(name)
    else:
        found = getattr(importlib.import_module(f"{__name__}.{_OF_DCP[name]}"), name)
    globals()[name] = found
    return found


def _unsupported(name: str) -> Any:
    """Return a function in place of a class that this release cannot have: a call raises UnsupportedError."""
    reason = (
        f"zerocopy.distributed.{name} needs torch.distributed.checkpoint.save of a path: "
        f"{_distributed.FIRST_RELEASE} or later"
    )

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(reason)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise UnsupportedError: {reason}."
    return refuse
