"""Observes what recorded calls read from the system, for all recordings that are under way.

An audit hook cannot be removed, so one hook serves all recordings. Functions of ``os`` that raise no audit event are
replaced during a recording.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zerocopy.process.fork_safe import ForkSafeLock
from zerocopy.process.replacements import Replacements
from zerocopy.share.conditions import program

if TYPE_CHECKING:
    from zerocopy.share.conditions.recorder import Recording

# These modules list the folders of sys.path to find others. Only the modules that they find count.
_FINDERS = ("importlib.", "importlib_metadata", "pkg_resources", "_frozen_importlib")
_CHANGES = {"os.mkdir": 0, "os.rmdir": 0, "os.remove": 0, "os.rename": 2, "os.link": 1, "os.symlink": 1}
_PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn")
_FORKS = ("os.fork", "os.forkpty")
_NETWORK = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto")
_AF_UNIX = 1
#: Programs that report on the machine. All processes that share results run on the same machine.
_HARMLESS = frozenset(
    [
        *("ldconfig", "ldconfig.real", "uname", "lscpu", "gcc", "cc", "c++", "g++", "ld", "objdump"),
        *("nvidia-smi", "rocminfo"),
    ]
)


class _Imports(threading.local):
    """Whether the innermost import of this thread is of a module that is installed."""

    are_installed = False


imports = _Imports()


class _Thread(threading.local):
    """Whether this thread is in the recorder itself."""

    is_noting = False


class _Hub:
    """Observes for all recordings that are under way, with one audit hook and one set of replaced functions."""

    def __init__(self) -> None:
        self._recordings: tuple[Recording, ...] = ()
        self._lock = ForkSafeLock()
        self._has_hook = False
        self._thread = _Thread()
        self._replaced = Replacements()
        self._asking = {name: self._asked(getattr(os, name), note) for name, note in _QUESTIONS.items()}

    @contextlib.contextmanager
    def heard(self, recording: Recording) -> Iterator[None]:
        """Add a recording to those that see what happens within a block."""
        with self._lock.held():
            if not self._has_hook:
                self._has_hook = True
                sys.addaudithook(self._hear)
            if not self._recordings:
                self._begin()
            self._recordings = (*self._recordings, recording)
        try:
            yield
        finally:
            with self._lock.held():
                self._recordings = tuple(each for each in self._recordings if each is not recording)
                if not self._recordings:
                    self._end()

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """The recordings that are under way."""
        return self._recordings

    def forget(self) -> None:
        """Drop all recordings in a forked child, which does not have the threads that make the calls."""
        if self._recordings:
            self._recordings = ()
            self._end()

    def _begin(self) -> None:
        importlib.invalidate_caches()  # the import system may have listed folders before
        for name, asked in self._asking.items():
            self._replaced.put(os, name, asked)
            for names in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if asked.__wrapped__ in names:  # shutil looks the functions up there
                    names.add(asked)
        loader = importlib.machinery.SourceFileLoader
        self._replaced.put(loader, "exec_module", self._executing(loader.exec_module))
        sys.meta_path.append(self)

    def _end(self) -> None:
        self._replaced.restore()
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Record a module that no other finder has: this finder is the last one on ``sys.meta_path``."""
        for recording in self._recordings:
            recording.missed(name, path)

    def _executing(self, execute: Any) -> Any:
        def exec_module(loader: Any, module: ModuleType) -> None:
            before, is_own = imports.are_installed, program.is_own(loader.path)
            imports.are_installed = not is_own
            try:
                execute(loader, module)
            finally:
                imports.are_installed = before
            for recording in self._recordings if is_own else ():
                recording.imported(module)

        return exec_module

    def _asked(self, function: Any, note: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def asked(*args: Any, **kwargs: Any) -> Any:
            if self._recordings and not self._thread.is_noting:
                self._note(note, *args, **kwargs)
            return function(*args, **kwargs)

        return asked

    def _note(self, note: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call a function for each recording. Its own use of the system is not recorded."""
        self._thread.is_noting = True
        try:
            for recording in self._recordings:
                note(recording, *args, **kwargs)
        except Exception:  # the arguments are wrong: the function itself raises the error
            pass
        finally:
            self._thread.is_noting = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._recordings or self._thread.is_noting:
            return
        act = _EVENTS.get(event)
        if act is not None and not (event in _LISTING and _is_finding(sys._getframe(1))):
            self._note(act, event, arguments)


def _is_finding(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_FINDERS)


def _absolute(path: Any, dir_fd: int | None = None) -> tuple[str, bool] | None:
    """Return an absolute path, and whether it was given relative to the current folder."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}"), False
    if path is None:
        path = "."
    text = os.fsdecode(path)
    if text.startswith("/"):
        return _plain(text), False
    if dir_fd is not None:
        return _plain(f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{text}"), False
    return _plain(f"{_getcwd()}/{text}"), True


_getcwd = os.getcwd


def _plain(path: str) -> str:
    """Return a path without its meaningless parts: ``/./`` and doubled or final slashes."""
    if "//" in path or "/./" in path or path.endswith(("/", "/.")):
        return f"/{'/'.join(part for part in path.split('/') if part not in ('', '.'))}"
    return path


def _stat(recording: Recording, path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> None:
    if not isinstance(path, int):  # an int is the descriptor of an open file
        at, is_relative = _absolute(path, dir_fd)  # type: ignore[misc]
        recording.looked(at, is_relative, follows=follow_symlinks)


def _lstat(recording: Recording, path: Any, *, dir_fd: Any = None) -> None:
    _stat(recording, path, dir_fd=dir_fd, follow_symlinks=False)


def _access(recording: Recording, path: Any, mode: int, *, dir_fd: Any = None, **_: Any) -> None:
    at, is_relative = _absolute(path, dir_fd)  # type: ignore[misc]
    recording.asked_access(at, mode, is_relative)


def _open(recording: Recording, path: Any, flags: int, mode: int = 0, *, dir_fd: Any = None) -> None:
    if dir_fd is not None:  # without dir_fd, the audit event is enough
        at, is_relative = _absolute(path, dir_fd)  # type: ignore[misc]
        recording.opened(at, flags, is_relative)


def _folder(recording: Recording) -> None:
    if not imports.are_installed and not str(sys._getframe(3).f_globals.get("__name__")).startswith(
        ("zerocopy.", "torch.")
    ):
        recording.asked_for_folder()


#: Functions of ``os`` that raise no audit event.
_QUESTIONS: dict[str, Callable[..., None]] = {
    "stat": _stat,
    "lstat": _lstat,
    "readlink": _lstat,
    "access": _access,
    "open": _open,
    "getcwd": _folder,
    "getcwdb": _folder,
}


def _opened(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    path, _mode, flags = arguments
    if not isinstance(path, int):
        at, is_relative = _absolute(path)  # type: ignore[misc]
        recording.opened(at, flags if isinstance(flags, int) else 0, is_relative)
        if at.endswith(".pyc"):  # Python has compared it with its source, without an event
            with contextlib.suppress(ValueError):
                recording.looked(importlib.util.source_from_cache(at), is_relative)


def _listed(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    at, is_relative = _absolute(arguments[0])  # type: ignore[misc]
    recording.looked(at, is_relative, is_listed=True)


def _connected_database(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    name = os.fsdecode(arguments[0])
    if name.startswith("file:"):
        name = name.removeprefix("file:").partition("?")[0]
    if name and not name.startswith(":memory:"):
        at, is_relative = _absolute(name)  # type: ignore[misc]
        recording.opened(at, os.O_RDWR | os.O_CREAT, is_relative)


def _loaded_library(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    if isinstance(arguments[0], str) and "/" in arguments[0]:
        at, is_relative = _absolute(arguments[0])  # type: ignore[misc]
        recording.opened(at, os.O_RDONLY, is_relative)


def _changed(recording: Recording, event: str, arguments: tuple[Any, ...]) -> None:
    paths = arguments[:2] if _CHANGES[event] == 2 else (arguments[_CHANGES[event]],)
    recording.changed(*(_absolute(path)[0] for path in paths))  # type: ignore[index]


def _ran(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    name = os.fsdecode(arguments[0])
    if os.path.basename(name) not in _HARMLESS:
        recording.cannot_see(f"it started another program: {name}")


def _forked(recording: Recording, *_: Any) -> None:
    recording.cannot_see("it forked a process")


def _used_network(recording: Recording, *_: Any) -> None:
    recording.cannot_see("it used the network")


def _connected(recording: Recording, _: str, arguments: tuple[Any, ...]) -> None:
    if arguments[0].family != _AF_UNIX:
        recording.cannot_see("it used the network")
    elif "/pymp-" not in str(arguments[1]):
        recording.cannot_see(f"it spoke to another process: {arguments[1] or 'an abstract socket'}")


_LISTING = ("os.listdir", "os.scandir")
_EVENTS: dict[str, Callable[[Recording, str, tuple[Any, ...]], None]] = {
    "open": _opened,
    **dict.fromkeys(_LISTING, _listed),
    "sqlite3.connect": _connected_database,
    "ctypes.dlopen": _loaded_library,
    **dict.fromkeys(_CHANGES, _changed),
    **dict.fromkeys((*_PROGRAMS, "os.system"), _ran),
    **dict.fromkeys(_FORKS, _forked),
    **dict.fromkeys(_NETWORK, _used_network),
    "socket.connect": _connected,
}
hub = _Hub()
os.register_at_fork(after_in_child=hub.forget)


def under_way() -> tuple[Recording, ...]:
    """Return the recordings that are under way, in any thread."""
    return hub.recordings
