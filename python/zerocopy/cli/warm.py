"""``zerocopy warm``: computes and keeps results before a program needs them."""

from __future__ import annotations

import argparse
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy import share
from zerocopy.cli import runner
from zerocopy.cli.output import escaped, print_error, say

DESCRIPTION = """
Loads checkpoints and keeps the results, so that the first program that needs one gets it at once. A program gets the
result of the same function with the same arguments: spell paths as the program does, and run this command in the same
folder if they are relative, and with the same environment. What is kept already is not loaded again.
"""

EPILOG = (
    runner.exit_codes(
        fine="all are kept",
        bad="the function raised an exception, which is printed",
        trouble="no such file or function; the cache folder cannot be used",
    )
    + """
example:
  $ zerocopy warm model.pt shards/*.safetensors     # for programs under zerocopy run --share
  $ zerocopy warm --by transformers.BertModel.from_pretrained bert-base-uncased
  $ zerocopy warm --by zerocopy.load model.pt       # for zerocopy.share.load(zerocopy.load, "model.pt")
"""
)

_SAFETENSORS = "safetensors.torch.load_file"
_MAX_LENGTH = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a checkpoint, or another argument for --by")
    parser.add_argument(
        "--by",
        metavar="FUNCTION",
        help=f"the function of one argument that loads PATH (default: torch.load, or {_SAFETENSORS} for .safetensors)",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Load, and return the exit code."""
    codes = []
    for path in options.paths:
        # A library's function may take names that are not paths, for example names of models.
        is_path = options.by is None or options.by in ("torch.load", "zerocopy.load", _SAFETENSORS)
        if is_path and not Path(path).exists():
            print_error(f"{parser.prog}: {escaped(path)}: No such file or directory")
            codes.append(runner.TROUBLE)
        else:
            name = options.by or (_SAFETENSORS if path.endswith(".safetensors") else "torch.load")
            codes.append(_warm(parser, path, name))
    return max(codes)


def _warm(parser: argparse.ArgumentParser, path: str, name: str) -> int:
    function = _function(parser, name)
    start = time.perf_counter()
    try:
        share.load(function, path)
    except (share.CacheError, ImportError, MemoryError) as error:
        print_error(f"{parser.prog}: {escaped(path)}: {escaped(str(error), _MAX_LENGTH)}")
        return runner.TROUBLE
    except Exception as error:  # whatever the function raises
        said = f"{type(error).__name__}: {error}"
        print_error(f"{parser.prog}: {escaped(path)}: {escaped(said, _MAX_LENGTH)}")
        return runner.BAD
    say([f"{escaped(path)}: there, by {name}, after {time.perf_counter() - start:.3f} s"])
    return runner.FINE


def _function(parser: argparse.ArgumentParser, name: str) -> Callable[..., Any]:
    """Return the function that a dotted name names."""
    try:
        found: Any = pkgutil.resolve_name(name.replace("::", ":"))
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"--by {escaped(name)}: {error}")
    if not callable(found):
        parser.error(f"--by {escaped(name)} is not a function")
    return found
