"""Return whether ``torch.distributed.checkpoint`` can tell other ranks why a load or a save has failed."""

from __future__ import annotations

import functools
import pickle

import pytest


@functools.cache
def can_report() -> bool:
    """Return False for PyTorch before 2.7 under Python 3.13, whose tracebacks cannot be pickled."""
    api = pytest.importorskip("torch.distributed.checkpoint.api")
    try:
        raise ValueError
    except ValueError as error:
        wrapped = api._wrap_exception(error)
    try:
        pickle.dumps(wrapped)
    except TypeError:
        return False
    return True


def require_reports() -> None:
    """Skip a test that needs such errors."""
    if not can_report():
        pytest.skip("DCP of this release cannot report errors under this Python")
