"""The environment variables and arguments of the program, and which of them a call reads.

All variables are a condition of a result, because a module that was imported before the call may have read any.
Variables of a session or of a launcher differ from process to process, so they count only if the call reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from zerocopy.process import descendants

#: Variables that count only if the call reads them by name.
_SESSION = frozenset(
    [
        *("_", "COLORTERM", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "INVOCATION_ID", "JOURNAL_STREAM"),
        *("LS_COLORS", "OLDPWD", "PWD", "SHLVL", "STY", "SYSTEMD_EXEC_PID", "TERM_PROGRAM"),
        *("TERM_PROGRAM_VERSION", "TMUX", "TMUX_PANE", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
    ]
)
_FAMILIES = (
    "SSH_",
    "XDG_SESSION_",
    "XDG_VTNR",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PYTEST_",
)
#: Variables that decide how progress looks, where temporary files lie, or how torch compiles: they never count.
_IGNORED = frozenset(["COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TMPDIR", "TEMP", "TMP"])
_IGNORED_FAMILIES = ("ZEROCOPY_", "KMP_", "TORCHINDUCTOR_", "TRITON_")


def _never_counts(name: str) -> bool:
    return name in _IGNORED or name.startswith(_IGNORED_FAMILIES)


def _counts_if_read(name: str) -> bool:
    return name in _SESSION or name.startswith(_FAMILIES)


class Variables(NamedTuple):
    """All variables, and a digest of those that count whether they are read or not."""

    values: dict[str, str]
    digest: str


def variables() -> Variables:
    """Return the variables as they are, without those of ``zerocopy run``."""
    global _last
    # Python's own dictionary of bytes: reading os.environ takes ten times as long, and would be recorded.
    found = getattr(os.environ, "_data", None)
    content = found if isinstance(found, dict) else dict(os.environb)
    if _last is None or _last[0] != content:
        content = dict(content)
        _last = content, _described(content)
    return _last[1]


_last: tuple[dict[bytes, bytes], Variables] | None = None


def _described(content: dict[bytes, bytes]) -> Variables:
    decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in content.items()}
    found = descendants.unreached(decoded)
    counting = sorted(
        item for item in found.items() if not (_never_counts(item[0]) or _counts_if_read(item[0]))
    )
    text = repr(counting).encode(errors="surrogateescape")
    return Variables(found, hashlib.blake2b(text, digest_size=16).hexdigest())


class _HeardEnviron(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` while reads of it are noted."""

    notes: tuple[Callable[[str], object], ...] = ()

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, (str, bytes)):
            for note in self.notes:
                note(os.fsdecode(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        # A call that reads all names also sees which are missing.
        for note in self.notes:
            for name in _SESSION:
                note(name)
        return super().__iter__()


class _HeardArguments(list[str]):
    """``sys.argv`` while reads of it are noted."""

    def __init__(self, content: list[str], note: Callable[[], object]) -> None:
        super().__init__(content)
        self._note = note

    def __reduce__(self) -> tuple[Any, ...]:
        self._note()
        return list, (list(self),)


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: _HeardArguments, *args: Any) -> Any:
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        if not asking.startswith(("zerocopy.", "torch.")):
            self._note()
        return method(self, *args)

    return noted


for _name in (
    *("__getitem__", "__iter__", "__reversed__", "__len__", "__contains__", "__repr__", "__add__"),
    *("__mul__", "__rmul__", "copy", "count", "index", "pop", "__eq__", "__ne__", "__lt__", "__le__"),
    *("__gt__", "__ge__"),
):
    setattr(_HeardArguments, _name, _noting(getattr(list, _name)))


class Reads:
    """Reads of the environment and the arguments within a block.

    Attributes
    ----------
    digest : str
        The digest of the variables when the block began.
    argv : list of str or None
        The arguments when the block began, if the call read them.
    """

    def __init__(self) -> None:
        self._before, self.digest = variables()
        self._argv = list(getattr(sys, "argv", []))
        self._names: set[str] = set()
        self.argv: list[str] | None = None

    def variables(self) -> dict[str, str | None]:
        """Return the values that variables of the session and the launcher had, if they were read."""
        return {name: self._before.get(name) for name in sorted(self._names)}

    def _note_variable(self, name: str) -> None:
        if _counts_if_read(name) and not _never_counts(name):
            self._names.add(name)

    def _note_arguments(self) -> None:
        self.argv = self._argv

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Record what is read within a block."""
        note = self._note_variable
        classes = type(os.environ), type(os.environb)
        if not issubclass(classes[0], _HeardEnviron):
            os.environ.__class__ = os.environb.__class__ = _HeardEnviron
        _HeardEnviron.notes += (note,)
        before, heard = sys.argv, _HeardArguments(sys.argv, self._note_arguments)
        sys.argv = heard
        try:
            yield
        finally:
            if sys.argv is heard:
                before[:] = heard
                sys.argv = before
            _HeardEnviron.notes = tuple(other for other in _HeardEnviron.notes if other is not note)
            if not _HeardEnviron.notes:
                os.environ.__class__, os.environb.__class__ = os._Environ, os._Environ
