"""The folder of kept results: whose it is, and how entries are found, written and evicted: ``results/KEY/ID``."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from zerocopy import _core
from zerocopy.errors import CacheError
from zerocopy.share.cache import entries, locks
from zerocopy.share.cache.entries import Entry, Part
from zerocopy.share.cache.new_entry import NewEntry
from zerocopy.share.conditions.file_identity import identity, is_same

MAX_ENTRIES = 8  # of one key
# Its time of access is when an entry was last taken, so a look at it leaves that.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME
_DAY = 86400.0
_SWEEP_SECONDS = 60.0
_DEFAULT_LIMIT = 1 << 36
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_log = logging.getLogger("zerocopy")


def default_folder() -> str:
    """Return ``ZEROCOPY_CACHE``, or ``zerocopy`` in the user's folder of caches."""
    named = os.environ.get("ZEROCOPY_CACHE")
    if named:
        return os.path.abspath(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return f"{base if base.startswith('/') else os.path.expanduser('~/.cache')}/zerocopy"


def usable() -> Cache | None:
    """Return the folder of results, made if missing; None on a network, unless ``ZEROCOPY_CACHE`` names it.

    ``CacheError`` if others may write to it, ``OSError`` if it cannot be made.
    """
    folder = default_folder()
    try:
        number = require_private(folder)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        number = require_private(folder)
    is_usable = "ZEROCOPY_CACHE" in os.environ or not _is_on_network(folder, number)
    return Cache(folder) if is_usable else None


@functools.lru_cache(maxsize=16)
def _is_on_network(folder: str, _: int) -> bool:
    return _core.file_system_of_path(os.fsencode(folder))[1]


def parsed_bytes(given: str, name: str) -> int | None:
    """Return a number of bytes, which may have K, M, G or T behind it; None for no text. `name` is for the error."""
    text = given.strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name} must be a number of bytes, not {given!r}")
    return int(number) * _UNITS[unit]


class Cache:
    """The folder of kept results.

    Parameters
    ----------
    folder : str
        Where it is.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._results = f"{folder}/results"

    # ---------------------------------------------------------------------------------- entries

    def of_key(self, key: str) -> Iterator[Entry]:
        """Yield the entries of a key that are whole, the last used first."""
        paths = self._paths_of(key)
        for path in paths if len(paths) < 2 else sorted(paths, key=_atime, reverse=True):
            entry = self.opened(path)
            if entry is not None and entry.is_trusted:
                yield entry

    def by_id(self, key: str, wanted: str) -> Entry | None:
        """Return one entry, or None if it is not there any more."""
        return self.opened(f"{self._results}/{key}/{wanted}")

    def open_part(self, part: Part, within_boot: bool) -> _core.Descriptor:
        """Return a file that an entry refers to. ``LookupError`` if it is another file now."""
        path = part.path if part.path.startswith("/") else f"{self._results}/{part.path}"
        try:
            file = _core.Descriptor.open(os.fsencode(path))
        except OSError as error:
            raise LookupError(str(error)) from None
        status = os.fstat(file.fileno())
        if part.identity:
            is_right = is_same(part.identity, identity(status), within_boot)
        else:
            is_right = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if is_right and part.offset + part.size <= status.st_size:
            return file
        raise LookupError(f"{path} is another file now")

    def opened(self, path: str) -> Entry | None:
        """Return an entry, or None if it is not there or damaged. A damaged one is removed, with one log line."""
        try:
            file = _core.Descriptor.open(os.fsencode(path), _READING)
        except OSError:
            return None
        try:
            return Entry(path, file)
        except (ValueError, KeyError, OSError) as error:
            _log.warning("%s: the kept result is damaged, and is computed anew: %s", path, error)
            _unlink(path)
            return None

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries."""
        for path, _ in self._files():
            entry = None if _is_unfinished(path) else self.opened(path)
            if entry is not None:
                yield entry

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the paths of all entries."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._results) as keys:
            for key in keys:
                with contextlib.suppress(OSError), os.scandir(key.path) as found:
                    for entry in found:
                        yield entry.path, entry.stat(follow_symlinks=False)

    # ---------------------------------------------------------------------------------- writing

    @contextlib.contextmanager
    def writing(
        self, key: str, head: dict[str, Any], covered: int, size: int, contents: Iterable[tuple[int, Any]]
    ) -> Iterator[NewEntry]:
        """Yield a new entry, whose storages are still to be written. It goes at the end unless it was finished.

        Parameters
        ----------
        key : str
            Of its call.
        head : dict
            The description of the result.
        covered, size : int
            Bytes behind the head: those that the checksum covers, and all.
        contents : iterable of (int, buffer)
            The covered bytes, and where they begin.
        """
        beginning = entries.beginning(head, covered, size, contents)
        whole = len(beginning) - covered + size
        self._make_room(whole, key)
        folder = f"{self._results}/{key}"
        for needed in (self._results, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(needed, 0o700)
        with NewEntry(folder, beginning, whole) as new:
            yield new

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Hold the lock of a key within a block."""
        return locks.held(str(self.folder), key)

    def limit(self, own: int) -> int:
        """Return how many bytes entries may take, if they take `own` now."""
        given = parsed_bytes(os.environ.get("ZEROCOPY_MAX_BYTES", ""), "ZEROCOPY_MAX_BYTES")
        if given is not None:
            return given
        disk = os.statvfs(self.folder)
        return min(_DEFAULT_LIMIT, (disk.f_bavail * disk.f_frsize + own) // 10)

    def _make_room(self, size: int, key: str) -> None:
        """Remove what has not been used for longest until so much fits. ``OSError`` if it cannot fit."""
        siblings = sorted(self._paths_of(key), key=_atime)
        for path in siblings[: max(len(siblings) - MAX_ENTRIES + 1, 0)]:
            self.remove([path])
        if size < 1 << 20 and not self._is_time_to_sweep():
            return
        files = {}
        for path, status in self._files():
            if not _is_unfinished(path):
                files[path] = status
            elif status.st_mtime < time.time() - _DAY:  # of a process that was killed
                _unlink(path)
        taken = sum(status.st_blocks * 512 for status in files.values())
        limit = self.limit(taken)
        if size > limit:
            why = f"{size} bytes do not fit: results may take {limit} (ZEROCOPY_MAX_BYTES)"
            raise OSError(errno.ENOSPC, why)
        left = sorted(files, key=lambda path: files[path].st_atime_ns)
        while left and taken + size > limit:
            gone = self.remove([left[0]])
            taken -= sum(files[path].st_blocks * 512 for path in gone if path in files)
            left = [path for path in left[1:] if path not in gone]

    def _paths_of(self, key: str) -> list[str]:
        folder = f"{self._results}/{key}"
        with contextlib.suppress(OSError):
            return [f"{folder}/{name}" for name in os.listdir(folder) if name[0] != "."]
        return []

    def _is_time_to_sweep(self) -> bool:
        stamp = f"{self.folder}/swept"
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - os.stat(stamp).st_mtime) < _SWEEP_SECONDS:
                return False
        with open(stamp, "wb", opener=functools.partial(os.open, mode=0o600)):
            os.utime(stamp)
        return True

    def remove(self, paths: list[str]) -> set[str]:
        """Remove entries, and those that refer to them. Processes that map them keep what they have."""
        gone = set(paths)
        for path in paths:
            _unlink(path)
        names = {entries.name_of_entry(path) for path in gone}
        found = [entry.path for entry in self if not names.isdisjoint(entry.references)]
        gone |= self.remove(found) if found else set()
        for folder in {os.path.dirname(path) for path in paths}:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return gone


# ------------------------------------------------------------------------------------ the folder


@functools.lru_cache(maxsize=16)
def _are_safe_above(folder: str, _: int) -> bool:
    """Return whether nobody else can put another folder in the place of this one."""
    status = os.stat(folder)
    while not os.path.samestat(above := os.stat(folder := f"{folder}/.."), status):
        status = above
        is_open = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if is_open or status.st_uid not in (0, os.geteuid()):
            return False
    return True


def require_private(folder: str) -> int:
    """Return the inode of a folder. ``CacheError`` unless it is this user's, and only this user may write there."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"{folder}: expected a folder for results")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise CacheError(
            f"{folder} is of user {status.st_uid} and mode {stat.S_IMODE(status.st_mode):o}: the folder of results "
            "must be yours alone: chmod 700 it, or let ZEROCOPY_CACHE name another one"
        )
    if not _are_safe_above(folder, status.st_ino):
        raise CacheError(
            f"{folder} is in a folder that others may write to; ZEROCOPY_CACHE names another one"
        )
    return status.st_ino


def _is_unfinished(path: str) -> bool:
    return os.path.basename(path)[0] == "."


def _atime(path: str) -> int:
    try:
        return os.stat(path).st_atime_ns
    except OSError:
        return 0


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
