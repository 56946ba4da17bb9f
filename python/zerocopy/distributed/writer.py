"""Write ordinary files with ``torch.distributed.checkpoint.save``."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import math
import operator
import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from zerocopy.converting import shard_plan
from zerocopy.converting.elements import elements_of
from zerocopy.display import shown
from zerocopy.distributed.layout import SUFFIXES, NewTensor
from zerocopy.distributed.new_files import NewCheckpoint, new_checkpoint
from zerocopy.errors import UnsupportedError
from zerocopy.loading.extents import contiguous_strides
from zerocopy.saving.archive import checked_alignment
from zerocopy.saving.atomic_file import local_path


class _WriteTargets(NamedTuple):
    """The new files, and the extent of each item of a rank. The extent is None for items that are not tensors."""

    paths: list[str]
    extents: list[WriteExtent | None]


class WriteExtent(NamedTuple):
    """A part of a tensor in a new file.

    Attributes
    ----------
    file : int
        Number of the file.
    offset : int
        Of the tensor's first element, in bytes.
    shape, begin, size : tuple of int
        Of the tensor; position and shape of the part.
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def write(self, descriptor: int, tensor: torch.Tensor) -> int:
        """Write a part to its place. Return its bytes."""
        row_by_row = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content, itemsize = elements_of(row_by_row), row_by_row.element_size()
        strides = contiguous_strides(self.shape)
        # The last dimension that is split, and those behind it, lie in one run.
        split = max((dim for dim, n in enumerate(self.size) if n != self.shape[dim]), default=0)
        run = math.prod(self.size[split:]) * itemsize
        for number, place in enumerate(itertools.product(*map(range, self.size[:split]))):
            index = map(operator.add, self.begin, (*place, *[0] * len(self.begin)))
            at = self.offset + sum(map(operator.mul, index, strides)) * itemsize
            left = content[number * run : (number + 1) * run]
            while left:
                done = os.pwrite(descriptor, left, at)
                left, at = left[done:], at + done
        return content.nbytes


class CheckpointWriter(StorageWriter):
    """Make ``torch.distributed.checkpoint.save`` write an ordinary file, or shards with an index.

    Stock loaders read the result. The first rank creates temporary files beside the target, and reserves space for all
    tensors. All ranks write their own parts into the files in parallel: no tensor is sent to another rank. At the end
    the new file, or the new index, replaces the old one atomically. After an error, or if a rank is killed, the old
    checkpoint is unchanged. The new files are then deleted when the writer is garbage collected, at process exit, or by
    the next save, which leaves those of a writer that an exception still holds.

    Parameters
    ----------
    path : str or PathLike
        ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` or ``.safetensors``, on a file system that all ranks have. With
        `max_shard_size` a folder too, for ``model.safetensors.index.json`` and its shards, or the path of an index.
    max_shard_size : int or str, optional
        Write shards of at most so many bytes, such as ``"5GB"``, and an index, named as transformers names them. A
        tensor that is larger gets a shard of its own. Without this, all tensors are in one file.
    alignment : int
        Alignment of storages, as in ``zerocopy.save``. Used for ``.pt`` only.

    Raises
    ------
    ValueError
        The suffix, the size or the alignment is not supported.
    zerocopy.UnsupportedError
        PyTorch is older than 2.3, the state has values that ``.safetensors`` or shards cannot hold, or the planner
        caches plans.

    Notes
    -----
    Nested dicts and lists are saved as ``torch.distributed.checkpoint`` sees them: the keys of dicts become strings.
    Tied tensors are saved separately, as ``dcp.save`` does. Storages do not have checksums, because no rank sees all
    bytes of a storage. On NFS two clients must not write to one page at a time. Shards along any dimension but the
    first may do this. Local file systems and Lustre are safe.

    A new shard never replaces a file. Where the names of shards are taken, those of the next save are
    ``model-2-00001-of-00003.safetensors``, and so on. The shards of the old index are deleted after the new index is
    in place.

    Examples
    --------
    >>> import tempfile, pathlib, torch
    >>> import torch.distributed.checkpoint as dcp
    >>> from zerocopy.distributed import CheckpointWriter
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> state = {"model": {"weight": torch.arange(3.0)}, "step": 7}
    >>> _ = dcp.save(state, storage_writer=CheckpointWriter(path))
    >>> torch.load(path)
    {'model': {'weight': tensor([0., 1., 2.])}, 'step': 7}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_shard_size: int | str | None = None,
        alignment: int = 64,
    ) -> None:
        super().__init__()
        self._most = None if max_shard_size is None else shard_plan.size_of(max_shard_size)
        self._path, self._alignment = self._checked(path), checked_alignment(alignment)
        self._names: list[str] = []
        self._pending = _Pending()
        # dcp.save does not call this object after a rank has failed, so a finalizer deletes the new file.
        weakref.finalize(self, self._pending.abandon)

    # ------------------------------------------------------------------ called by dcp.save, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a save. `checkpoint_id`, if given, is the new path."""
        self._pending.abandon()
        if checkpoint_id:
            self._path = self._checked(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Do nothing: this writer needs no set-up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is, and remember the order of the names."""
        if not getattr(plan, "usable", True):
            raise UnsupportedError(
                "expected the whole plan of this rank, found one that the planner took from an earlier save: "
                "the space of an earlier file is of no use, so give dcp.save a planner with enable_plan_caching=False"
            )
        self._names = [item.index.fqn for item in plan.items]
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay out the files, reserve space, and tell each rank where to write. The coordinator calls this."""
        self._pending.abandon()
        tensors = _tensors_of(plans)
        # The planner spreads what all ranks have over the plans. Files keep the order of this rank's state.
        tensors = {name: tensors[name] for name in dict.fromkeys([*self._names, *tensors]) if name in tensors}
        values = [
            item.index.fqn for plan in plans for item in plan.items if item.type == WriteItemType.BYTE_IO
        ]
        new = self._pending.new = new_checkpoint(self._path, tensors, values, self._alignment, self._most)
        paths, offsets = new.begin()
        return [
            dataclasses.replace(
                plan, storage_data=_WriteTargets(paths, [_extent_of(item, offsets) for item in plan.items])
            )
            for plan in plans
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's parts."""
        targets: _WriteTargets = plan.storage_data
        by_file: dict[int, list[tuple[WriteItem, WriteExtent]]] = {}
        results: list[WriteResult] = []
        for item, extent in zip(plan.items, targets.extents, strict=True):
            if extent is None:
                results.append(_result_of(item, planner))
            else:
                by_file.setdefault(extent.file, []).append((item, extent))
        try:
            for number, writes in by_file.items():
                results += _write(targets.paths[number], writes, planner)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), os.fspath(self._path)) from None
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the values that are not tensors, and rename the files. The coordinator calls this."""
        new = self._pending.new
        assert new is not None, "finish() was called before prepare_global_plan()"
        values = {
            result.index.fqn: result.storage_data
            for rank_results in results
            for result in rank_results
            if isinstance(result.storage_data, bytes)
        }
        try:
            new.finish(values, metadata.planner_data or {})
        except BaseException:
            self._pending.abandon()
            raise
        self._pending.new = None

    # ------------------------------------------------------------------ identity

    @property
    def checkpoint_id(self) -> str:
        """The path of the checkpoint."""
        return os.fspath(self._path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether the suffix of the path is supported."""
        return Path(checkpoint_id).suffix in SUFFIXES

    def _checked(self, path: str | os.PathLike[str]) -> Path:
        target = local_path(path)
        if self._most is None and target.suffix not in SUFFIXES:
            raise ValueError(f"{os.fspath(path)}: expected a name that ends in one of {', '.join(SUFFIXES)}")
        return target


class _Pending:
    """The new file of a save that is not finished."""

    def __init__(self) -> None:
        self.new: NewCheckpoint | None = None
        self._process = os.getpid()

    def abandon(self) -> None:
        new, self.new = self.new, None
        if new is not None and self._process == os.getpid():  # a forked child must not delete it
            new.abandon()


def _tensors_of(plans: list[SavePlan]) -> dict[str, NewTensor]:
    """Return the tensors of all plans. ``ValueError`` if parts have more or fewer elements than their tensor."""
    found: dict[str, NewTensor] = {}
    remaining: dict[str, int] = {}
    for plan in plans:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                continue
            name, data = item.index.fqn, item.tensor_data
            tensor = found.setdefault(name, NewTensor(data.size, data.properties.dtype))
            if tensor != (data.size, data.properties.dtype):
                raise ValueError(f"{shown(name)}: expected the same shape and dtype on all ranks")
            remaining.setdefault(name, data.size.numel())
            remaining[name] -= data.chunk.sizes.numel()
    if wrong := [name for name, elements in remaining.items() if elements]:
        raise ValueError(
            f"the parts of {shown(wrong[0])} do not make up a tensor of {tuple(found[wrong[0]].shape)}"
        )
    return found


def _extent_of(item: WriteItem, offsets: dict[str, tuple[int, int]]) -> WriteExtent | None:
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return None
    data = item.tensor_data
    return WriteExtent(
        *offsets[item.index.fqn], tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    )


def _result_of(item: WriteItem, planner: SavePlanner) -> WriteResult:
    """Return the result of a value that is not a tensor: the coordinator writes it."""
    data: Any = planner.resolve_data(item)
    content = bytes(data.getbuffer())
    return WriteResult(item.index, len(content), content)


def _write(path: str, writes: list[tuple[WriteItem, WriteExtent]], planner: SavePlanner) -> list[WriteResult]:
    """Write this rank's parts of one file."""
    results = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for item, extent in writes:
            data: Any = planner.resolve_data(item)
            if tuple(data.shape) != extent.size or not isinstance(data, torch.Tensor):
                raise ValueError(
                    f"expected a part of shape {extent.size} of {shown(item.index.fqn)}, found {tuple(data.shape)}"
                )
            results.append(WriteResult(item.index, extent.write(descriptor, data), None))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return results
