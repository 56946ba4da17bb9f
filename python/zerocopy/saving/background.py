"""Saves that go on while the program does: ``zerocopy.save(..., wait=False)``."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from zerocopy import _core
from zerocopy.process import interrupts
from zerocopy.progress import Progress
from zerocopy.saving import saves_under_way, snapshot
from zerocopy.saving.atomic_file import NewFile, created_for, is_special, new_name, path_of_file
from zerocopy.saving.handle import FINISHED, RUNNING, Saving, log_errors
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.saving.pickled_object import PickledObject
from zerocopy.saving.plan import Plan

_log = logging.getLogger("zerocopy")
_PROGRESS_SECONDS = 0.1
_POLL_SECONDS = 0.02  # where the kernel has no descriptors for processes
# The end of the writing process is told only to who asks for children of every kind (linux/wait.h).
_WALL = 0x40000000
_GONE = (
    "a file that is mapped was cut, or a tensor lies in memory that a copy of the process does not have "
    "(MADV_DONTFORK): save it with wait=True"
)


class _Job:
    """The work behind a Saving: a process or a thread that writes, and a thread that waits for its end.

    An exception of a signal handler can end the call of ``save`` at any moment, also while that thread starts. So
    whoever claims the job first ends it: the thread when it runs, or the call that gives it up.
    """

    def __init__(self, saving: Saving, target: Path, new: NewFile) -> None:
        self.saving, self._target, self._turn = saving, target, saves_under_way.Turn()
        self.new, self.temporary = new, new.name or new_name(target)
        self.keeps = contextlib.ExitStack()  # what the writer reads
        self.keeps.callback(os.close, new.descriptor)
        self._lock, self._claim = threading.Lock(), threading.Lock()
        self._planned: _core.PlannedSave | None = None
        self._process: int | None = None
        self._process_end: int | None = None  # a descriptor

    def join(self) -> None:
        """Wait until it has ended, well or not."""
        self.saving.join()

    @property
    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        return self.saving.done

    def process_end(self) -> int | None:
        """Return a descriptor that is readable when the writing process has ended; None if nothing tells it."""
        with self._lock:
            return None if self._process_end is None else os.dup(self._process_end)

    def planned(self, plan: Plan, earlier: list[int]) -> _core.PlannedSave:
        """Return what writes the file."""
        target, folder, temporary = map(os.fsencode, (self._target, self._target.parent, self.temporary))
        names = (target, folder, temporary, self.new.name is not None)
        report = self.saving.shared_report
        self._planned = _core.PlannedSave(plan, self.new.descriptor, names, earlier, report)
        return self._planned

    def watch(self, process: int) -> None:
        """Have a thread wait for the end of a process that writes."""
        self.keeps.close()  # the process has its own
        self._process = process
        with contextlib.suppress(OSError, AttributeError):
            self._process_end = os.pidfd_open(process)
        self._start(self._wait_for_process)

    def write_here(
        self, write: _core.PlannedSave, memory: object, earlier: list[saves_under_way.UnderWay]
    ) -> None:
        """Have a thread write."""
        self.keeps.callback(_forget, memory)
        self._start(lambda: self._write(write, earlier))

    def _start(self, function: Callable[[], None]) -> None:
        saves_under_way.add(self._target, self)
        # No daemon: Python waits for its end, and not only for that of the save.
        thread = threading.Thread(target=self._run, args=(function,), name="zerocopy-save", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no threads any more: the program is ending, or has too many
            self._run(function)

    def _run(self, function: Callable[[], None]) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            function()
        except BaseException as error:
            self.end(error)
            raise

    def give_up(self) -> None:
        """End a job that has begun no thread, or whose thread does not run yet."""
        if not self._claim.acquire(blocking=False):
            return
        process = None if self._planned is None else self._planned.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, _WALL)
        self.saving.is_told = True  # by the exception that ends the call
        self.end(InterruptedError(errno.EINTR, "the call that began it has failed", self.saving.path))

    def _write(self, write: _core.PlannedSave, earlier: list[saves_under_way.UnderWay]) -> None:
        for save in earlier:
            save.join()
        writer = threading.Thread(target=write.run, name="zerocopy-save-writer", daemon=True)
        try:
            if self.saving.tells_progress:
                writer.start()
        except RuntimeError:  # as above
            pass
        if writer.ident is None:
            write.run()
        while writer.is_alive():
            writer.join(_PROGRESS_SECONDS)
            self.saving.tell_progress()
        self.end(self._outcome(""))

    def _wait_for_process(self) -> None:
        assert self._process is not None
        status = None
        if self._process_end is not None:
            end = select.poll()
            end.register(self._process_end, select.POLLIN)
            while not end.poll(_PROGRESS_SECONDS * 1000 if self.saving.tells_progress else None):
                self.saving.tell_progress()
        with contextlib.suppress(ChildProcessError):  # another has waited for it
            while (waited := os.waitpid(self._process, _WALL | self._no_hang()))[0] == 0:
                time.sleep(_POLL_SECONDS)
                self.saving.tell_progress()
            status = waited[1]
        self.end(self._outcome(_how_it_ended(status)))

    def _no_hang(self) -> int:
        return os.WNOHANG if self._process_end is None and self.saving.tells_progress else 0

    def _outcome(self, how: str) -> OSError | None:
        """Return what the report says, or how the process ended that should have written it."""
        _, state, number = self.saving.report()
        path = self.saving.path
        if state == FINISHED:
            return None
        if state == RUNNING:
            return ChildProcessError(errno.ECHILD, f"the process that wrote it {how}", path)
        if number == errno.EFAULT:
            return OSError(errno.ESTALE, _GONE, path)
        return OSError(number, os.strerror(number), path)

    def end(self, error: BaseException | None) -> None:
        """Take everything away, and say how it ended."""
        if error is not None:
            with contextlib.suppress(OSError):
                self.temporary.unlink(missing_ok=True)
        self.keeps.close()
        with self._lock:
            if self._process_end is not None:
                os.close(self._process_end)
                self._process_end = None
        if error is None:
            saves_under_way.note_content(self._target, self._turn)
        self.saving.end(error)
        saves_under_way.remove(self._target, self)


def _forget(_: object) -> None:
    pass


def _how_it_ended(status: int | None) -> str:
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was ended by {signal.Signals(number).name}" if number in set(signal.Signals) else str(number)
    return "has ended before it was done"


@interrupts.deferred()  # while descriptors, a thread or a process begin that nobody would end
def begin(
    parts: PickledObject, f: str | os.PathLike[str], alignment: int, checksum: bool, progress: Progress | None
) -> Saving | None:
    """Begin to save the parts of an object as they are now; return None for what has to be written to directly."""
    saving = Saving(os.fspath(f), parts.total, progress)
    try:
        path = path_of_file(f)
        if is_special(path):
            return None
        target = Path(os.path.realpath(path))
        job = _Job(saving, target, created_for(target))
    except OSError as error:
        # Another one, since frames of this one would keep the Saving.
        saving.end(OSError(error.errno, error.strerror, error.filename))
        return saving
    try:
        _begin(job, parts, alignment, checksum, saves_under_way.to(target))
    except BaseException:
        job.give_up()
        raise
    return saving


def _begin(
    job: _Job, parts: PickledObject, alignment: int, checksum: bool, earlier: list[saves_under_way.UnderWay]
) -> None:
    mapped = job.keeps.enter_context(MappedFiles())
    device = os.fstat(job.new.descriptor).st_dev

    def known_checksum(place: FileExtent, size: int) -> int | None:
        # Only of blocks that both files have is it of use.
        return mapped.checksum_of(place, size) if os.fstat(place.descriptor).st_dev == device else None

    checksums = known_checksum if checksum else None
    with interrupts.allowed():
        storages = snapshot.sorted_storages(parts, mapped)
        reason = snapshot.why_not_to_fork(storages)
    with contextlib.ExitStack() as ends:
        descriptors = []
        for save in earlier:
            end = save.process_end()
            if end is not None:
                ends.callback(os.close, end)
                descriptors.append(end)
            elif not save.done:
                reason = reason or "an earlier save to this file goes on in a thread"
        if not reason:
            with interrupts.allowed():
                taken = snapshot.taken(parts, storages, alignment, checksums, copies=False)
            try:
                planned = job.planned(taken.plan, descriptors)
                planned.begin_in_copy()
            except OSError as error:
                reason = str(error)
                _log.info("%s: copying what is saved: %s", job.saving.path, reason)
            else:
                assert planned.process is not None
                job.watch(planned.process)
                return
    _log.debug("%s: written by a thread: %s", job.saving.path, reason)
    with interrupts.allowed():
        taken = snapshot.taken(parts, storages, alignment, checksums, copies=True)
    job.write_here(job.planned(taken.plan, []), taken.memory, earlier)


@atexit.register
def _wait_for_all() -> None:
    for save in saves_under_way.everywhere():
        save.join()
    log_errors()
