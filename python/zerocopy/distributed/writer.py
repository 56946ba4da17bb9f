"""``CheckpointWriter``: ``torch.distributed.checkpoint.save`` into one plain file."""

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


class _Places(NamedTuple):
    """Where a rank writes: the new file, and the part of each of its items; None for a value."""

    path: str
    extents: list[Extent | None]


class CheckpointWriter(StorageWriter):
    """Has ``torch.distributed.checkpoint.save`` write one ordinary file, which stock loaders read.

    The first rank makes room for all tensors in a new file beside the target. Each rank writes its own parts there,
    all at the same time: no tensor is sent to another rank. At last the new file takes the target's name at once. If
    anything goes wrong before, or a rank is killed, the old file stays as it is; the new one is deleted when the writer
    is let go, at the end of the process, or by the next save.

    Parameters
    ----------
    path : str or PathLike
        ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` or ``.safetensors``, on a file system that all ranks have.
    alignment : int
        As for ``zerocopy.save``; of ``.pt``.

    Raises
    ------
    ValueError
        Another suffix, no such alignment.
    zerocopy.UnsupportedError
        Before PyTorch 2.2; for ``.safetensors`` also in the save, of what that cannot hold.

    Notes
    -----
    Nested dicts and lists are saved as ``torch.distributed.checkpoint`` sees them: the keys of dicts become strings.
    Tensors that are tied are saved each for itself, as ``dcp.save`` does. Storages have no checksums, since no rank
    sees all bytes of one. On NFS two clients must not write to one page at a time: shards that split another
    dimension than the first may do so there. Local file systems and Lustre are safe.

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
        # A rank that fails ends the save without another call to this object.
        weakref.finalize(self, self._pending.abandon)

    # ------------------------------------------------------------------ what dcp.save calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save: to another file, if one is named."""
        self._pending.abandon()
        if checkpoint_id:
            self._path = _checked(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Do nothing: only the coordinator is asked to plan."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay out the file, make room, and say each rank where to write. The coordinator calls this."""
        self._pending.abandon()
        tensors = _tensors_of(plans)
        values = [
            item.index.fqn for plan in plans for item in plan.items if item.type == WriteItemType.BYTE_IO
        ]
        new = self._pending.new = new_checkpoint(self._path, tensors, values, self._alignment)
        path, offsets = new.begin()
        return [
            dataclasses.replace(
                plan, storage_data=_Places(path, [_extent_of(item, offsets) for item in plan.items])
            )
            for plan in plans
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's parts."""
        places: _Places = plan.storage_data
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
        """Write what is not tensors, and give the file its name. The coordinator calls this."""
        new = self._pending.new
        assert new is not None, "prepare_global_plan() was called"
        values = {
            result.index.fqn: result.storage_data
            for of_rank in results
            for result in of_rank
            if isinstance(result.storage_data, bytes)
        }
        try:
            new.finish(values, metadata.planner_data or {})
        except BaseException:
            self._pending.abandon()
            raise
        self._pending.new = None

    # ------------------------------------------------------------------ what it is

    @property
    def checkpoint_id(self) -> str:
        """The path."""
        return os.fspath(self._path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a path has a suffix that says a format."""
        return Path(checkpoint_id).suffix in SUFFIXES


class _Pending:
    """The new file of a save that is not finished."""

    def __init__(self) -> None:
        self.new: NewCheckpoint | None = None
        self._process = os.getpid()

    def abandon(self) -> None:
        new, self.new = self.new, None
        if new is not None and self._process == os.getpid():  # a child of fork has a copy of this object
            new.abandon()


def _checked(path: str | os.PathLike[str]) -> Path:
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: expected a name that ends in one of {', '.join(SUFFIXES)}")
    return Path(path)


def _tensors_of(plans: list[SavePlan]) -> dict[str, NewTensor]:
    """Return the tensors of all plans. Raises ``ValueError`` unless their parts make up each exactly."""
    found: dict[str, NewTensor] = {}
    missing: dict[str, int] = {}
    for plan in plans:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                continue
            name, data = item.index.fqn, item.tensor_data
            tensor = found.setdefault(name, NewTensor(data.size, data.properties.dtype))
            if tensor != (data.size, data.properties.dtype):
                raise ValueError(f"{shown(name)} has another shape or dtype on another rank")
            missing.setdefault(name, data.size.numel())
            missing[name] -= data.chunk.sizes.numel()
    if wrong := [name for name, left in missing.items() if left]:
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
