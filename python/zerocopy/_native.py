"""The native extension: the only module that imports it, after torch, to whose libraries it is linked."""

from __future__ import annotations

from pathlib import Path

import torch

_FILE = Path(__file__).with_name("built_for")  # setup.py writes it beside the extension
_COMMAND = "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps ."


def _require_built_for(running: str) -> None:
    """Raise ImportError where another release of torch is running: the layout of its classes may differ.

    Builds of one release (``+cpu``, ``+cu126``) are alike.
    """
    try:
        built = _FILE.read_text().strip()
    except FileNotFoundError:  # put together by hand
        return
    if built.partition("+")[0] != running.partition("+")[0]:
        raise ImportError(
            f"zerocopy was built for PyTorch {built}, and this is PyTorch {running}. "
            f"Build it for this one, in the folder of its source: {_COMMAND}"
        )


_require_built_for(torch.__version__)

from zerocopy import _C as _C  # noqa: E402  (after the check, whose error says more than the dynamic linker's)
