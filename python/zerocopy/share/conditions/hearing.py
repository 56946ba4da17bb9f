"""Hears Python's audit events: all that there is where the library `_watch` is not loaded, a complement where it is."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from zerocopy import _core
from zerocopy.share.conditions.watching import Kind, Record, Watch
from zerocopy.share.wire import file_identity

# These modules list the folders of sys.path to find others. Only the modules that they find count, not other
# files.
_FINDERS = ("importlib.", "importlib_metadata", "pkg_resources", "_frozen_importlib")
_LISTING = ("os.listdir", "os.scandir")
_CHANGES = {"os.mkdir": 0, "os.rmdir": 0, "os.remove": 0, "os.rename": 2, "os.link": 1, "os.symlink": 1}
_PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn")
_AF_UNIX = int(socket.AF_UNIX)


class Hearing:
    """Notes audit events from now on.

    Parameters
    ----------
    watch : Watch
        Sees all but a few of them itself, if it is there.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._is_on = True
        self.records: list[Record] = []
        sys.addaudithook(self._hear)  # an audit hook cannot be removed

    def stop(self) -> None:
        """Note no more."""
        self._is_on = False
        if not self._watch.is_there:
            self.records += [_opened(path, os.O_RDONLY) for path in _mapped()]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event in _LISTING:
            frame = sys._getframe(1)
            if str(frame.f_globals.get("__name__")).startswith(_FINDERS):
                self._watch.mute_listing()
            elif not self._watch.is_there:
                self._add(_opened, "." if arguments[0] is None else arguments[0], kind=Kind.LISTED)
        elif event == "ctypes.dlopen":  # which opens files where no hook is
            if isinstance(arguments[0], str) and "/" in arguments[0]:
                self._add(_opened, arguments[0])
        elif not self._watch.is_there:
            self._hear_all(event, arguments)

    def _hear_all(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            self._add(_opened, path, flags=flags if isinstance(flags, int) else 0)
        elif event == "sqlite3.connect":
            self._add(_opened, arguments[0])
        elif event in _CHANGES:
            for path in arguments[:2] if _CHANGES[event] == 2 else (arguments[_CHANGES[event]],):
                self._add(_changed, path)
        elif event in _PROGRAMS:
            self._add(_ran, arguments[0])
        elif event == "os.system":
            self.records.append(Record(Kind.RAN, "/bin/sh", target=os.fsdecode(arguments[0])))
        elif event == "socket.connect":
            path = arguments[1] if arguments[0].family == _AF_UNIX else ""
            self.records.append(Record(Kind.SPOKE, str(path), flags=int(arguments[0].family)))

    def _add(self, make: Any, path: Any, **more: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            self.records.append(make(os.fsdecode(path), **more))


def _absolute(path: str) -> tuple[str, bool]:
    return (path, False) if path.startswith("/") else (f"{Path.cwd()}/{path}", True)


def _opened(path: str, flags: int = 0, kind: Kind = Kind.OPENED) -> Record:
    absolute, is_relative = _absolute(path)
    try:
        status = os.stat(absolute)  # noqa: PTH116
    except (OSError, ValueError):
        return Record(kind, absolute, is_relative, flags)
    return Record(kind, absolute, is_relative, flags, status.st_mode, file_identity.identity(status))


def _changed(path: str) -> Record:
    return Record(Kind.CHANGED, *_absolute(path))


def _ran(path: str) -> Record:
    return Record(Kind.RAN, path)


def _mapped() -> list[str]:
    """Return the files that are mapped and hold data."""
    paths = {os.fsdecode(part.path) for part in _core.file_mappings()}
    return [path for path in paths if ".so" not in path and file_identity.is_regular(path)]
