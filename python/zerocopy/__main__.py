"""The command ``zerocopy``, also as ``python -m zerocopy``."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence

_INTERRUPTED = 130  # as a shell reports SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments (by default ``sys.argv[1:]``) name, and return its exit code.

    ``run --warm`` is tried first: a program that another process starts in milliseconds waits for no other import.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words[:1] == ["run"] and "--warm" in words:
        from zerocopy.launch.request import parse, set_log_level

        request = parse(words[1:])
        if request is not None:
            from zerocopy.launch import client

            with contextlib.suppress(ValueError):  # the command reports it
                set_log_level(request.verbosity)

            reason = client.hand_over(request)
            import logging

            logging.getLogger("zerocopy").info("run --warm: a plain run, since %s", reason)
    try:
        from zerocopy.cli import main as command

        if words[:1] != ["run"]:
            _open_closed_streams()
            _buffer_output()
            # torch warns when it pickles quantized tensors. Commands that only show a file need not repeat that.
            warnings.filterwarnings("ignore", module=r"torch\._utils$")
            gc.set_threshold(100_000)  # by default, a seventh of the import of torch is collections
        return command(arguments)
    except (KeyboardInterrupt, Exception) as error:
        # Commands handle KeyboardInterrupt, but not while their modules are imported. Exceptions of a program that
        # "run" runs go on to the interpreter.
        if words[:1] == ["run"] or not _is_interrupt(error):
            raise
        return _INTERRUPTED


def _open_closed_streams() -> None:
    """Send output to /dev/null where the shell closed the stream (``>&-``), so that no file takes its descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _buffer_output() -> None:
    """Buffer standard output, also under ``python -u``: a buffer writes everything or raises an error.

    Without a buffer, Python does not notice if the system has written only a part.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        here = sys.stdout
        sys.stdout = open(here.fileno(), "w", encoding=here.encoding, errors=here.errors, closefd=False)  # noqa: SIM115


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception comes from Ctrl-C. torch 1.13 raises RuntimeError with the name in its text."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or str(error).startswith("KeyboardInterrupt"):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    sys.exit(main())
