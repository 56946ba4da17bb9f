"""Write one ordinary file with ``torch.distributed.checkpoint.save``."""

from __future__ import annotations

import dataclasses
import errno
import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from zerocopy.display import shown
from zerocopy.distributed.layout import SUFFIXES, Extent, NewCheckpoint, NewTensor, new_checkpoint
from zerocopy.saving.checkpoint_writer import checked_alignment


class _WriteTargets(NamedTuple):
    """The new file, and the extent of each item of a rank. The extent is None for items that are not tensors."""

    path: str
    extents: list[Extent | None]


class CheckpointWriter(StorageWriter):
    """Make ``torch.distributed.checkpoint.save`` write one ordinary file, which stock loaders read.

    The first rank creates a temporary file beside the target, and reserves space for all tensors. All ranks write their
    own parts into the file in parallel: no tensor is sent to another rank. At the end the new file replaces the target
    atomically. After an error, or if a rank is killed, the old file is unchanged. The new file is then deleted when the
    writer is garbage collected, at process exit, or by the next save.

    Parameters
    ----------
    path : str or PathLike
        ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` or ``.safetensors``, on a file system that all ranks have.
    alignment : int
        Alignment of storages, as in ``zerocopy.save``. Used for ``.pt`` only.

    Raises
    ------
    ValueError
        The suffix or the alignment is not supported.
    zerocopy.UnsupportedError
        PyTorch is older than 2.2, or ``.safetensors`` cannot hold a value of the state.

    Notes
    -----
    Nested dicts and lists are saved as ``torch.distributed.checkpoint`` sees them: the keys of dicts become strings.
    Tied tensors are saved separately, as ``dcp.save`` does. Storages do not have checksums, because no rank sees all
    bytes of a storage. On NFS two clients must not write to one page at a time. Shards along any dimension but the
    first may do this. Local file systems and Lustre are safe.

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

    def __init__(self, path: str | os.PathLike[str], *, alignment: int = 64) -> None:
        super().__init__()
        self._path, self._alignment = _checked(path), checked_alignment(alignment)
        self._pending = _Pending()
        # dcp.save does not call this object after a rank has failed, so a finalizer deletes the new file.
        weakref.finalize(self, self._pending.abandon)

    # ------------------------------------------------------------------ called by dcp.save, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a save. `checkpoint_id`, if given, is the new path."""
        self._pending.abandon()
        if checkpoint_id:
            self._path = _checked(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Do nothing: this writer needs no set-up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay out the file, reserve space, and tell each rank where to write. The coordinator calls this."""
        self._pending.abandon()
        tensors = _tensors_of(plans)
        values = [
            item.index.fqn for plan in plans for item in plan.items if item.type == WriteItemType.BYTE_IO
        ]
        new = self._pending.new = new_checkpoint(self._path, tensors, values, self._alignment)
        path, offsets = new.begin()
        return [
            dataclasses.replace(
                plan, storage_data=_WriteTargets(path, [_extent_of(item, offsets) for item in plan.items])
            )
            for plan in plans
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's parts."""
        places: _WriteTargets = plan.storage_data
        descriptor = os.open(places.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            results = [
                _write(descriptor, item, extent, planner)
                for item, extent in zip(plan.items, places.extents, strict=True)
            ]
            os.fsync(descriptor)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), os.fspath(self._path)) from None
        finally:
            os.close(descriptor)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the values that are not tensors, and rename the file. The coordinator calls this."""
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


class _Pending:
    """The new file of a save that is not finished."""

    def __init__(self) -> None:
        self.new: NewCheckpoint | None = None
        self._process = os.getpid()

    def abandon(self) -> None:
        new, self.new = self.new, None
        if new is not None and self._process == os.getpid():  # a forked child must not delete it
            new.abandon()


def _checked(path: str | os.PathLike[str]) -> Path:
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: expected a name that ends in one of {', '.join(SUFFIXES)}")
    return Path(path)


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


def _extent_of(item: WriteItem, offsets: dict[str, int]) -> Extent | None:
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return None
    data = item.tensor_data
    return Extent(
        offsets[item.index.fqn], tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    )


def _write(descriptor: int, item: WriteItem, extent: Extent | None, planner: SavePlanner) -> WriteResult:
    data: Any = planner.resolve_data(item)
    if extent is None:
        content = bytes(data.getbuffer())
        return WriteResult(item.index, len(content), content)
    if tuple(data.shape) != extent.size or not isinstance(data, torch.Tensor):
        raise ValueError(
            f"expected a part of shape {extent.size} of {shown(item.index.fqn)}, found {tuple(data.shape)}"
        )
    return WriteResult(item.index, extent.write(descriptor, data), None)
