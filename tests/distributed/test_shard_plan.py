"""shard_plan: what each rank would read, on paper."""

from __future__ import annotations

import random
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import zerocopy
from zerocopy.distributed import load_shard, shard_plan


class Shard:
    """As torch.distributed.tensor has it."""

    def __init__(self, dim: int) -> None:
        self.dim = dim


class Replicate:
    """As torch.distributed.tensor has it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(
        {"wide": torch.zeros(16, 32768), "tall": torch.zeros(1030, 64), "scale": torch.zeros(())}, path
    )
    return path


def test_parts_of_all_ranks_make_up_the_file_once(path: Path) -> None:
    plan = shard_plan(path, (4,), {"wide": (1,), "tall": (0,)})
    assert sum(rank.nbytes for rank in plan.ranks) == plan.file_bytes == 4 * (16 * 32768 + 1030 * 64)
    for rank, reads in enumerate(plan.ranks):
        own = [load_shard(path, name, dim, rank, 4) for name, dim in (("wide", 1), ("tall", 0))]
        assert reads.nbytes == sum(tensor.numel() * 4 for tensor in own)
        assert reads.nbytes == reads.bytes_read


def test_two_mesh_dimensions_split_one_after_the_other(path: Path) -> None:
    placements = [[Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)], (None, 1)]
    for split in placements:
        plan = shard_plan(path, (2, 2), {"wide": split})
        whole = 4 * 16 * 32768
        copies = 1 if isinstance(split[0], Shard) else 2
        assert [rank.nbytes for rank in plan.ranks] == [copies * whole // 4] * 4


def test_hosts_read_shared_bytes_once(path: Path) -> None:
    plan = shard_plan(path, (8,), {"wide": (None,)})
    whole = 4 * 16 * 32768
    assert [(host.bytes_read, host.bytes_once) for host in plan.hosts(4)] == [(4 * whole, whole)] * 2
    parted = shard_plan(path, (8,), {"wide": (0,)})
    assert [(host.bytes_read, host.bytes_once) for host in parted.hosts(4)] == [(whole // 2, whole // 2)] * 2


def test_a_function_chooses_by_name_and_shape(path: Path) -> None:
    def chosen(info: zerocopy.TensorInfo) -> Any:
        return (0,) if len(info.shape) == 2 else None

    plan = shard_plan(path, (2,), chosen)
    assert plan.file_bytes == 4 * (16 * 32768 + 1030 * 64)
    assert "2 ranks" in plan.describe()


@pytest.mark.parametrize("mesh", [(1, 8), (3, 4), pytest.param((12, 2), marks=pytest.mark.slow("24 ranks"))])
def test_requests_on_paper_are_those_of_the_plan_that_a_rank_carries_out(
    tmp_path: Path, mesh: tuple[int, int]
) -> None:
    generator = random.Random(0)
    shapes = [(64,), (), (0, 3), (16, 16), (9, 3000), (5, 7, 11), (3, 2_100_000), (600, 40)]
    state = {}
    for number in range(1500):
        shape = shapes[number % 5 if number >= 8 else number]
        state[f"w{number}"] = torch.zeros(shape, dtype=generator.choice([torch.float16, torch.float32]))
    state["t"] = torch.zeros(40, 600).t()
    state["tied"] = state["w3"]
    torch.save(state, tmp_path / "model.pt")

    def placed(info: zerocopy.TensorInfo) -> Any:
        dims = [None, *range(len(info.shape))]
        return generator.choice(dims), generator.choice(dims)

    plan = shard_plan(tmp_path / "model.pt", mesh, placed)
    distinct = set()
    for rank, counted in enumerate(plan.ranks):
        reads = plan.reads_of(rank)
        assert counted == (rank, reads.nbytes, reads.bytes_read, reads.requests)
        distinct.add(counted[1:])
    assert len(distinct) > 1
    intervals = {rank: intervals_of(plan.reads_of(rank)) for rank in range(len(plan.ranks))}
    for host in plan.hosts(4):
        ranks = range(4 * host.host, min(4 * host.host + 4, len(plan.ranks)))
        assert host.bytes_once == union(interval for rank in ranks for interval in intervals[rank])


def intervals_of(reads: Any) -> list[tuple[int, int]]:
    requests = [request for file in reads.files for request in file.requests]
    begins = [(one.offset + row * one.step, one.nbytes) for one in requests for row in range(one.rows)]
    return [(begin, begin + nbytes) for begin, nbytes in begins]


def union(intervals: Iterable[tuple[int, int]]) -> int:
    total = last = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total


@pytest.mark.slow("ten thousand ranks")
def test_thousands_of_ranks_are_planned_from_the_file_alone(path: Path) -> None:
    plan = shard_plan(path, (1250, 8), {"wide": (None, 1), "tall": (0, None)})
    assert len(plan.ranks) == 10_000
    assert sum(rank.nbytes for rank in plan.ranks) == 4 * (1250 * 16 * 32768 + 8 * 1030 * 64)


def test_shard_plan_with_wrong_arguments_names_the_expected(path: Path) -> None:
    with pytest.raises(
        ValueError, match="expected 2 placements for wide, one for each mesh dimension, got 1"
    ):
        shard_plan(path, (2, 2), {"wide": (0,)})
    with pytest.raises(IndexError, match=r"expected a dimension of wide, of shape \(16, 32768\), got 2"):
        shard_plan(path, (2,), {"wide": (2,)})
    strided = types.SimpleNamespace(dim=0, split_factor=2)  # as torch.distributed.tensor's _StridedShard
    with pytest.raises(zerocopy.UnsupportedError, match="wide: shard_plan cannot plan the placement"):
        shard_plan(path, (2, 2), {"wide": (strided, 0)})
    with pytest.raises(KeyError, match="no tensor is named wid; close to it: wide"):
        shard_plan(path, (2,), {"wid": (0,)})
    for mesh, placements in ((2, (0,)), ((2,), {"wide": 0}), ((2,), ("rows",)), ((2,), (object(),))):
        with pytest.raises(TypeError, match=r"expected (mesh|a (sequence of )?placement)"):
            shard_plan(path, mesh, placements)
    with pytest.raises(ValueError, match="at least one rank"):
        shard_plan(path, (2, 0), {"wide": (0, 0)})
    with pytest.raises(ValueError, match="at least 1 rank per host, got 0"):
        shard_plan(path, (2,), {"wide": (0,)}).hosts(0)
