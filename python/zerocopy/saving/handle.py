"""``zerocopy.Saving``: the progress and the outcome of a save in the background."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from zerocopy.progress import Progress
from zerocopy.saving import turns

_log = logging.getLogger("zerocopy")
#: Between two calls of a function `progress`.
PROGRESS_SECONDS = 0.1


class Saving:
    """A save in the background. ``zerocopy.save(..., wait=False)`` returns it.

    The save ends by itself, whether or not this object is kept. At the end of the program Python waits for it. An
    error that no :meth:`wait` has raised is logged, when the object goes away or the program ends. A Saving belongs to
    the process that began it: in a child of ``fork``, :attr:`done` and :meth:`wait` raise ``RuntimeError``.

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
        self._path, self._total, self._callback = path, total, progress
        self._ended, self._process = threading.Event(), os.getpid()
        self._error: BaseException | None = None
        self._is_reported = False  # the program has got the error
        self._count: Callable[[], int] = int  # returns the number of bytes written
        self._last_told, self._told_at = 0, 0.0

    def __repr__(self) -> str:
        written, total = self.progress
        state = f"{written} of {total} bytes"
        if self._ended.is_set():
            state = "failed" if self._error else "done"
        return f"<zerocopy.Saving {self._path!r}: {state}>"

    def __del__(self) -> None:
        if "_last_told" in vars(self) and self._ended.is_set():  # a signal may have ended __init__
            self._log_error()

    @property
    def done(self) -> bool:
        """Return whether the save has ended, well or not."""
        self._require_own()
        return self._ended.is_set()

    @property
    def progress(self) -> tuple[int, int]:
        """The number of bytes of storages that were written, and the number of all of them."""
        return self._count(), self._total

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
            Another process began this save, or the caller is the function `progress` of a save to the same path.
        OSError
            The operating system refused: no room, no permission, no such folder. The old file is unchanged.
        Exception
            The function `progress` of ``zerocopy.save`` raised it. The file is whole.
        """
        self._require_own()
        if not self._ended.is_set():
            turns.require_outside(os.path.realpath(self._path))
        if not self._ended.wait(timeout):
            written, total = self.progress
            raise TimeoutError(f"not saved within {timeout} seconds: {written} of {total} bytes are written")
        self._is_reported = True
        if self._error is not None:
            raise self._error

    def _require_own(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(f"a Saving belongs to the process that began it, {self._process}")

    def _log_error(self) -> None:
        if self._error is not None and not self._is_reported and os.getpid() == self._process:
            self._is_reported = True
            _log.error("%s was not saved: %r", self._path, self._error)

    # ------------------------------------------------------------------ called by the thread that saves

    def _tell_progress(self, *, at_end: bool = False) -> None:
        """Call the program's function, ten times a second at most, and no more after it has raised something."""
        now = time.monotonic()
        written = self._count()
        if self._callback is None or written == self._last_told:
            return
        if at_end or now - self._told_at >= PROGRESS_SECONDS:
            self._last_told, self._told_at = written, now
            try:
                self._callback(written, self._total)
            except BaseException as error:
                self._callback, self._error = None, error

    def _note_end(self, error: BaseException | None) -> None:
        """Record how the save ended, before :meth:`wait` returns."""
        written = self._total if error is None else self._count()
        self._count = lambda: written
        if error is None:
            self._tell_progress(at_end=True)
        else:
            self._error = error
        if self._error is not None:
            _failed.add(self)
        self._callback = None


_failed: weakref.WeakSet[Saving] = weakref.WeakSet()


def ended(f: Any, total: int) -> Saving:
    """Return a ``Saving`` of a save that is over."""
    saving = Saving(os.fspath(f) if isinstance(f, (str, os.PathLike)) else repr(f), total)
    saving._note_end(None)
    saving._ended.set()
    return saving


@atexit.register
def _log_errors() -> None:
    """Log the errors that the program did not get. Python has waited for the threads that save before this."""
    for saving in list(_failed):
        saving._log_error()
