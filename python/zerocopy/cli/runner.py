"""Runs a command: turns what goes wrong into an exit code and one line on standard error."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from zerocopy import display
from zerocopy._version import __version__
from zerocopy.catalogue.files import Trouble as Trouble
from zerocopy.cli import output
from zerocopy.errors import Error

FINE, BAD, TROUBLE = 0, 1, 2
INTERRUPTED = 130  # as a shell reports SIGINT and SIGPIPE
BROKEN_PIPE = 141

#: For commands of several files.
OF_SEVERAL = "Of several files the highest counts. 130 after an interrupt.\n"

_SCHEMA = 1
_MAX_REASON = 2000
_TRUST = "If you trust the file:"  # as in loading/objects/allowlist.py, which imports torch
_BY_OPTION = "--unknown stub takes all else."


def run(command: str, options: argparse.Namespace, execute: Callable[[], int]) -> int:
    """Return the exit code of a command. The line of an error begins with the file that the options name."""
    path: str | None = getattr(options, "file", None)
    where = "" if path is None else f"{output.named(path)}: "
    try:
        code = execute()
        output.flush()
        return code
    except (BrokenPipeError, output.OutputError):
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        reason = "out of memory"
    except OSError as error:
        reason = why(error)
        named = None if error.filename is None else os.fsdecode(error.filename)
        if named is not None and named != path:
            reason = f"{named or chr(39) * 2}: {reason}"
            if path is None or not named.startswith(path):  # no shard of the folder
                where = ""
    except KeyError as error:  # str() of one is the repr of its message
        reason = str(error.args[0]) if error.args else "KeyError"
    except UnpicklingError as error:
        # The loader advises to call functions; a command has options.
        refused, trust, _ = str(error).partition(_TRUST)
        reason = refused + (_BY_OPTION if trust and hasattr(options, "unknown") else "")
    except (Trouble, Error, ValueError) as error:
        reason = str(error)
    if where and path:  # the loader's errors begin with it
        reason = reason.removeprefix(f"{display.shown(path, None)}: ").partition("\n")[0]
    output.print_error(f"zerocopy {command}: {where}{output.printable(reason, _MAX_REASON)}")
    return TROUBLE


def why(error: OSError | Trouble | MemoryError) -> str:
    """Return an error of one file of several as text."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) if isinstance(error, Trouble) else "out of memory"


def is_same_file(a: str, b: str) -> bool:
    """Return whether two paths lead to the same file."""
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False


def exit_codes(fine: str, bad: str, trouble: str, several: str = "") -> str:
    """Return the section of the help about exit codes; `several` is a further line."""
    codes = f"exit codes:\n  {FINE}  {fine}\n  {BAD}  {bad}\n  {TROUBLE}  trouble: {trouble}\n"
    return f"\n{codes}{several}"


def add_json(parser: Any) -> None:
    """Declare ``--json``, for a parser or a group of options that exclude each other."""
    form = "docs/reference/json.md describes it"
    parser.add_argument("--json", action="store_true", help=f"print one JSON object ({form})")


def head(command: str) -> dict[str, Any]:
    """Return the first members of a command's JSON."""
    return {"schema": _SCHEMA, "command": command, "zerocopy": __version__}
