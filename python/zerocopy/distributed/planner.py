"""``LoadPlanner``: the plans of torch's DefaultLoadPlanner, in a fraction of the time."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from zerocopy._torch import distributed
from zerocopy.process.collector import collector_paused

_TENSORS = {torch.Tensor, torch.nn.Parameter}
_LocalBox = tuple[torch.Size, torch.Size]


class LoadPlanner(DefaultLoadPlanner):
    """Plan ``dcp.load`` as ``DefaultLoadPlanner`` does, in less time per tensor.

    Give it to ``dcp.load`` beside :class:`CheckpointReader`, or any other storage reader, for a state of many tensors.
    Plans, errors and options are those of torch's class: tensors, parameters and DTensors are planned here, everything
    else is left to torch.

    Parameters
    ----------
    flatten_state_dict, flatten_sharded_tensors, allow_partial_load : bool
        As for ``torch.distributed.checkpoint.DefaultLoadPlanner`` of the release that is installed.

    Raises
    ------
    zerocopy.UnsupportedError
        PyTorch is older than 2.3.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> import torch.distributed.checkpoint as dcp
    >>> from zerocopy.distributed import CheckpointReader, LoadPlanner
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(3.0)}, file.name)
    ...     state = {"weight": torch.zeros(3)}
    ...     dcp.load(state, storage_reader=CheckpointReader(file.name), planner=LoadPlanner())
    >>> state
    {'weight': tensor([0., 1., 2.])}
    """

    @collector_paused
    def create_local_plan(self) -> LoadPlan:
        """Return the items of this rank. Called by ``dcp.load``."""
        if self.metadata is None or not self.flatten_state_dict:
            return super().create_local_plan()
        stored = self.metadata.state_dict_metadata
        if stored.keys() - self.state_dict.keys():
            # The checkpoint may have the names of an older release: torch finds out.
            return super().create_local_plan()
        # Releases without partial loads do not take the argument either.
        strict = [not self.allow_partial_load] if hasattr(self, "allow_partial_load") else []
        boxes: dict[Any, _LocalBox | None] = {}
        items: list[ReadItem] = []
        for name, value in self.state_dict.items():
            item = _whole_chunk(name, value, stored.get(name), boxes)
            if item is not None:
                items.append(item)
            else:
                items += create_default_local_load_plan({name: value}, self.metadata, *strict).items
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the tensor that an item is read into. Called for each item."""
        found: Any = self.state_dict.get(index.fqn)
        if _is_plain(found) and (index.offset is None or not any(index.offset)):
            return found
        return super().lookup_tensor(index)


def _local_box(tensor: Any, known: dict[Any, _LocalBox | None]) -> _LocalBox | None:
    """Return begin and size of the part of a DTensor that this rank has; None if torch has to find them.

    Tensors of the same shape, mesh and placements have the same: it is asked for once, and kept in `known`.
    """
    local = distributed.local_type(tensor)
    key = tensor.shape, id(tensor.device_mesh), tensor.placements, local
    if key not in known:
        is_plain = local is torch.Tensor and hasattr(tensor, "__create_chunk_list__")
        has_part = is_plain and tensor.device_mesh.get_coordinate() is not None
        chunks = tensor.__create_chunk_list__() if has_part else []
        known[key] = (chunks[0].offsets, chunks[0].sizes) if len(chunks) == 1 else None
    return known[key]


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor and nothing more. torch plans subclasses, and tensors with attributes.

    From 2.15 on attributes make a plain tensor a shard (``CheckpointableTensor``).
    """
    return type(value) in _TENSORS and not vars(value)


def _whole_chunk(name: str, value: Any, stored: Any, boxes: dict[Any, _LocalBox | None]) -> ReadItem | None:
    """Return the only item of a tensor that is stored in one chunk; None if it takes more than that to plan it."""
    if type(stored) is not TensorStorageMetadata or len(stored.chunks) != 1:
        return None
    kind = type(value)
    if not _is_plain(value) and kind is not distributed.dtensor_class():
        return None
    size, chunk = value.shape, stored.chunks[0]
    if stored.size != size or chunk.sizes != size or any(chunk.offsets) or 0 in size:
        return None
    if kind in _TENSORS:
        begin, lengths = chunk.offsets, size
    else:
        box = _local_box(value, boxes)
        if box is None or 0 in box[1]:
            return None
        begin, lengths = box
    origin = chunk.offsets
    return ReadItem(
        type=LoadItemType.TENSOR,
        dest_index=MetadataIndex(name, begin, 0),
        dest_offsets=origin,  # of the local tensor: the whole of it is read
        storage_index=MetadataIndex(name, origin, 0),
        storage_offsets=begin,
        lengths=lengths,
    )
