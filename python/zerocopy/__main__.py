"""The command ``zerocopy``, also as ``python -m zerocopy``."""

from __future__ import annotations

import contextlib
import sys
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
            from zerocopy.process import log_level

            set_log_level(request.verbosity)
            with contextlib.suppress(ValueError):  # the command reports it
                log_level.configure()

            reason = client.hand_over(request)
            import logging

            logging.getLogger("zerocopy").info("run --warm: a plain run, since %s", reason)
    try:
        from zerocopy.cli import main as command

        return command(arguments)
    except KeyboardInterrupt:  # Commands handle it, but not while their modules are imported.
        if words[:1] == ["run"]:  # the program's own
            raise
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
