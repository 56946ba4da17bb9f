"""Patches a Python process that a program under ``zerocopy run`` has started, such as a worker of torchrun.

Python imports a module of this name when it starts. A module of the same name that the user has is imported too. Any
release of Python 3 may find this file, also one that has no zerocopy.
"""

import os
import sys


def _import_other() -> None:
    """Import the ``sitecustomize`` that this one hides."""
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
        sys.modules[__name__] = this  # the import that runs this file expects a module


def _patch() -> None:
    """Patch this process if its Python has zerocopy, or start its program warm."""
    kind, *words = os.environ["ZEROCOPY_RUN"].split(" ")
    session = (int(words[0]), words[1]) if words else None
    reason = ""
    try:
        if session is not None:
            from zerocopy.launch.below import start

            reason = start(kind == "share", session)
        from zerocopy.launch.program import patch_this_process
    except ImportError:
        return
    patch_this_process(kind == "share", session)
    if reason:
        import logging

        logging.getLogger("zerocopy").info("run --warm: a plain run, since %s", reason)


if __name__ == "sitecustomize":  # not where a tool imports all modules of the package
    sys.path.remove(os.path.dirname(__file__))
    try:
        _import_other()
    finally:
        if "ZEROCOPY_RUN" in os.environ:
            _patch()
