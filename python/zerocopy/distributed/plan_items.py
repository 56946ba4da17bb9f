"""The items of a load plan, in a form that is cheap to send: the coordinator passes them on, and rarely looks."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from zerocopy.process.collector import collector_paused

_IndexRow = tuple[str, tuple[int, ...] | None, int | None]
_Row = tuple[bool, _IndexRow, tuple[int, ...], _IndexRow, tuple[int, ...], tuple[int, ...]]


class PlanItems(Sequence[ReadItem]):
    """Items of a plan. Pickled, they are one string of bytes, which only a rank that looks at an item takes apart.

    ``dcp.load`` collects the plans of all ranks on one rank, and sends each of them back. To pickle the objects takes
    longer than to read the bytes of many small tensors.

    Parameters
    ----------
    items : sequence of ReadItem
        The items.
    """

    def __init__(self, items: Sequence[ReadItem]) -> None:
        self.token = os.urandom(16)
        self._items: Sequence[ReadItem] | None = items
        self._packed = b""

    @property
    def items(self) -> Sequence[ReadItem]:
        """The items, as they were given or as they were sent."""
        if self._items is None:
            # These bytes come from a rank of this job, inside a pickle that DCP has read.
            self._items = _unpacked(self._packed)
        return self._items

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> ReadItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadItem]: ...
    def __getitem__(self, index: int | slice) -> ReadItem | Sequence[ReadItem]:
        return self.items[index]

    def __getstate__(self) -> tuple[bytes, bytes]:
        if not self._packed:
            self._packed = _packed(self.items)
        return self.token, self._packed

    def __setstate__(self, state: tuple[bytes, bytes]) -> None:
        self.token, self._packed = state
        self._items = None


@collector_paused
def _packed(items: Sequence[ReadItem]) -> bytes:
    return pickle.dumps([_row_of(item) for item in items], protocol=4)


@collector_paused
def _unpacked(packed: bytes) -> list[ReadItem]:
    return [_item_of(row) for row in pickle.loads(packed)]


def _row_of(item: ReadItem) -> _Row:
    """Return an item as plain tuples: pickling a ``torch.Size`` calls Python each time."""
    return (
        item.type == LoadItemType.BYTE_IO,
        _index_row(item.dest_index),
        tuple(item.dest_offsets),
        _index_row(item.storage_index),
        tuple(item.storage_offsets),
        tuple(item.lengths),
    )


def _index_row(index: MetadataIndex) -> _IndexRow:
    return index.fqn, None if index.offset is None else tuple(index.offset), index.index


def _item_of(row: Any) -> ReadItem:
    is_value, dest, dest_offsets, storage, storage_offsets, lengths = row
    return ReadItem(
        LoadItemType.BYTE_IO if is_value else LoadItemType.TENSOR,
        MetadataIndex(*dest),
        torch.Size(dest_offsets),
        MetadataIndex(*storage),
        torch.Size(storage_offsets),
        torch.Size(lengths),
    )
