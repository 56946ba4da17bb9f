"""Environment variables, and the release of torch that is installed."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys

_TRUE = frozenset({"1", "y", "yes", "true"})
_ON = _TRUE | {"on"}
_FALSE = frozenset({"0", "n", "no", "false", "off"})

MAX_THREADS = 1024

_VERSION = re.compile(r"""^__version__(?:\s*:\s*\w+)?\s*=\s*['"](.+?)['"]""", re.MULTILINE)


def is_true(variable: str) -> bool:
    """Return whether an environment variable says yes, as torch reads its own."""
    return os.environ.get(variable, "0").lower() in _TRUE


def is_disabled() -> bool:
    """Return whether zerocopy's patches are turned off."""
    return os.environ.get("ZEROCOPY_DISABLE", "").lower() in _ON


def shows_progress() -> bool:
    """Return whether commands show progress bars: by ``ZEROCOPY_PROGRESS``, and without it by ``TQDM_DISABLE``."""
    text = os.environ.get("ZEROCOPY_PROGRESS", "").lower()
    if text in _FALSE:
        return False
    return text in _ON or not is_true("TQDM_DISABLE")


def threads(default: int) -> int:
    """Return how many threads may read at once: ``ZEROCOPY_NUM_THREADS``, or a default."""
    text = os.environ.get("ZEROCOPY_NUM_THREADS")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise ValueError(f"ZEROCOPY_NUM_THREADS must be a number from 1 to {MAX_THREADS}, not {text!r}")
    return int(text)


@functools.cache
def torch_version() -> str:
    """Return torch's ``__version__`` without importing torch, which takes a second; "" where there is none."""
    from pathlib import Path  # only here: it takes milliseconds

    if "torch" in sys.modules:
        return str(sys.modules["torch"].__version__)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    found = _VERSION.search(
        Path(spec.origin).with_name("version.py").read_text(encoding="utf-8", errors="replace")
    )
    return found[1] if found else ""


def bridge() -> str:
    """Return ``ZEROCOPY_BRIDGE``: ``auto``, or ``portable`` for tensors without a compiled bridge to torch."""
    text = os.environ.get("ZEROCOPY_BRIDGE") or "auto"
    if text not in ("auto", "portable"):
        raise ValueError(f"ZEROCOPY_BRIDGE must be auto or portable, not {text!r}")
    return text
