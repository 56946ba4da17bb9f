"""Skips tests of ``torch.distributed.checkpoint`` that this release cannot pass."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest

from zerocopy._torch import distributed


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


@functools.cache
def tells_of_metadata() -> bool:
    """Return False for PyTorch 2.9, whose load loses what a reader raises in ``read_metadata``."""
    checkpoint = require_dcp()
    try:
        checkpoint.load({}, storage_reader=checkpoint.FileSystemReader("/nonexistent"))
    except BaseException as error:
        return "No such file" in str(error)
    return True


def require_reports_of_metadata() -> None:
    """Skip a test that needs errors of ``read_metadata``."""
    require_reports()
    if not tells_of_metadata():
        pytest.skip("DCP of this release loses errors of read_metadata")


def require_dcp() -> Any:
    """Return `torch.distributed.checkpoint`; skip the test if zerocopy has no classes for this release's."""
    found = distributed.checkpoint_module()
    if found is None:
        pytest.skip(f"{distributed.FIRST_RELEASE} or later", allow_module_level=True)
    return found
