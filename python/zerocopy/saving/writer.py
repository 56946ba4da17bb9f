"""``zerocopy.Writer``: writes a checkpoint tensor by tensor, before the object that holds the tensors exists."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from zerocopy import _torch
from zerocopy._core import crc32
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.archive import CheckpointPlan, checked_alignment
from zerocopy.saving.atomic_file import path_of_file
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.pickled_object import require_one_dtype
from zerocopy.saving.pickler import Remake, Store, StoredTensorReplacer, identities, pickled
from zerocopy.saving.saver import target_of


class Writer:
    """Saves a checkpoint that memory cannot hold at once: a context manager.

    :meth:`store_early` writes tensors at once, and returns stand-ins for them. :meth:`save` writes the object that
    holds the stand-ins. ``torch.load`` reads the file. As with ``zerocopy.save``, the file gets its name at the end of
    the block: if anything goes wrong, or nothing was saved, the old file stays. Threads that use one Writer wait for
    each other.

    Parameters
    ----------
    path : str or PathLike
        Where to save.
    alignment : int
        As for ``zerocopy.save``.

    Raises
    ------
    OSError, ValueError
        As ``zerocopy.save``.

    Examples
    --------
    >>> import tempfile, pathlib, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> with zerocopy.Writer(path) as writer:
    ...     state = {}
    ...     for i in range(3):
    ...         state[f"layer{i}"] = writer.store_early(torch.full((2,), float(i)))
    ...     writer.save({"model": state, "layers": 3})
    >>> torch.load(path)
    {'model': {'layer0': tensor([0., 0.]), 'layer1': tensor([1., 1.]), 'layer2': tensor([2., 2.])}, 'layers': 3}
    """

    def __init__(self, path: str | os.PathLike[str], alignment: int = 64) -> None:
        self._path, self._alignment = path_of_file(path), checked_alignment(alignment)
        self._block = contextlib.ExitStack()
        self._lock = threading.RLock()
        self._records: CheckpointPlan | None = None
        self._is_saved, self._is_whole = False, True
        self._known: dict[Any, _Known] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._count = 0
        self._heap = Heap()

    def __enter__(self) -> Self:
        if self._records is not None:
            raise RuntimeError("a Writer writes one file, in one with block")
        target = self._block.enter_context(target_of(self._path, counts_from_end=True))
        self._records = CheckpointPlan(target, self._alignment, checksum=True, regular=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        was_saved, self._is_saved = self._is_saved, True  # nothing can be saved any more
        if error is None and not was_saved:
            forgotten = RuntimeError("nothing was saved: save() was not called in the block of this Writer")
            self._block.__exit__(RuntimeError, forgotten, None)
            raise forgotten
        self._block.__exit__(kind, error, trace)

    def store_early(self, obj: Any) -> Any:
        """Write tensors now, and return stand-ins for them.

        Parameters
        ----------
        obj : Tensor, Parameter, or dict, list, tuple of such, nested
            For example a state dict. Other values stay as they are.

        Returns
        -------
        StoredTensor, or dict, list, tuple of such
            The same structure with stand-ins, which have ``shape``, ``dtype``, ``device`` and ``requires_grad``, for
            :meth:`save`. Views of one storage are stored once and stay views of one, also those that are stored later
            or that the object itself has, unless the storage was written to in the meantime.

        Raises
        ------
        RuntimeError
            Outside of the ``with`` block, after :meth:`save`, or for tensors of several dtypes over one storage. Also
            after an error or an interrupt while a tensor was being written: such a file cannot be saved any more.
        OSError
            As ``zerocopy.save``.
        """
        with self._writing() as write:
            return StoredTensorReplacer(self, write).of(obj)

    def save(self, obj: Any) -> None:
        """Write the object, and the tensors in it that were not stored early. Nothing can be stored after that.

        Parameters
        ----------
        obj : object
            Any object that ``zerocopy.save`` takes. It may hold stand-ins from :meth:`store_early`.

        Raises
        ------
        RuntimeError
            Outside of the ``with`` block, at a second call, for tensors of several dtypes over one storage, or after an
            error while a tensor was being written.
        OSError
            As ``zerocopy.save``.
        Exception
            Any exception of pickling the object.
        """
        with self._writing() as write:
            pickle = pickled(obj, self, write)
            records = self._open_records()
            records.pickle(pickle)
            records.finish()
            self._carry_out(records)
            self._is_saved = True

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Store]:
        """Yield the function that writes a storage and returns its key."""
        with self._lock, MappedFiles(takes_newer=True) as mapped:
            records = self._open_records()
            yield lambda storage, remake: self._key_of(records, storage, remake, mapped)

    def _open_records(self) -> CheckpointPlan:
        if self._records is None or self._is_saved:
            raise RuntimeError("a Writer can store and save inside its with block only, and save once")
        if not self._is_whole:  # after an error, or in a signal handler
            raise RuntimeError("this file cannot be finished: a tensor was not written to its end")
        return self._records

    def _carry_out(self, records: CheckpointPlan) -> None:
        self._is_whole = False
        records.carry_out()
        self._is_whole = True

    def _key_of(
        self,
        records: CheckpointPlan,
        storage: _torch.PickledStorage,
        remake: Remake | None,
        mapped: MappedFiles,
    ) -> str:
        untyped = storage.storage
        names = identities(untyped, remake)
        candidates = {self._known[each] for each in names if each in self._known}
        known = next((each for each in candidates if each.is_unchanged(untyped)), None)
        if known is None:
            key = str(self._count)
            self._count += 1
            self._is_whole = False
            records.storage(key, untyped, mapped)
            self._carry_out(records)
            self._heap.used(untyped.nbytes())
            crc = None if _torch.skips_data() else records.last_checksum
        else:
            key, crc = known.key, known.crc
        self._known.update(dict.fromkeys(names, _Known(StorageWeakRef(untyped), key, crc)))
        require_one_dtype(self._dtypes, key, storage)
        return key


class _Known(NamedTuple):
    """A storage that was written."""

    reference: StorageWeakRef  # while this is kept no other storage has that identity
    key: str
    crc: int | None  # None: only room was reserved for the storage

    def is_unchanged(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the storage has the bytes that were written: a program may use one buffer for all layers."""
        if self.crc is None:
            return True
        on_cpu = storage.cpu()  # this reference keeps a copy from a device alive
        return self.crc == crc32(_torch.bytes_of(on_cpu))
