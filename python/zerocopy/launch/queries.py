"""Records what imports ask of the file system and the import system: other answers might have changed their results.

Python's audit events tell which files are opened and which folders are listed. The rest comes from the functions of
``os.path``. Their code objects are replaced while this module records. A wrapper function would not do, because a
module that imports it then would hold on to it. Calls of ``os.stat`` itself, and of the C library, are not seen.
"""

from __future__ import annotations

import contextlib
import genericpath
import inspect
import os
import pathlib
import posixpath
import stat
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_OF_THE_KERNEL = ("/dev/", "/proc/", "/sys/")
_ASKING = (
    *(
        getattr(genericpath, name)
        for name in ("exists", "isfile", "isdir", "getsize", "getmtime", "getctime")
    ),
    *(posixpath.lexists, posixpath.islink, pathlib.Path.stat),
)
_NOTE, _ORIGINAL = "_zerocopy_note", "_zerocopy_original_"  # in the globals of those functions


class Queries:
    """Records the files, folders and modules that imports have asked for.

    Attributes
    ----------
    read, looked_at, listed : set of str
        Files that were opened for reading, paths of which facts were asked, and folders that were listed. They may be
        missing.
    absent : set of str
        Names of top-level modules that were not found.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.looked_at: set[str] = set()
        self.listed: set[str] = set()
        self.absent: set[str] = set()
        self.is_heard = True

    def find_spec(self, name: str, *_: Any) -> None:
        """Record a module that no other finder has: this finder is the last one on ``sys.meta_path``."""
        self.absent.add(name.partition(".")[0])

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event."""
        if not self.is_heard:
            return
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR):
                _note(path, self.read)
        elif event in ("os.listdir", "os.scandir") and not _is_import_system(sys._getframe(1)):
            _note(arguments[0], self.listed)


def _note(path: Any, where: set[str]) -> None:
    if isinstance(path, str | bytes | os.PathLike):
        where.add(os.path.abspath(os.fsdecode(path)))


def _is_import_system(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


@contextlib.contextmanager
def noted() -> Iterator[Queries]:
    """Record what is asked within a block."""
    queries = Queries()
    sys.addaudithook(queries.hook)  # it cannot be taken away again
    sys.meta_path.append(queries)
    try:
        with contextlib.ExitStack() as stack:
            for function in filter(inspect.isfunction, _ASKING):  # not those that a later release writes in C
                stack.enter_context(_heard(function, lambda path: _note(path, queries.looked_at)))
            yield queries
    finally:
        queries.is_heard = False
        sys.meta_path.remove(queries)
        # Python writes the compiled modules again when it likes.
        queries.read -= {path for path in queries.read if path.endswith(".pyc")}
        for paths in (queries.read, queries.looked_at, queries.listed):
            paths -= {path for path in paths if path.startswith(_OF_THE_KERNEL)}
        queries.absent -= {name.partition(".")[0] for name in sys.modules}


@contextlib.contextmanager
def _heard(function: Any, note: Callable[[Any], None]) -> Iterator[None]:
    """Make a function record its first argument within a block."""
    code, names = function.__code__, function.__globals__
    original = types.FunctionType(code, names, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    kept = f"{_ORIGINAL}{function.__name__}"
    made: dict[str, Any] = {}
    exec(  # only the function's name is inserted, and it comes from the list above
        f"def asked(path, *rest, **options):\n    {_NOTE}(path)\n    return {kept}(path, *rest, **options)\n",
        made,
    )
    names[_NOTE], names[kept] = note, original
    function.__code__ = made["asked"].__code__
    try:
        yield
    finally:
        function.__code__ = code
        names.pop(_NOTE, None)
        del names[kept]


def state_of(path: str, is_listed: bool = True) -> tuple[int, ...]:
    """Return facts about a file or folder that differ once it has changed; none if it does not exist.

    For a folder that was not listed, the only fact is that it is a folder.
    """
    try:
        found = os.stat(path)
    except OSError:
        return ()
    if not is_listed and stat.S_ISDIR(found.st_mode):
        return (stat.S_IFDIR,)
    # The change time is the one that no program sets.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
