"""Turns what was seen of a call into what its result depends on."""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from zerocopy.share.conditions import conditions, program
from zerocopy.share.conditions.conditions import Row
from zerocopy.share.conditions.watching import Kind, Record
from zerocopy.share.wire import file_identity

_SYSTEM = (
    *("/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/", "/usr/lib/", "/usr/bin/", "/bin/", "/lib/"),
    f"{sys.prefix}/bin/",
)
# Of packages, and of torch: which releases those are the key says.
_OF_RELEASES = ("-info/", "-packages/torch/")
_CODE = (".py", ".pyc", ".pyi", ".so", ".pth")
_CREATING = os.O_CREAT | os.O_TRUNC | os.O_TMPFILE
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
#: Programs that tell about the machine, which is the same one for all who share: docs/share.md says who starts them.
HARMLESS = frozenset(
    [
        *("ldconfig", "ldconfig.real", "uname", "lscpu", "gcc", "cc", "c++", "g++", "ld", "objdump"),
        *("nvidia-smi", "rocminfo"),
    ]
)


class Facts:
    """Gathers facts about paths.

    Parameters
    ----------
    folder : str
        The current folder when the call began.
    begun : int
        When that was, in nanoseconds of the clock that files get their times from.
    """

    def __init__(self, folder: str, begun: int) -> None:
        self._folder = f"{folder.rstrip('/')}/"
        self._begun = begun
        self._rows: dict[tuple[str, str], Row] = {}
        self._relative: set[str] = set()
        self._made: set[str] = set()  # what the call itself has written, created or removed
        self._new_files: set[tuple[int, int]] = (
            set()
        )  # device and inode of each file that the call has created
        self._unseen: dict[str, None] = {}
        self._has_run_programs = False

    def add(self, record: Record) -> None:
        """Add what a record says."""
        if record.kind == Kind.RAN:
            self._add_program(record)
        elif record.kind == Kind.SPOKE:
            self._add_socket(record)
        else:
            path = _plain(record.path)
            if record.kind == Kind.CHANGED or (record.kind == Kind.OPENED and record.flags & _WRITING):
                self._made.add(path)
                if record.identity and record.flags & _CREATING and record.identity[4] >= self._begun:
                    self._new_files.add(record.identity[:2])
            row = self._row_of(record, path)
            if row is not None and not (record.is_import and self._is_idle(row)):
                if record.is_relative and self._is_here(path):
                    self._relative.add(path)
                self._rows.setdefault((path, row[1]), row)

    def _is_idle(self, row: Row) -> bool:
        """Return whether a fact is of looking around in the current folder, as libraries do that are imported."""
        return row[1] != "file" and self._is_here(row[0])

    def _is_here(self, path: str) -> bool:
        """Return whether a path is that of the current folder, or of something in it."""
        return f"{path}/".startswith(self._folder)

    def add_seen(self, path: str, identity: file_identity.Identity | None) -> None:
        """Add a file, or that there is none."""
        kind = "missing" if identity is None else "file"
        self._rows.setdefault((path, kind), [path, kind, *(identity or ())])

    def has(self, path: str) -> bool:
        """Return whether a file counts already."""
        return (path, "file") in self._rows

    def _row_of(self, record: Record, path: str) -> Row | None:
        kind, mode = record.kind, record.mode
        if kind == Kind.CHANGED or not _counts(path, mode):
            return None
        if kind == Kind.FOLLOWED:
            return [path, "link", record.target]
        if kind == Kind.RESOLVED:
            return [path, "resolved", record.target]
        if record.identity is None:
            return None if record.flags & os.O_CREAT and kind == Kind.OPENED else [path, "missing"]
        if stat.S_ISLNK(mode):
            return [path, "link", None]
        if stat.S_ISDIR(mode):
            return [path, "names", *record.identity] if kind == Kind.LISTED else [path, "folder"]
        if not stat.S_ISREG(mode):
            return None
        if kind == Kind.ASKED:
            return [path, "there", record.flags, os.access(path, record.flags)]
        is_written = record.flags & os.O_TRUNC or record.flags & os.O_ACCMODE == os.O_WRONLY
        return None if kind == Kind.OPENED and is_written else [path, "file", *record.identity]

    # ---------------------------------------------------------------------------- after the call

    def rows(self) -> tuple[list[Row], list[str], bool]:
        """Return the facts, what was not there relative to the current folder, and whether something was."""
        rows, absent, has_relative = [], [], False
        for before in self._rows.values():
            row = self._settled(before)
            if row is None:
                continue
            path, kind = row[:2]
            is_relative = path in self._relative
            if is_relative and kind == "missing":
                absent.append(path.removeprefix(self._folder))
                continue
            has_relative |= is_relative
            rows.append(row)
        return _without_parents(rows), absent, has_relative

    def _settled(self, row: Row) -> Row | None:
        """Return a fact as it is now, if the call itself has changed it; else as it was."""
        path, kind, *fact = row
        with contextlib.suppress(OSError, ValueError):
            if kind == "names":
                return self._settled_names(path, fact)
            if kind == "link" and fact[0] is None:
                return [path, kind, os.readlink(path)]  # noqa: PTH115
            if conditions.holds(row):
                return row
            # The call has read an older file by a name that it made and removed. The file may be anywhere.
            if kind == "file" and _is_gone(path) and self._is_older(fact):
                return [path, "never"]
        if not self._is_made(path) and not (kind == "file" and fact[4] >= self._begun and _is_gone(path)):
            return [path, "never"]
        identity = file_identity.identity_at(path)
        return [path, "file", *identity] if kind == "file" and identity is not None else None

    def _settled_names(self, path: str, fact: Row) -> Row:
        now = conditions.names_of(path)
        device, inode, _, modified, changed = fact
        is_same = now[:4] == [device, inode, modified, changed]
        if is_same or any(os.path.dirname(made) == path for made in self._made):  # noqa: PTH120
            return [path, "names", *now]
        return [path, "never"]

    def _is_older(self, fact: Row) -> bool:
        """Return whether a file existed before the call, by its identity when the call read the file."""
        device, inode, _, modified, changed = fact
        if (device, inode) in self._new_files or (changed >= self._begun and self._has_run_programs):
            return False
        return min(modified, changed) < self._begun

    def _is_made(self, path: str) -> bool:
        """Return whether the call has made or removed a path, or a folder that it is in."""
        while len(path) > 1:
            if path in self._made:
                return True
            path = os.path.dirname(path)  # noqa: PTH120
        return False

    # ---------------------------------------------------------------------------- what is not seen

    def unseen(self) -> list[str]:
        """Return why there may be more."""
        return list(self._unseen)

    def _add_program(self, record: Record) -> None:
        self._has_run_programs = True
        name = os.path.basename(record.path)  # noqa: PTH119
        if name not in HARMLESS:
            command = f" ({record.target[:80]})" if record.target else ""
            self._unseen[f"it started another program: {record.path}{command}"] = None

    def _add_socket(self, record: Record) -> None:
        if record.flags in (_AF_INET, _AF_INET6):
            self._unseen["it used the network"] = None
        elif record.flags == _AF_UNIX and "/pymp-" not in record.path:
            self._unseen[f"it spoke to another process: {record.path or 'an abstract socket'}"] = None


def _plain(path: str) -> str:
    """Return a path without what changes nothing: ``/./`` and doubled or final slashes."""
    if "//" in path or "/./" in path or path.endswith(("/", "/.")):
        return f"/{'/'.join(part for part in path.split('/') if part not in ('', '.'))}"
    return path


def _without_parents(rows: list[Row]) -> list[Row]:
    """Leave out rows of folders that other rows imply: a file exists only in an existing folder."""
    parents = {sys.prefix, "/"}
    for path in (
        sys.prefix,
        sys.base_prefix,
        *(row[0] for row in rows if row[1] in ("file", "names", "link")),
    ):
        parent = path if path == sys.base_prefix else os.path.dirname(path)  # noqa: PTH120
        while parent not in parents:
            parents.add(parent)
            parent = os.path.dirname(parent)  # noqa: PTH120
    return [row for row in rows if row[1] != "folder" or row[0] not in parents]


def _is_gone(path: str) -> bool:
    return not os.path.lexists(path)


def _counts(path: str, mode: int) -> bool:
    """Return whether a path may be another without something being installed."""
    if path.startswith(_SYSTEM):
        return path.startswith("/dev/shm/")
    if program.is_generated(path):
        return False
    if program.is_installed(path):
        # Data in a package counts, be it a model; what is code, missing or a folder comes with an installation.
        return (
            stat.S_ISREG(mode) and not path.endswith(_CODE) and not any(mark in path for mark in _OF_RELEASES)
        )
    return True
