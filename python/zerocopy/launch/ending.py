"""Ends a program that started warm soon: what its fork server has loaded is left to the kernel.

To take apart what a fork shares with its parent copies nearly all of it first, a page at a time: 0.2 s for torch and
transformers. Python does not promise to finalize objects that still exist at the end, nor do programs see modules of
site-packages go. What the program made itself ends as ever, by the interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

# Their C libraries write files when they are taken apart.
_WRITE_AT_EXIT = frozenset({"h5py", "netCDF4", "tables"})
# Such libraries may report at the end what they have counted.
_INJECTED = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_OF_THE_INTERPRETER = frozenset({"__main__", "__mp_main__", "builtins", "sys"})


_kept: frozenset[str] = frozenset()


def prepare() -> None:
    """Be there before a fork server imports anything: the first to be registered at exit is the last to be called."""
    atexit.register(_keep)


def leave_loaded(modules: frozenset[str]) -> None:
    """Have neither these modules nor the libraries that are loaded now taken apart when this process ends."""
    global _kept
    if not _WRITE_AT_EXIT.isdisjoint(modules) or any(map(os.environ.get, _INJECTED)):
        return
    libc = ctypes.CDLL(None)
    # Called last to first, before the destructors of libraries: C's streams are written, then the process ends.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)
    _kept = modules - _OF_THE_INTERPRETER


def _keep() -> None:
    """Hide modules from the interpreter, which clears those that it finds."""
    kept = [sys.modules.pop(name, None) for name in _kept]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
