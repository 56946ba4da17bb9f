"""``zerocopy.prefetch``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from zerocopy import _torch, environment, remote
from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.file import LazyFile
from zerocopy.lazy.layer import FileLayer
from zerocopy.lazy.placeholder import NotYetLoadedTensor
from zerocopy.loading import backends, inputs
from zerocopy.loading.formats import model_folder
from zerocopy.progress import Progress, require_progress

_BETWEEN_LOOKS = 50  # milliseconds

_CONTAINERS = (Mapping, list, tuple, set, frozenset)
_HOLDERS = (torch.Tensor, torch.nn.Module, Checkpoint, *_CONTAINERS)


class Prefetch:
    """A running :func:`prefetch`.

    The reading continues if this object is dropped, and ends with the process at the latest. A forked process does not
    have the threads that read, so there the object counts as done.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1000)}, file.name)
    >>> reading = zerocopy.prefetch(file.name)
    >>> reading.wait(), reading.done, reading.bytes_done == reading.bytes_total
    (True, True, True)
    >>> reading.cancel()  # nothing is left to cancel
    """

    def __init__(self, readings: list[_C.BackgroundReading]) -> None:
        self._readings = readings
        self._process = os.getpid()
        self._fault: BaseException | None = None
        self._reporter: threading.Thread | None = None

    @property
    def done(self) -> bool:
        """Return whether the reading has ended: it is complete, was cancelled, or failed."""
        return self._is_elsewhere() or all(reading.wait(0) for reading in self._readings)

    @property
    def bytes_done(self) -> int:
        """The number of bytes that were read."""
        return sum(reading.done for reading in self._readings)

    @property
    def bytes_total(self) -> int:
        """The number of bytes to read."""
        return sum(reading.size for reading in self._readings)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the reading has ended.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: no limit.

        Returns
        -------
        bool
            Whether the reading has ended; False after a timeout.

        Raises
        ------
        OSError
            A file could not be read: with its errno and its name.
        Exception
            The function `progress` of ``zerocopy.prefetch`` raised it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._look():
            if until is not None and time.monotonic() >= until:
                return False
        if self._reporter not in (None, threading.current_thread()):
            self._reporter.join(timeout)
        if self._fault is not None:
            raise self._fault
        return True

    def cancel(self) -> None:
        """Stop the reading after the requests that are under way. Bytes that were read stay in memory."""
        for reading in self._readings:
            reading.cancel()

    def __repr__(self) -> str:
        state = "done" if self.done else "reading"
        return f"<zerocopy.Prefetch: {state}, {self.bytes_done} of {self.bytes_total} bytes>"

    def _is_elsewhere(self) -> bool:
        """Return whether this is a copy in a forked process, which does not have the threads."""
        return os.getpid() != self._process

    def _look(self) -> bool:
        """Wait a moment. Return whether the reading has ended, or raise its error."""
        if self._is_elsewhere():
            return True
        for reading in self._readings:
            if not reading.wait(_BETWEEN_LOOKS):
                return False
        for reading in self._readings:
            reading.rethrow()
        return True

    def _follow(self, progress: Progress | None) -> None:
        """Wait until the reading has ended, and report progress. An exception cancels the reading."""
        try:
            while not self._look():
                if progress:
                    progress(self.bytes_done, self.bytes_total)
            if progress:
                progress(self.bytes_done, self.bytes_total)
        except BaseException:
            self.cancel()
            while not all(reading.wait(_BETWEEN_LOOKS) for reading in self._readings):
                pass
            raise

    def _follow_aside(self, progress: Progress) -> None:
        def follow() -> None:
            try:
                self._follow(progress)
            except BaseException as fault:  # raised by wait(), in a thread that can do something about it
                self._fault = fault

        reporter = threading.Thread(target=follow, name="zerocopy.prefetch", daemon=True)
        try:
            reporter.start()
        except RuntimeError:  # the system allows no thread
            self._follow(progress)
        else:
            self._reporter = reporter


def prefetch(
    path_or_obj: Any, *, block: bool = False, progress: Progress | None = None, lock: bool = False
) -> Prefetch:
    """Read a file into memory (the page cache) with many requests at once.

    Without it, a program that touches a mapped file page by page waits for one request to the disk or network after the
    other. Tensors that are mapped now or later, by this process or others, find the pages in memory.

    Parameters
    ----------
    path_or_obj : str, PathLike, file object, or what ``load`` returned
        A path or an open file; an index of shards or a folder, whose files are all read. Or a tensor, a state dict, a
        module, a ``Checkpoint``, or containers of these: then the mapped pages of their tensors are read.
    block : bool
        True: return when everything is read. False: return at once, if the system allows another thread.
    progress : callable, optional
        Called several times a second with the bytes read so far and the total. Runs on this thread if `block` is true,
        otherwise on a thread of its own.
    lock : bool
        Keep the pages in memory (``mlock``), as long as the returned object lives. ``RLIMIT_MEMLOCK`` limits this.

    Returns
    -------
    Prefetch
        ``wait()``, ``cancel()``, ``done``.

    Raises
    ------
    OSError
        The file does not exist or cannot be read, or an open file was removed or changed. Errors of the reading itself
        are raised here if `block` is true, and by ``wait()`` otherwise.
    zerocopy.ClosedError
        A checkpoint was closed.
    TypeError
        The argument is not a file, and not an object that can hold tensors.

    Notes
    -----
    ``ZEROCOPY_NUM_THREADS`` limits the threads that read. If a file is larger than memory, reading its end evicts its
    beginning from the page cache.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1000)}, file.name)
    >>> zerocopy.prefetch(file.name, block=True).done
    True
    >>> state = zerocopy.load(file.name)
    >>> zerocopy.prefetch(state).wait()
    True
    """
    require_progress(progress)
    started = Prefetch(list(_readings_of(path_or_obj, lock)))
    if block:
        started._follow(progress)
    elif progress:
        started._follow_aside(progress)
    return started


def _readings_of(path_or_obj: Any, lock: bool) -> Iterator[_C.BackgroundReading]:
    if (path := path_of(path_or_obj)) is not None:
        paths, tensors = files_of(path), []
    else:
        leaves = list(leaves_of(path_or_obj, set()))
        opened = dict.fromkeys(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))
        paths = [path for each in opened for path in files_read_by(each)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for path in dict.fromkeys(paths):
        encoded = inputs.encoded(path)
        yield _C.read_path_ahead(encoded, backends.threads_for(encoded), lock)
    if tensors:
        # The file system is unknown here. The larger number suits both kinds.
        threads = environment.threads(backends.NETWORK_THREADS)
        storages = {_torch.untyped_of(tensor).data_ptr(): _torch.untyped_of(tensor) for tensor in tensors}
        yield _C.read_storages_ahead(list(storages.values()), threads, lock)


def path_of(path_or_obj: Any) -> str | os.PathLike[str] | None:
    """Return a path, or the path of an open file; None for an object that may hold tensors. Else raise TypeError."""
    if isinstance(path_or_obj, (str, os.PathLike)):
        return path_or_obj
    if isinstance(path_or_obj, _HOLDERS):
        return None
    name = getattr(path_or_obj, "name", None) if hasattr(path_or_obj, "read") else None
    if isinstance(name, (str, bytes)):
        return os.fsdecode(name)
    raise TypeError(
        "expected a path, a file that was opened by its path, a tensor, a module, a Checkpoint, or containers of "
        f"these, got {type(path_or_obj).__name__}"
    )


def leaves_of(obj: Any, seen: set[int]) -> Iterator[LazyFile | FileLayer | torch.Tensor]:
    """Yield the tensors of an object that are in memory, and the open files of its lazy tensors."""
    if isinstance(obj, NotYetLoadedTensor) and not obj.is_loaded:
        yield obj._recipe[0]
    elif isinstance(obj, NotYetLoadedTensor):
        yield from leaves_of(obj.materialize(), seen)
    elif isinstance(obj, torch.Tensor):
        if obj.layout is torch.strided and obj.device.type == "cpu":
            yield obj
    elif id(obj) in seen:
        return
    elif isinstance(obj, torch.nn.Module):
        yield from (leaf for tensor in obj.parameters() for leaf in leaves_of(tensor, seen))
        yield from (leaf for tensor in obj.buffers() for leaf in leaves_of(tensor, seen))
    elif isinstance(obj, Checkpoint):
        for layer in obj.layers:
            yield from [layer] if isinstance(layer, FileLayer) else map(layer.tensor, layer.names())
    elif isinstance(obj, _CONTAINERS):
        seen.add(id(obj))
        for item in obj.values() if isinstance(obj, Mapping) else obj:
            yield from leaves_of(item, seen)


def files_read_by(opened: LazyFile | FileLayer) -> list[str]:
    """Return the files that tensors will be read from. Return none for an opened buffer."""
    path = opened.current_path()
    if Path(path).is_file():
        return [path]
    return files_of(path) if Path(path).is_dir() else []


def files_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the files whose bytes a checkpoint is made of: shards and not their index."""
    if remote.is_url(path):
        raise UnsupportedError(
            f"{path}: prefetch fills the page cache of this machine, which has no files of a URL"
        )
    return model_folder.files_of(inputs.located(path))
