"""Runs a command that looks at one checkpoint, and turns what goes wrong into an exit code and one line."""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from zerocopy import display
from zerocopy._version import __version__
from zerocopy.cli import output, reading
from zerocopy.errors import Error

SCHEMA = 1
_MAX_MESSAGE = 1000


def guarded(command: str, path: str, action: Callable[[], int]) -> int:
    """Return the exit code of `action`: 2 after one line on standard error if it cannot read the file."""
    try:
        code = action()
        output.flush()
        return code
    except BrokenPipeError:
        output.silence_stdout()
        return reading.BROKEN_PIPE
    except KeyboardInterrupt:
        return reading.INTERRUPTED
    except output.OutputError:
        raise
    except OSError as error:
        why = error.strerror or type(error).__name__
        missing = (
            error.filename if isinstance(error.filename, str) else path
        )  # a shard, where `path` is a folder
        return _trouble(command, path, why if missing == path else f"{missing}: {why}")
    except (reading.Trouble, Error, UnpicklingError, ValueError) as error:
        return _trouble(command, path, str(error))
    except MemoryError:
        return _trouble(command, path, "out of memory")


def _trouble(command: str, path: str, why: str) -> int:
    # The loader's errors begin with the path.
    why = why.removeprefix(f"{display.shown(path, None)}: ").partition("\n")[0]
    output.print_error(f"zerocopy {command}: {output.named(path)}: {output.printable(why, _MAX_MESSAGE)}")
    return reading.TROUBLE


def heading(command: str) -> dict[str, Any]:
    """Return the first members of a command's JSON."""
    return {"schema": SCHEMA, "command": command, "zerocopy": __version__}
