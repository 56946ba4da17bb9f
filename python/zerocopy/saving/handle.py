"""``zerocopy.Saving``: how far a save is that goes on in the background, and how it ended."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
import weakref
from typing import Any, NamedTuple, cast

from zerocopy.progress import Progress

_log = logging.getLogger("zerocopy")


class Report(NamedTuple):
    """The writer's progress, in memory that it shares with this process."""

    written: int  # bytes of storages
    state: int
    error: int  # an errno


RUNNING, FINISHED, _FAILED = range(3)
_REPORT = struct.Struct("=Qii")  # container/planned_archive.h: SaveReport


class Saving:
    """A save that goes on while the program does: what ``zerocopy.save(..., wait=False)`` returns.

    The save ends by itself, whether or not this object is kept. At the end of the program Python waits for it. An
    error that no :meth:`wait` has raised is logged, when the object goes away or the program ends. A Saving belongs to
    the process that began it: in a child of ``fork``, :attr:`done` and :meth:`wait` raise ``RuntimeError``.

    Attributes
    ----------
    path : str
        The path of the file that is written.

    Examples
    --------
    >>> import tempfile, pathlib, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> saving = zerocopy.save({"weight": torch.arange(4.0)}, path, wait=False)
    >>> saving.wait()
    >>> saving.done, saving.progress
    (True, (16, 16))
    """

    def __init__(self, path: str, total: int, progress: Progress | None = None) -> None:
        self.path = path
        self._ended, self._error = threading.Event(), cast("BaseException | None", None)
        self.is_told = False  # somebody has the error
        self._process = os.getpid()
        self._total, self._callback = total, progress
        self._last_told: tuple[int, int] | None = None
        self._teller: int | None = None  # the thread that is calling the program's function
        self.shared_report = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the process that writes

    def __repr__(self) -> str:
        written, total = self.progress
        state = (
            f"{written} of {total} bytes" if not self._ended.is_set() else "failed" if self._error else "done"
        )
        return f"<zerocopy.Saving {self.path!r}: {state}>"

    def __del__(self) -> None:
        if "_ended" in vars(self) and self._ended.is_set():  # a signal may have ended __init__
            self._log_error()

    @property
    def done(self) -> bool:
        """Return whether the save has ended, well or not."""
        self._require_own()
        return self._ended.is_set()

    @property
    def tells_progress(self) -> bool:
        """Return whether the program passed a function `progress`."""
        return self._callback is not None

    @property
    def progress(self) -> tuple[int, int]:
        """The number of bytes of storages that were written, and the number of all of them."""
        report = self.report()
        return (self._total if report.state == FINISHED else report.written), self._total

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the file is whole, on the disk, and has its name.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: no limit.

        Raises
        ------
        TimeoutError
            The save has not ended by then. It goes on.
        RuntimeError
            Another process began this save, or the save's own function `progress` waits.
        OSError
            The operating system refused: no room, no permission, no such folder. The old file is unchanged.
        Exception
            The function `progress` of ``zerocopy.save`` raised it. The file is whole.
        """
        self._require_own()
        self._require_other_thread()
        if not self._ended.wait(timeout):
            written, total = self.progress
            raise TimeoutError(f"not saved within {timeout} seconds: {written} of {total} bytes are written")
        self.is_told = True
        if self._error is not None:
            raise self._error

    def report(self) -> Report:
        """Return what the writer says."""
        return Report(*_REPORT.unpack_from(self.shared_report))

    def join(self) -> None:
        """Wait until the save has ended, well or not."""
        self._require_other_thread()
        self._ended.wait()

    def _require_own(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(f"a Saving belongs to the process that began it, {self._process}")

    def _require_other_thread(self) -> None:
        if self._teller == threading.get_ident():
            raise RuntimeError(f"{self.path}: the function `progress` cannot wait for the save that calls it")

    def _log_error(self) -> None:
        if self._error is not None and not self.is_told and os.getpid() == self._process:
            self.is_told = True
            _log.error("%s was not saved: %r", self.path, self._error)

    def tell_progress(self, *, at_end: bool = False) -> None:
        """Call the program's function. It is called no more after it has raised something."""
        if self._callback is None:
            return
        callback = self._callback
        if at_end:
            self._callback = None
        if (now := self.progress) == self._last_told:
            return
        self._last_told = now
        self._teller = threading.get_ident()
        try:
            callback(*now)
        except BaseException as error:
            self._callback, self._error = None, error
        finally:
            self._teller = None

    def end(self, error: BaseException | None) -> None:
        """Note how it ended."""
        if error is None:
            self.tell_progress(at_end=True)
        else:
            self._error = error
        if self._error is not None:
            _failed.add(self)
        self._callback = None
        self._ended.set()


_failed: weakref.WeakSet[Saving] = weakref.WeakSet()


def ended(f: Any, total: int) -> Saving:
    """Return what stands for a save that is over."""
    saving = Saving(os.fspath(f) if isinstance(f, (str, os.PathLike)) else repr(f), total)
    _REPORT.pack_into(saving.shared_report, 0, total, FINISHED, 0)
    saving.end(None)
    return saving


def log_errors() -> None:
    """Log the errors that nobody was told."""
    for saving in list(_failed):
        saving._log_error()
