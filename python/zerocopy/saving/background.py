"""Saves in the background: ``zerocopy.save(..., wait=False)``.

A thread does everything after the pickling: it takes the turn, makes the file, takes the snapshot, and waits for the
process that writes, or writes itself. So no signal handler can come in between. The call only waits for the snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import threading
from typing import Any

from zerocopy import _core
from zerocopy.progress import Progress
from zerocopy.saving import snapshot
from zerocopy.saving.archive import PickleWithStorages
from zerocopy.saving.atomic_file import log_lost, take_names
from zerocopy.saving.handle import PROGRESS_SECONDS, Saving
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.turns import Turn

_log = logging.getLogger("zerocopy")
# waitpid() reports the end of the writing process only if it is asked for children of every kind (linux/wait.h).
_WALL = 0x40000000
_GONE = (
    "a file that is mapped was cut, or a tensor lies in memory that a copy of the process does not have "
    "(MADV_DONTFORK): save it with wait=True"
)


def begin(
    parts: PickleWithStorages, f: Any, alignment: int, checksum: bool, progress: Progress | None, syncs: bool
) -> Saving:
    """Begin to save the parts of an object as they are now."""
    saving = Saving(os.fspath(f), parts.total, progress)
    mapped = MappedFiles()
    job = _Job(saving, parts, snapshot.sorted_storages(parts, mapped), mapped, (alignment, checksum), syncs)
    try:
        try:
            threading.Thread(target=job.run, name="zerocopy-save", daemon=False).start()
        except RuntimeError:  # no thread can start: the program is ending, or has too many threads
            job.run()
        job.has_snapshot.wait()
    except BaseException:  # from a signal handler: there may be no snapshot yet
        job.is_given_up = saving._is_reported = True
        raise
    return saving


class _Job:
    """The work behind a Saving."""

    def __init__(
        self,
        saving: Saving,
        parts: PickleWithStorages,
        storages: snapshot.Storages,
        mapped: MappedFiles,
        options: tuple[int, bool],
        syncs: bool,
    ) -> None:
        self._saving, self._mapped, self._options, self._syncs = saving, mapped, options, syncs
        self._target = os.path.realpath(saving._path)
        self._sources: tuple[PickleWithStorages, snapshot.Storages] | None = (parts, storages)
        self.has_snapshot, self.is_given_up = threading.Event(), False

    def run(self) -> None:
        """Save, and record how that ended."""
        with Turn(self._target) as turn:
            error: BaseException | None = None
            try:
                new = _core.NewFile(self._target, syncs=self._syncs)
                with self._mapped, contextlib.closing(new):
                    self._save(turn, new)
            except OSError as raised:
                error = OSError(raised.errno, raised.strerror, self._saving._path)
            except BaseException as raised:
                error = raised.with_traceback(None)  # its frames would keep the Saving
            self._saving._note_end(error)
        turn.process_end = None  # the traceback of a function `progress` may keep the turn
        self._saving._ended.set()
        self.has_snapshot.set()

    def _save(self, turn: Turn, new: _core.NewFile) -> None:
        assert self._sources is not None, "run() is called once"
        reason = snapshot.why_not_to_fork(self._sources[1])
        ends = [earlier.process_end for earlier in turn.earlier()]
        if not all(ends):
            reason = reason or "an earlier save to this file goes on in a thread"
        if not reason:
            try:
                plan, _ = snapshot.plan(*self._sources, new, self._mapped, self._options, copies=False)
                self._require_a_call()
                process = plan.writer.begin_in_copy([end.fileno() for end in ends if end])
            except InterruptedError:
                raise
            except OSError as error:
                reason = str(error)
                _log.info("%s: copying what is saved: %s", self._saving._path, reason)
            else:
                self._sources = None
                self._wait_for(process, plan.writer, turn)
                return
        _log.debug("%s: written by a thread: %s", self._saving._path, reason)
        plan, memory = snapshot.plan(*self._sources, new, self._mapped, self._options, copies=True)
        self._sources = None
        self._begin(plan.writer)
        plan.carry_out(lambda _: self._saving._tell_progress())
        new.sync()
        turn.wait()
        take_names([(new, self._target)])
        del memory  # which the plan reads

    def _begin(self, writer: _core.ArchiveWriter) -> None:
        """Release the call of ``save``, which returns now that the snapshot was taken."""
        self._saving._count = lambda: writer.written
        self.has_snapshot.set()
        self._require_a_call()

    def _require_a_call(self) -> None:
        """Raise if the call has failed: the program may change the object from then on."""
        if self.is_given_up:
            raise InterruptedError(errno.EINTR, "the call that began it has failed")

    def _wait_for(self, process: int, writer: _core.ArchiveWriter, turn: Turn) -> None:
        """Wait for the process that writes."""
        status = None
        try:
            with contextlib.suppress(OSError):  # a kernel without pidfd_open
                turn.process_end = _core.Descriptor.of_process(process)
            self._begin(writer)
            if turn.process_end:
                end = select.poll()
                end.register(turn.process_end, select.POLLIN)
                while not end.poll(PROGRESS_SECONDS * 1000):
                    self._saving._tell_progress()
        except BaseException:
            os.kill(process, signal.SIGKILL)
            raise
        finally:
            with contextlib.suppress(ChildProcessError):  # somebody else has waited for the process
                status = os.waitpid(process, _WALL)[1]
        is_finished, number, lost = writer.report()
        if is_finished:
            log_lost(self._target, lost)
        elif number == 0:
            raise ChildProcessError(errno.ECHILD, f"the process that wrote it {_how_it_ended(status)}")
        else:
            raise (
                OSError(errno.ESTALE, _GONE)
                if number == errno.EFAULT
                else OSError(number, os.strerror(number))
            )


def _how_it_ended(status: int | None) -> str:
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was ended by {signal.Signals(number).name if number in set(signal.Signals) else number}"
    return "has ended before it was done"
