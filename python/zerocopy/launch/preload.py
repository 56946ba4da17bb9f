"""Imports what a program imported the last time, and finds the modules for which that does no good."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from zerocopy.launch import circumstances

#: They prepare the terminal, or patch others, when they are imported.
_NEVER = frozenset(
    {"antigravity", "curses", "readline", "rlcompleter", "this", "idlelib", "turtle", "tkinter"}
)


_OF_THE_KERNEL = ("/dev/", "/proc/", "/sys/")


class HasEffects(Exception):
    """A module does more, when it is imported, than a fork could repeat."""

    def __init__(self, module: str, effect: str) -> None:
        super().__init__(f"{module} {effect} when it is imported")
        self.module = module


class _WatchedEnviron(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` while it notes what is read of it."""

    seen: set[str] = set()  # noqa: RUF012

    def __getitem__(self, name: Any) -> Any:
        self.seen.add(name if isinstance(name, str) else circumstances.ALL)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        self.seen.add(circumstances.ALL)
        return super().__iter__()


class _WatchedArguments(list[str]):
    """``sys.argv`` while it notes that it is read."""

    is_read = False

    def _noted(self, name: str, *arguments: Any) -> Any:
        self.is_read = True
        return getattr(super(), name)(*arguments)

    __contains__ = functools.partialmethod(_noted, "__contains__")
    __eq__ = functools.partialmethod(_noted, "__eq__")
    __getitem__ = functools.partialmethod(_noted, "__getitem__")
    __iter__ = functools.partialmethod(_noted, "__iter__")
    __len__ = functools.partialmethod(_noted, "__len__")
    __repr__ = functools.partialmethod(_noted, "__repr__")
    __hash__ = None


@contextlib.contextmanager
def watched(words: list[str]) -> Iterator[set[str]]:
    """Note the environment variables that Python code reads within a block, and whether it looks at ``sys.argv``.

    Parameters
    ----------
    words : list of str
        ``sys.argv`` within the block.
    """
    before, plain = os.environ.__class__, sys.argv
    seen = _WatchedEnviron.seen = set()
    os.environ.__class__ = _WatchedEnviron
    arguments = sys.argv = _WatchedArguments(words)
    alone = sys.getrefcount(arguments)
    try:
        yield seen
    finally:
        os.environ.__class__ = before
        # A module may also have kept it, to look at it later.
        if arguments.is_read or sys.getrefcount(arguments) > alone:
            seen.add(circumstances.ARGUMENTS)
        sys.argv = plain


@contextlib.contextmanager
def watched_files() -> Iterator[set[str]]:
    """Note the files that are opened for reading within a block, such as configurations. They may be missing."""
    read: set[str] = set()
    is_within = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:  # it cannot be taken away again
        if is_within and event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and not flags & (os.O_WRONLY | os.O_RDWR):
                read.add(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100

    sys.addaudithook(hook)
    try:
        yield read
    finally:
        is_within = False
        # Python writes the compiled modules again when it likes.
        read -= {path for path in read if path.startswith(_OF_THE_KERNEL) or path.endswith(".pyc")}


def import_all(modules: list[str], excluded: list[str], captured: int) -> None:
    """Import modules in their order. ``HasEffects`` for one that a fork server must not import.

    Parameters
    ----------
    modules, excluded : list of str
        Modules, and packages to leave out.
    captured : int
        The descriptor of the file that stdout and stderr lead to.
    """
    left_out = _NEVER.union(excluded)
    descriptors = _descriptors()
    for name in modules:
        if name in sys.modules or name.partition(".")[0] in left_out:
            continue
        with contextlib.suppress(Exception, SystemExit):  # the program may have caught the same
            importlib.import_module(name)
        if _threads() > 1:
            _stop_pools()
        _require_no_effects(name, captured, descriptors)
    if "torch" in sys.modules:
        importlib.import_module("zerocopy._native")
        zerocopy = importlib.import_module("zerocopy")
        for name in zerocopy.__all__:
            getattr(zerocopy, name)
        sys.stderr.flush()
        os.ftruncate(captured, 0)  # its own log lines
    ctypes.CDLL(None).fflush(None)
    _stop_pools()
    _require_no_effects("zerocopy", captured, descriptors)


def settle() -> None:
    """Move all objects out of the collector's sight, so that a child does not copy their pages to look at them."""
    gc.collect()
    gc.freeze()


def has_other_threads() -> bool:
    """Return whether another thread than the caller's runs in this process."""
    return _threads() > 1


def _require_no_effects(name: str, captured: int, descriptors: set[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.fstat(captured).st_size:
        raise HasEffects(name, "prints")
    if _threads() > 1:
        raise HasEffects(name, "starts a thread")
    if not _descriptors() <= descriptors:
        raise HasEffects(name, "keeps a file open")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        raise HasEffects(name, "keeps a process")


def _stop_pools() -> None:
    """Fork once: OpenBLAS ends its threads before each fork, and starts them again when there is work."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _descriptors() -> set[str]:
    """Return the open descriptors. That of the listing itself is the same each time, unless one is open below it."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Files:
    """The files that the modules of this process came from, as they were when they were imported.

    Parameters
    ----------
    read : set of str
        Further files that imports have read.
    """

    def __init__(self, read: set[str]) -> None:
        names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
            names.update(line.split(maxsplit=5)[5].rstrip("\n") for line in maps if ".so" in line)
        modules = {name for name in names if isinstance(name, str) and name.startswith("/")}
        # A folder changes when a package, or a module of one, is installed: an import may have looked for it.
        # The folders of other files that were read are the program's own, and change while it works.
        paths = modules | read | {os.path.dirname(path) for path in modules}  # noqa: PTH120
        paths.update(path for path in sys.path if os.path.isdir(path))  # noqa: PTH112
        self._known = {path: _state(path) for path in paths}

    def changed(self) -> str:
        """Return a file that has changed; empty if there is none."""
        return next((path for path, state in self._known.items() if _state(path) != state), "")

    def __len__(self) -> int:
        return len(self._known)


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return ()
    # The change time is the one that no program sets.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
