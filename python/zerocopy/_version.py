"""The release of PyTorch that the native part was compiled for."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("built_for")  # setup.py writes it beside the native part
_COMMAND = "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps ."


def require_built_for(running: str) -> None:
    """Raise ImportError where another release of torch is running: its classes may be laid out otherwise.

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
