"""``CheckpointReader``: ``torch.distributed.checkpoint.load`` from plain files."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from zerocopy import _torch
from zerocopy._torch import distributed
from zerocopy.display import shown
from zerocopy.distributed import sharing
from zerocopy.distributed.plan_items import PlanItems
from zerocopy.distributed.stored_state import StoredState
from zerocopy.errors import Error
from zerocopy.lazy.reading import engine, parts
from zerocopy.loading import inputs
from zerocopy.process.collector import collector_paused

BROADCASTS = ("off", "host", "job", "auto")


class CheckpointReader(StorageReader):
    """Make ``torch.distributed.checkpoint.load`` read plain checkpoints: each rank reads its own bytes only.

    Parameters
    ----------
    path : path, or sequence of paths
        As for ``zerocopy.open``: ``.pt``, ``.safetensors``, an index of shards or its folder, a DCP folder.
        Several files may not have tensors of the same name.
    broadcast : {"auto", "off", "host", "job"}
        Chooses the rank that reads bytes which several ranks need. "off": each of them. "host": one rank of each host,
        which sends them to the other ranks of the host. "job": one rank of the job. With "host" and "job" the first
        rank alone reads the metadata and sends them to the others, so all ranks of `process_group` must take part in
        the load. "auto" is "off". It was the fastest in all measurements. Those were on one machine, where all ranks
        have one page cache.
    process_group : ProcessGroup, optional
        For "host" and "job": that of the load, if not all ranks of the job take part.
    aliases : mapping of str to str, optional
        Names that tensors have in the state dict, and in the checkpoint. For tied weights that the file has once, and
        for renamed ones.

    Raises
    ------
    ValueError
        For another `broadcast`.
    zerocopy.UnsupportedError
        Before PyTorch 2.3.

    Notes
    -----
    An error of one rank reaches all of them as a ``torch.distributed.checkpoint.api.CheckpointException``. A missing
    key is dcp's own RuntimeError in it, a wrong shape its ValueError. Values that are not tensors are built by the
    safe loader: nothing else that a file names is run.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> import torch.distributed.checkpoint as dcp
    >>> from zerocopy.distributed import CheckpointReader
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(3.0), "step": 7}, file.name)
    ...     state = {"weight": torch.zeros(3), "step": 0}
    ...     dcp.load(state, storage_reader=CheckpointReader(file.name))
    >>> state
    {'weight': tensor([0., 1., 2.]), 'step': 7}
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        broadcast: str = "auto",
        process_group: Any = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        if broadcast not in BROADCASTS:
            raise ValueError(f"expected broadcast to be one of {', '.join(BROADCASTS)}, got {broadcast!r}")
        self._path: Any = path
        self._broadcast = "off" if broadcast == "auto" else broadcast
        self._group, self._aliases = process_group, dict(aliases or {})
        self._state: StoredState | None = None
        self._items: PlanItems | None = None

    # ------------------------------------------------------------------ called by dcp.load, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a load. `checkpoint_id`, if given, is the new path."""
        self._close()
        if checkpoint_id:
            self._path = checkpoint_id

    @collector_paused
    def read_metadata(self) -> Metadata:
        """Return the metadata of all tensors and values. Every rank calls this."""
        self._close()
        self._state = self._told() if self._shares() else StoredState(self._path, self._aliases)
        return _metadata_of(self._state)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Do nothing: the metadata are known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Keep the items, and make them cheap to send. Add this rank's origin if ranks share parts."""
        self._items = PlanItems(plan.items)
        origin = sharing.origin() if self._shares() else plan.storage_data
        items: Any = self._items  # a sequence in the place of the list that LoadPlan declares
        return dataclasses.replace(plan, items=items, storage_data=origin)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Choose a reader for each part that several ranks need. The coordinator calls this."""
        if not self._shares():
            return plans
        sharing.require_all([plan.storage_data for plan in plans], self._group)
        shares = sharing.shares_of(plans, self._broadcast)
        return [dataclasses.replace(plan, storage_data=own) for plan, own in zip(plans, shares, strict=True)]

    @collector_paused
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts of the plan into the tensors of the planner."""
        try:
            # Without autograd, the local tensor of a DTensor costs no view.
            with torch.no_grad():
                _Reading(self._opened, self._with_own_items(plan), planner, self._group).run()
        finally:
            self._close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # ------------------------------------------------------------------ identity

    @property
    def checkpoint_id(self) -> str:
        """The path; the first of several."""
        several = isinstance(self._path, (list, tuple))
        return os.fsdecode(self._path[0] if several else self._path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a path may be a checkpoint: a file, or a folder that holds one."""
        if os.path.isfile(checkpoint_id):
            return True
        try:
            return inputs.located(checkpoint_id) is not checkpoint_id
        except (OSError, Error):
            return False

    def _with_own_items(self, plan: LoadPlan) -> LoadPlan:
        """Restore this rank's own items where the coordinator returned them unchanged: they need not be unpacked."""
        returned, own = plan.items, self._items
        if own is None or not isinstance(returned, PlanItems) or returned.token != own.token:
            return plan
        items: Any = own.items
        return dataclasses.replace(plan, items=items)

    def _shares(self) -> bool:
        return self._broadcast != "off" and dist.is_available() and dist.is_initialized()

    def _told(self) -> StoredState:
        """Return the metadata that the first rank reads and broadcasts, or raise its error, on every rank."""
        group = self._group or dist.group.WORLD
        first = dist.get_process_group_ranks(group)[0]
        told: list[Any] = [None]
        own: StoredState | None = None
        if dist.get_rank() == first:
            try:
                own = StoredState(self._path, self._aliases)
                told = [own.table()]
            except Exception as error:
                told = [error]
        dist.broadcast_object_list(told, src=first, group=group)
        if isinstance(told[0], Exception):
            raise told[0]
        return own or StoredState(self._path, self._aliases, told[0])

    @property
    def _opened(self) -> StoredState:
        if self._state is None:
            raise RuntimeError(
                "read_metadata() was not called: use this reader with torch.distributed.checkpoint.load"
            )
        return self._state

    def _close(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None
        self._items = None


def _metadata_of(state: StoredState) -> Metadata:
    found: dict[str, Any] = {}
    for name, (_, shape, dtype) in state.tensors.items():
        # One chunk for each tensor: this reader finds the chunks of a box itself.
        chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
        found[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), shape, [chunk])
    found.update((name, BytesStorageMetadata()) for name in state.value_names)
    return Metadata(found, planner_data=state.paths, storage_data={})


class _Reading:
    """Carries out the plan of one rank."""

    def __init__(self, state: StoredState, plan: LoadPlan, planner: LoadPlanner, group: Any) -> None:
        self._state, self._planner, self._items, self._group = state, planner, plan.items, group
        shares = plan.storage_data
        self._shares = shares if isinstance(shares, sharing.Shares) else None
        self._targets: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        shared = {part.item for part in self._shares.parts} if self._shares else set()
        errors: list[Exception] = []
        try:
            self._read_own(shared)
        except Exception as error:  # others wait for what this rank reads for them
            errors.append(error)
        if self._shares and self._shares.parts:
            self._exchange(self._shares, errors)
        if errors:
            raise errors[0]
        distributed.note_writes(self._targets.values())
        for number, target in self._targets.items():
            self._planner.commit_tensor(self._items[number], target)

    def _read_own(self, shared: set[int]) -> None:
        own: list[tuple[ReadItem, torch.Tensor]] = []
        for number, item in enumerate(self._items):
            if item.type == LoadItemType.BYTE_IO:
                self._planner.load_bytes(item, io.BytesIO(self._state.value(item.storage_index.fqn)))
            elif number not in shared:
                own.append((item, self._target(number)))
        self._read(own)

    def _read(self, wanted: Iterable[tuple[ReadItem, torch.Tensor]]) -> None:
        """Read each item into its tensor."""
        direct: list[tuple[parts.Part, torch.Tensor]] = []
        copied: list[tuple[parts.Part, torch.Tensor]] = []
        for item, target in wanted:
            part = self._part(item)
            if part is None:
                target.copy_(self._state.indexed(item.storage_index.fqn, _index_of(item)))
            else:
                (direct if engine.is_direct(target, part.dtype) else copied).append((part, target))
        parts.read_all(direct, copied, self._state.version)

    def _exchange(self, shares: sharing.Shares, errors: list[Exception]) -> None:
        """Send and receive all shared parts.

        Every rank of the group takes part in every message, also after an error: nobody waits for a message that is
        never sent.
        """
        group = sharing.group_of(shares.ranks, self._group or dist.group.WORLD)
        device = sharing.device_of(group)
        for owner, numbers in sharing.messages(shares.parts, self._nbytes_of):
            message, memories = self._message(numbers)
            try:
                if owner == dist.get_rank():
                    self._read(zip(map(self._items.__getitem__, numbers), memories, strict=True))
                    message[0] = 1
            except Exception as error:
                errors.append(error)
            sent = message.to(device)
            dist.broadcast(sent, owner, group=group)
            message.copy_(sent)
            try:
                if not message[0]:
                    raise Error(f"rank {owner} could not read a part that this rank needs")
                for number, memory in zip(numbers, memories, strict=True):
                    self._target(number).copy_(memory)
            except Exception as error:
                errors.append(error)

    def _message(self, numbers: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return memory for some items, behind a byte that says whether they were read; and the part of each."""
        # Each part begins at a multiple of 16 bytes, as elements of any dtype need.
        sizes = [16 * -(-self._nbytes_of(number) // 16) for number in numbers]
        message = torch.zeros(16 + sum(sizes), dtype=torch.uint8, device="cpu")
        memories = []
        for number, held in zip(numbers, message[16:].split(sizes), strict=True):
            item, part = self._items[number], held[: self._nbytes_of(number)]
            memories.append(part.view(self._dtype(item)).view(item.lengths))
        return message, memories

    def _nbytes_of(self, number: int) -> int:
        item = self._items[number]
        return torch.Size(item.lengths).numel() * _torch.element_size(self._dtype(item))

    def _target(self, number: int) -> torch.Tensor:
        """Return the tensor that an item is read into."""
        item = self._items[number]
        target = self._planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise AssertionError(
                f"expected a tensor of shape {tuple(item.lengths)} for {shown(item.dest_index.fqn)}, "
                f"found {tuple(target.size())}"
            )
        self._targets[number] = target
        return target

    def _part(self, item: ReadItem) -> parts.Part | None:
        box = tuple(item.storage_offsets), tuple(item.lengths)
        extents = self._state.extents(item.storage_index.fqn, box)
        return None if extents is None else parts.box(extents, *box)

    def _dtype(self, item: ReadItem) -> torch.dtype:
        return self._state.tensors[item.storage_index.fqn].dtype


def _index_of(item: ReadItem) -> tuple[slice, ...]:
    boxes = zip(item.storage_offsets, item.lengths, strict=True)
    return tuple(slice(begin, begin + length) for begin, length in boxes)
