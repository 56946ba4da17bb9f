"""Carries out the requests of a plan: several threads, each request straight into the tensors it is for."""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.lazy.reading.read_plan import FileReads
from zerocopy.lazy.reading.segments import Segment
from zerocopy.loading import backends
from zerocopy.loading.extents import contiguous_strides
from zerocopy.process.os_errors import naming

# Less than this from a local file is read by the calling thread: starting others takes longer.
_FEW_BYTES = 1 << 20
# Copies within memory move whole elements, whatever these mean.
_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class _Target(NamedTuple):
    """A strided CPU tensor that parts are read into: its storage's memory, and the tensor's first byte in it."""

    tensor: torch.Tensor
    memory: memoryview
    first: int
    itemsize: int


class _Task(NamedTuple):
    """Requests to one open file, which one thread carries out."""

    descriptor: int
    path: str
    requests: Sequence[Segment]


def run(files: list[FileReads], targets: Sequence[torch.Tensor]) -> None:
    """Read files into tensors. :func:`is_direct` must be true of each tensor.

    Raises
    ------
    OSError
        The operating system refused, or a file changed (ESTALE).
    """
    with ExitStack() as opened:
        descriptors = []
        for file in files:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        _require_versions(files, descriptors)
        threads = max((backends.threads_for(os.fsencode(file.path)) for file in files), default=1)
        tasks = list(_tasks(files, descriptors, threads))
        is_small = threads <= backends.LOCAL_THREADS and sum(file.nbytes for file in files) <= _FEW_BYTES
        _Crew(tasks, [_target(tensor) for tensor in targets]).work(
            1 if is_small else min(threads, len(tasks))
        )
        _require_versions(files, descriptors)


def _target(tensor: torch.Tensor) -> _Target:
    itemsize = _torch.element_size(tensor.dtype)
    memory = _torch.bytes_of(_torch.untyped_of(tensor))
    return _Target(tensor, memory, int(tensor.storage_offset()) * itemsize, itemsize)


def _require_versions(files: list[FileReads], descriptors: list[int]) -> None:
    for file, descriptor in zip(files, descriptors, strict=True):
        if file.version is not None:
            file.version.require(descriptor, file.path)


def _tasks(files: list[FileReads], descriptors: list[int], threads: int) -> Iterator[_Task]:
    """Yield tasks: several for each thread, so that all end at about the same time."""
    number = sum(len(file.requests) for file in files)
    each = max(1, number // (4 * threads))
    for file, descriptor in zip(files, descriptors, strict=True):
        for first in range(0, len(file.requests), each):
            yield _Task(descriptor, file.path, file.requests[first : first + each])


class _Crew:
    """Threads that share tasks. The first error ends the work of all.

    :meth:`work` does not wait for a thread to begin: without memory, a thread may end before its first line. A thread
    that begins late finds no tasks.
    """

    def __init__(self, tasks: list[_Task], targets: Sequence[_Target]) -> None:
        self._targets = targets
        self._next, self._changed = iter(tasks), threading.Condition()
        self._helpers = 0  # threads that are working
        self._error: BaseException | None = None
        self._stop = False

    def work(self, threads: int) -> None:
        try:
            with contextlib.suppress(RuntimeError, MemoryError):  # no more threads: fewer do the work
                for _ in range(threads - 1):
                    _thread.start_new_thread(self._help, ())
            self._work()
            self._wait_for_helpers()
        except BaseException:  # interrupted: the targets must not be written to any more
            self._stop = True
            self._wait_for_helpers()
            raise
        if self._error is not None:
            raise self._error

    def _wait_for_helpers(self) -> None:
        with self._changed:
            while self._helpers:
                self._changed.wait()

    def _help(self) -> None:
        with self._changed:
            if self._stop:
                return
            self._helpers += 1
        try:
            self._work()
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify()

    def _work(self) -> None:
        try:
            while not self._is_over():
                with self._changed:
                    task = next(self._next, None)
                if task is None:
                    return
                for request in task.requests:
                    if self._is_over():
                        return
                    self._read(task, request)
        except BaseException as error:
            self._stop = True
            self._error = self._error or error

    def _is_over(self) -> bool:
        return self._stop

    def _read(self, task: _Task, segment: Segment) -> None:
        target = self._targets[segment.target]
        if segment.dims:
            scratch = torch.empty(segment.nbytes, dtype=torch.uint8, device="cpu")
            _read_all(task, _torch.bytes_of(_torch.untyped_of(scratch)), segment.offset)
            _spread(segment, scratch, target)
        else:
            _read_rows(task, segment, target)


def _read_rows(task: _Task, segment: Segment, target: _Target) -> None:
    """Read runs that are far from each other. There may be very many: the loop does as little as it can."""
    read, memory, nbytes = os.preadv, target.memory, segment.nbytes
    offset, at = segment.offset, target.first + segment.at
    with naming(task.path):
        for _ in range(segment.rows):
            run = memory[at : at + nbytes]
            if read(task.descriptor, (run,), offset) != nbytes:
                # Read again: the read was short, or the file ends here and this raises the error.
                _read_all(task, run, offset)
            offset += segment.step
            at += segment.target_step


def _read_all(task: _Task, buffer: memoryview, offset: int) -> None:
    """Fill a buffer from a file. Usually one system call is enough."""
    while buffer:
        with naming(task.path):
            got = os.preadv(task.descriptor, (buffer,), offset)
        if got == 0:
            raise OSError(
                errno.ESTALE, f"the file ends at {offset:#x}: it was cut since it was opened", task.path
            )
        buffer, offset = buffer[got:], offset + got


def _spread(segment: Segment, scratch: torch.Tensor, target: _Target) -> None:
    """Copy elements from a run with gaps to where they belong."""
    unit = _UNITS[target.itemsize]
    size = [n for n, _, _ in segment.dims]
    source = _C.view(_torch.untyped_of(scratch), unit, 0, size, [step for _, step, _ in segment.dims])
    first = (target.first + segment.at) // target.itemsize
    steps = [step for _, _, step in segment.dims]
    _C.view(_torch.untyped_of(target.tensor), unit, first, size, steps).copy_(source)


def is_direct(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether bytes of a file can be read straight into a tensor."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype == dtype
        and not tensor.is_quantized
        and not (tensor.is_conj() or tensor.is_neg())
        and _has_own_elements(tensor)
    )


def _has_own_elements(tensor: torch.Tensor) -> bool:
    """Return True only if it is certain that no two elements share memory: otherwise torch refuses to write."""
    if tensor.is_contiguous() or tensor.stride() == contiguous_strides(tuple(tensor.shape)):
        return True
    reach = 1
    dims = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for step, n in dims:
        if n > 1 and step < reach:
            return False
        reach += (n - 1) * step
    return True
