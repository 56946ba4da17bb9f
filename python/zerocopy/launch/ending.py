"""Ends a program that started warm soon: what its fork server has loaded is left to the kernel.

To take apart what a fork shares with its parent copies nearly all of it first, a page at a time: 0.2 s for torch and
transformers. Python does not promise to finalize objects that still exist at the end, nor do programs see modules of
site-packages go. What the program made itself ends as ever, by the interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import sys
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType

from zerocopy.launch.recording import library_folders

# Their C libraries write files when they are taken apart.
_WRITE_AT_EXIT = frozenset({"h5py", "netCDF4", "tables"})
# Such libraries may report at the end what they have counted.
_INJECTED = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
# Their end loses nothing: a FileIO writes at once, a reader never, and the others have no file.
_WITHOUT_CONTENT = frozenset({io.BytesIO, io.StringIO, io.FileIO, io.BufferedReader})
_OF_THE_INTERPRETER = frozenset({"__main__", "__mp_main__", "builtins", "sys"})


_kept: frozenset[str] = frozenset()
_libraries: tuple[str, ...] = ()


def prepare() -> None:
    """Be there before a fork server imports anything: the first to be registered at exit is the last to be called."""
    atexit.register(_keep)
    library_folders()  # so that the modules that this imports are the fork server's, and not the program's


def leave_loaded(modules: frozenset[str]) -> None:
    """Have neither these modules nor the libraries that are loaded now taken apart when this process ends."""
    global _kept, _libraries
    _libraries = library_folders()
    if not _WRITE_AT_EXIT.isdisjoint(modules) or any(map(os.environ.get, _INJECTED)):
        return
    libc = ctypes.CDLL(None)
    # Called last to first, before the destructors of libraries: C's streams are written, then the process ends.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)
    _kept = modules - _OF_THE_INTERPRETER


def _keep() -> None:
    """Hide modules from the interpreter, which clears those that it finds.

    Not if the program has made an object with a finalizer, such as a file: a module may be all that holds it. The
    interpreter would not find it in a module that is frozen.
    """
    if not _libraries:  # the fork server itself
        return
    if any(map(_has_finalizer, gc.get_objects())):
        gc.unfreeze()
        return
    kept = [sys.modules.pop(name, None) for name in _kept]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _has_finalizer(made: object) -> bool:
    """Return whether the end of an object may be seen. The fork server's objects are frozen, and not asked about."""
    kind = type(made)
    if kind is GeneratorType:
        return not made.gi_code.co_filename.startswith(_libraries)  # type: ignore[attr-defined]
    if issubclass(kind, io.IOBase):
        streams = (sys.__stdout__, sys.__stderr__)
        return kind not in _WITHOUT_CONTENT and not any(
            made in (stream, getattr(stream, "buffer", None)) for stream in streams
        )
    return kind in (CoroutineType, AsyncGeneratorType) or isinstance(
        getattr(kind, "__del__", None), FunctionType
    )
