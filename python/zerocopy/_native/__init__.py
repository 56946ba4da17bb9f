"""The native extension: the only package that imports it, after torch and with a bridge to the running release."""

from __future__ import annotations

import torch as torch  # first: a bridge is linked to its libraries

from zerocopy import _C as _C
from zerocopy._native import bridges
from zerocopy.process import log_level

log_level.configure()
_info = bridges.choose()
_C.add_dtypes_of_release()


def bridge_info() -> bridges.BridgeInfo:
    """Return which bridge to torch is in use, and why the others are not."""
    return _info
