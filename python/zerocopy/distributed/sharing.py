"""Parts that several ranks need: one of them reads each, and sends it to the others."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from zerocopy.errors import UnsupportedError

#: Parts are sent in messages of about this size, so that one is read while another is on its way.
MESSAGE = 6 << 20

Key = tuple[str, tuple[int, ...], tuple[int, ...]]


class Origin(NamedTuple):
    """The rank that made a plan, and its place among the planners."""

    rank: int
    host: str


class Shared(NamedTuple):
    """A part that all ranks of a group need.

    Attributes
    ----------
    owner : int
        The rank, in the whole job, that reads it.
    item : int
        Its number among the items of this rank's plan.
    """

    owner: int
    item: int


class Shares(NamedTuple):
    """The parts that a rank shares with others, in the order of sending, and the ranks of the group."""

    ranks: list[int]
    parts: list[Shared]


def origin() -> Origin:
    """Return this rank and its host."""
    return Origin(dist.get_rank(), socket.gethostname())


def shares_of(plans: list[LoadPlan], mode: str) -> list[Shares | None]:
    """Decide for each plan which of its parts are shared, and who reads them: called on one rank for all.

    Parameters
    ----------
    plans : list of LoadPlan
        Each with an :class:`Origin`.
    mode : {"host", "job"}
        Among which ranks.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for number, plan in enumerate(plans):
        groups[plan.storage_data.host if mode == "host" else ""].append(number)
    found: list[Shares | None] = [None] * len(plans)
    for members in groups.values():
        if len(members) > 1:
            _share(plans, members, found)
    return found


def _share(plans: list[LoadPlan], members: list[int], found: list[Shares | None]) -> None:
    numbers = [{key_of(item): i for i, item in enumerate(plans[member].items)} for member in members]
    common = [key for key in numbers[0] if key is not None and all(key in other for other in numbers)]
    load = [
        sum(_elements(item) for item in plans[member].items if key_of(item) not in set(common))
        for member in members
    ]
    owners: dict[Key, int] = {}
    for key in sorted(common, key=lambda key: -torch.Size(key[2]).numel()):
        least = min(range(len(members)), key=load.__getitem__)  # the first of those with the fewest
        owners[key] = least
        load[least] += torch.Size(key[2]).numel()
    ordered = sorted(common, key=lambda key: (owners[key], key))
    ranks = [plans[member].storage_data.rank for member in members]
    for place, member in enumerate(members):
        parts = [Shared(ranks[owners[key]], numbers[place][key]) for key in ordered]
        found[member] = Shares(ranks, parts)


def key_of(item: ReadItem) -> Key | None:
    """Return a key that is equal for items that read the same; None for an item that is not a tensor."""
    if item.type == LoadItemType.BYTE_IO:
        return None
    return item.storage_index.fqn, tuple(item.storage_offsets), tuple(item.lengths)


def _elements(item: ReadItem) -> int:
    return 0 if item.type == LoadItemType.BYTE_IO else torch.Size(item.lengths).numel()


# Groups of ranks of one host, and the group of the job that each was made of. They are kept: torch gives a group of
# the same ranks the same name again, under which the store still has the addresses of the first.
_groups: dict[tuple[int, ...], tuple[Any, Any]] = {}


def group_of(ranks: list[int], whole: Any) -> Any:
    """Return a process group of some ranks of the group `whole`."""
    if sorted(ranks) == sorted(dist.get_process_group_ranks(whole)):
        return whole
    key = tuple(sorted(ranks))
    job, group = _groups.get(key, (None, None))
    if job is not dist.group.WORLD:
        group = dist.new_group(list(key), use_local_synchronization=True)
        _groups[key] = (dist.group.WORLD, group)
    return group


def messages(parts: list[Shared], nbytes_of: Callable[[int], int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the rank that sends each message, and the numbers of the items that it has."""
    items: list[int] = []
    size = 0
    for number, part in enumerate(parts):
        items.append(part.item)
        size += nbytes_of(part.item)
        is_last = number + 1 == len(parts) or parts[number + 1].owner != part.owner
        if is_last or size >= MESSAGE:
            yield part.owner, items
            items, size = [], 0


def device_of(group: Any) -> torch.device:
    """Return where messages of a group lie: NCCL takes no memory of the CPU."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def require_all(origins: list[Origin], group: Any) -> None:
    """Raise ``UnsupportedError`` unless the ranks that load are those of a process group."""
    expected = sorted(dist.get_process_group_ranks(group or dist.group.WORLD))
    if sorted(origin.rank for origin in origins) != expected:
        raise UnsupportedError(
            f"expected all {len(expected)} ranks of the process group in this load, found {len(origins)}: "
            "give CheckpointReader the process_group of dcp.load, or broadcast='off'"
        )
