"""Ends a program that started warm quickly: the kernel frees everything that its fork server has loaded.

Freeing objects that a fork shares with its parent copies nearly all of them first, page by page: 0.2 s for torch and
transformers. Python does not promise to finalize objects that still exist at the end, and programs do not see how
modules of site-packages are freed. The interpreter finalizes objects that the program made itself, as always.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import weakref
from collections.abc import Sequence
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from zerocopy.launch.recording import library_folders

# The C libraries of these modules write files when they are finalized.
_WRITE_AT_EXIT = frozenset({"h5py", "netCDF4", "tables"})
# Libraries that are injected by these variables may report results at the end.
_INJECTED = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
# Freeing these loses no data: a FileIO writes at once, a reader never writes, and the others have no file.
_WITHOUT_CONTENT = frozenset({io.BytesIO, io.StringIO, io.FileIO, io.BufferedReader})
_OF_THE_INTERPRETER = frozenset({"__main__", "__mp_main__", "builtins", "sys"})


_loaded: list[str] = []
_operators: list[Any] = []
_code: int | None = None
_leaves_loaded = False
_libraries: tuple[str, ...] = ()


def prepare() -> None:
    """Register this module at exit before a fork server imports anything, so that it is called last."""
    global _libraries
    atexit.register(_keep)
    _libraries = library_folders()


def note_what_is_loaded() -> None:
    """Record the modules of a fork server, and keep torch's operators alive: freeing them at the end takes 30 ms."""
    global _loaded
    if _WRITE_AT_EXIT.isdisjoint(sys.modules):
        _loaded = [name for name in sys.modules if name not in _OF_THE_INTERPRETER]
        for finalizer in list(getattr(weakref.finalize, "_registry", ())):
            found = finalizer.peek()
            if found is not None and getattr(found[1], "__module__", None) == "torch.library":
                finalizer.atexit = False
                _operators.append(finalizer)


def leave_loaded() -> None:
    """Keep the modules and libraries that are loaded now from being finalized when this process ends."""
    global _leaves_loaded
    if not _loaded or any(map(os.environ.get, _INJECTED)):
        return
    _leaves_loaded = True
    libc = ctypes.CDLL(None)
    # C calls these in reverse order, before the destructors of libraries: flush C's streams, then end the process.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)


def note_exit_code(code: object) -> None:
    """Record the program's exit code, as given to ``sys.exit``, if it is a number or nothing."""
    global _code
    if code is None:
        _code = 0
    elif type(code) is int and 0 <= code <= 255:
        _code = code


def _keep() -> None:
    """Hide modules from the interpreter, which would clear them.

    Hide none if the program has made an object with a finalizer, such as a file, because only a module may hold it. The
    interpreter would not find that object in a frozen module.
    """
    if not _leaves_loaded or any(map(_has_finalizer, gc.get_objects())):
        for finalizer in _operators:
            finalizer()
        gc.unfreeze()
        return
    kept = [sys.path_importer_cache, *(sys.modules.pop(name, None) for name in _loaded)]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    vars(sys)["end of zerocopy"] = _End(_code if _are_written() else None)


class _End:
    """Ends the process when the interpreter clears the module sys, after all others.

    Output that callbacks of weak references have printed until then is written, because hidden modules hold the
    streams. After this, the interpreter would free each name that was ever used, which takes 20 ms.

    Parameters
    ----------
    code : int or None
        The exit code; None leaves the end to the interpreter.
    """

    _streams: Sequence[Any] = ()  # for __del__, if a signal interrupts the constructor
    _code: int | None = None

    def __init__(self, code: int | None) -> None:
        streams = (getattr(sys, name, None) for name in ("stdout", "stderr"))  # a program may delete one
        self._streams = [stream for stream in streams if stream is not None]
        self._exit = ctypes.PyDLL(None).exit
        self._code = code

    def __del__(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(Exception):
                stream.flush()
        if self._code is not None:
            self._exit(self._code)


def _are_written() -> bool:
    """Return whether the standard streams could write everything that was printed. If not, the exit code changes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is not getattr(sys, f"__{name}__"):
            return False
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            return False
    return True


def _has_finalizer(made: object) -> bool:
    """Return whether finalizing an object may have an effect. The fork server's objects are frozen, and skipped."""
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
