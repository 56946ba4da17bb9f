"""``zerocopy build-bridge``: compile the part of zerocopy that depends on the release of PyTorch."""

from __future__ import annotations

import argparse
import logging

from zerocopy.cli import output, runner

DESCRIPTION = """
Compiles a bridge to the PyTorch of this Python, if the package has none for its release. This needs a C++ compiler and
PyTorch's headers, takes a minute, and downloads nothing. The bridge is stored in ~/.cache/zerocopy/bridges (or
XDG_CACHE_HOME), and only this PyTorch and this Python use it. Without a bridge zerocopy works too, but makes tensors
more slowly.
"""

EPILOG = f"""
exit codes:
  {runner.FINE}  the bridge is there
  {runner.TROUBLE}  trouble: no compiler, no headers, or the compiler failed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--force", action="store_true", help="compile it even if it is there")


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compile the bridge, and return the exit code."""
    logging.getLogger("zerocopy").setLevel(logging.ERROR)  # a warning would advise to run this command
    try:
        import torch

        from zerocopy import _native
        from zerocopy._native.compilation import compile_bridge
    except ImportError as error:
        output.print_error(f"{parser.prog}: install PyTorch first ({error})")
        return runner.TROUBLE
    in_use = _native.bridge_info()
    bridge = f"bridge to PyTorch {torch.__version__}"
    if in_use.path is not None and not options.force:
        output.say([f"{bridge}: there already, {in_use}"])
        return runner.FINE
    try:
        path = compile_bridge()
    except (RuntimeError, OSError) as error:  # UnsupportedError is a RuntimeError
        output.print_error(f"{parser.prog}: {error}")
        return runner.TROUBLE
    unused = f"; {in_use.path} is preferred" if in_use.kind == "prebuilt" else ""
    output.say([f"{bridge}: compiled, {path}{unused}"])
    return runner.FINE
