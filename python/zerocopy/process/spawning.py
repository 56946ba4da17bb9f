"""Keeps what a process that is being started will open by its descriptor."""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen
from typing import TypeVar

_T = TypeVar("_T")


def kept(obj: _T) -> _T:
    """Return an object that is pickled; keep it as long as the process that it is pickled for.

    The program holds the tensors that it sends, and so the shared memory whose descriptors go to the process. It does
    not hold the tensor that a placeholder stands for.
    """
    process = get_spawning_popen()
    if process is not None:
        process.__dict__.setdefault("_kept_by_zerocopy", []).append(obj)
    return obj
