"""The folder of warm starts, and the records in it: which modules a program imported the last time.

Only its user can access the folder. A wrong record does no harm: the program then starts cold.
"""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

_LIFETIME = 86400.0  # seconds


def folder() -> str:
    """Return the folder of records and sockets; create it if needed. ``OSError``, also if others may write to it."""
    user = os.geteuid()
    base = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    if not (base.startswith("/") and os.access(base, os.W_OK | os.X_OK)):
        base = os.environ.get("TMPDIR") or "/tmp"
    place = base
    for name in (f"zerocopy-{user}", "warm"):
        place = f"{place}/{name}"
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            os.mkdir(place, 0o700)
            status = os.lstat(place)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(
                f"{place}: expected a folder of user {user} with mode 700: remove it, or change its mode"
            )
    return place


def short(text: str) -> str:
    """Return a file name for a text. Two texts may have the same name, so each file records its text."""
    data = text.encode("utf-8", "surrogateescape")
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


class Record(NamedTuple):
    """The imports of a program's last run.

    Attributes
    ----------
    program : str
        The program, as its full path or its module name.
    modules : list of str
        The modules that it imported from the standard library and site-packages, in order.
    foreign : list of str
        Installed modules that a finder of the program's own has loaded.
    excluded : list of str
        Packages that a fork server must not import, because they print, start threads or open files.
    variables : list of str
        Environment variables that these imports read; ``sys.argv`` if they read the arguments.
    set_by_imports : dict
        Environment variables that these imports set, and removed ones as None.
    changes : dict
        Environment variables that the program changed. Each has the installed modules that changed it when they were
        imported ("" for the program's own code), and how many of `modules` came before.
    script : int
        A checksum of the script.
    doubt : str
        The reason why the program is not started warm; empty if it is.
    """

    program: str
    modules: list[str] = []  # noqa: RUF012
    foreign: list[str] = []  # noqa: RUF012
    excluded: list[str] = []  # noqa: RUF012
    variables: list[str] = []  # noqa: RUF012
    set_by_imports: dict[str, str | None] = {}  # noqa: RUF012
    changes: dict[str, dict[str, int]] = {}  # noqa: RUF012
    script: int = 0
    doubt: str = ""


def path_of(program: str) -> str:
    """Return the path of a program's record."""
    return f"{folder()}/{short(program)}.json"


def socket_of(circumstances: str) -> str:
    """Return the path of the socket of the fork server for some circumstances."""
    return f"{folder()}/{short(circumstances)}.sock"


def sockets() -> Iterator[str]:
    """Yield the paths of all sockets of fork servers."""
    place = folder()
    for name in sorted(os.listdir(place)):
        if name.endswith(".sock") and not name.startswith("."):
            yield f"{place}/{name}"


def load(program: str) -> Record | None:
    """Return a program's record, or None without a usable one. After a day, records are renewed."""
    try:
        if time.time() - os.stat(path_of(program)).st_mtime > _LIFETIME:
            return None
        with open(path_of(program), encoding="utf-8", errors="surrogateescape") as file:
            found: Any = json.load(file)
        record = Record(**{name: found[name] for name in Record._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.program == program else None


def save(record: Record) -> None:
    """Replace the program's record. ``OSError``."""
    path = path_of(record.program)
    fresh = f"{path}.{os.getpid()}"
    content = json.dumps(record._asdict())
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:  # such as a full disk
        os.unlink(fresh)
        raise
