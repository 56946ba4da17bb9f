"""LoadPlanner: the plans, results and errors of torch's DefaultLoadPlanner."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import outcome
from dcp_errors import require_dcp
from ranks import Ranks

from zerocopy.distributed import CheckpointReader, LoadPlanner

dcp = require_dcp()


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {"weight": torch.randn(6, 4), "scalar": torch.tensor(2.0), "empty": torch.zeros(0, 3)},
        "own": torch.nn.Parameter(torch.randn(5)),
        "parts": [torch.randn(2), {"inner": torch.randn(3)}],
        "step": 7,
        "betas": (0.9, 0.99),
    }


def zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {name: zeros(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [zeros(inner) for inner in value]
    return 0


def described(plan: Any) -> list[Any]:
    """Return the items with the hints that comparing a MetadataIndex leaves out."""
    return [(item, item.dest_index.index, item.storage_index.index) for item in plan.items]


def plan_of(planner: Any, wanted: dict[str, Any], metadata: Any) -> list[Any]:
    planner.set_up_planner(wanted, metadata, True)
    return described(planner.create_local_plan())


@pytest.fixture(params=["file", "folder"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that makes a reader of a checkpoint of `state()`."""
    if request.param == "file":
        torch.save(state(), tmp_path / "model.pt")
        return lambda: CheckpointReader(tmp_path / "model.pt")
    dcp.save(state(), checkpoint_id=tmp_path / "dcp")
    return lambda: dcp.FileSystemReader(str(tmp_path / "dcp"))


def test_plan_of_nested_state_equals_that_of_torch(reader: Any) -> None:
    metadata = reader().read_metadata()
    expected = plan_of(dcp.DefaultLoadPlanner(), zeros(state()), metadata)
    assert plan_of(LoadPlanner(), zeros(state()), metadata) == expected
    assert len(expected) >= 7


def test_plan_of_tensors_in_several_chunks_equals_that_of_torch() -> None:
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    halves = [ChunkStorageMetadata(torch.Size([at, 0]), torch.Size([3, 4])) for at in (0, 3)]
    stored = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([6, 4]), halves)
    metadata = Metadata({"weight": stored}, planner_data={}, storage_data={})
    wanted = {"weight": torch.zeros(6, 4)}
    found = plan_of(LoadPlanner(), wanted, metadata)
    assert found == plan_of(dcp.DefaultLoadPlanner(), wanted, metadata)
    assert len(found) == 2


def test_load_fills_tensors_and_values(reader: Any) -> None:
    wanted = zeros(state())
    dcp.load(wanted, storage_reader=reader(), planner=LoadPlanner())
    expected = state()
    assert torch.equal(wanted["model"]["weight"], expected["model"]["weight"])
    assert torch.equal(wanted["own"], expected["own"])
    assert torch.equal(wanted["parts"][1]["inner"], expected["parts"][1]["inner"])
    assert wanted["model"]["scalar"] == 2 and wanted["step"] == 7 and wanted["betas"] == (0.9, 0.99)


def test_wrong_states_bring_the_outcome_of_torch(reader: Any) -> None:
    metadata = reader().read_metadata()
    absent = {"absent": torch.zeros(1)}
    for wrong in (absent, {"own": torch.zeros(4)}, {"own": 3}, {"step": torch.zeros(2)}):
        for others in ({}, zeros(state())):
            mine, theirs = (
                outcome(
                    lambda planner=planner, wanted={**others, **wrong}: plan_of(planner, wanted, metadata)
                )
                for planner in (LoadPlanner(), dcp.DefaultLoadPlanner())
            )
            assert mine == theirs, wrong


def test_partial_load_plans_what_torch_plans(reader: Any) -> None:
    metadata = reader().read_metadata()
    for extra in ({}, {"absent": torch.zeros(1)}):
        try:
            planners = LoadPlanner(allow_partial_load=True), dcp.DefaultLoadPlanner(allow_partial_load=True)
        except TypeError:
            pytest.skip("this release has no partial loads")
        mine, theirs = (plan_of(planner, {"own": torch.zeros(5), **extra}, metadata) for planner in planners)
        assert mine == theirs and len(mine) == 1


def test_load_leaves_the_garbage_collector_as_it_was(reader: Any) -> None:
    was_on = gc.isenabled()
    try:
        for switch in (gc.disable, gc.enable):
            switch()
            expected = gc.isenabled()
            dcp.load(zeros(state()), storage_reader=reader(), planner=LoadPlanner())
            assert gc.isenabled() == expected
            with pytest.raises(RuntimeError):
                planner = LoadPlanner()
                planner.set_up_planner({**zeros(state()), "absent": torch.zeros(1)}, reader().read_metadata())
                planner.create_local_plan()
            assert gc.isenabled() == expected
    finally:
        (gc.enable if was_on else gc.disable)()


SHARDED = """
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from zerocopy.distributed import LoadPlanner

    def described(planner, state, metadata):
        planner.set_up_planner(state, metadata, False)
        plan = planner.create_local_plan()
        return [(item, item.dest_index.index, item.storage_index.index) for item in plan.items]

    def main(rank, path):
        full = torch.load(path)
        size = dist.get_world_size()
        grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
        line = init_device_mesh("cpu", (size,))
        some = DeviceMesh("cpu", list(range(size // 2)))
        layouts = [(line, [Shard(0)]), (line, [Shard(1)]), (line, [Replicate()]), (grid, [Shard(0), Shard(1)]),
                   (grid, [Replicate(), Shard(0)]), (grid, [Shard(0), Shard(0)]), (some, [Shard(0)])]
        for mesh, placements in layouts:
            state = {name: distribute_tensor(torch.zeros_like(full[name]), mesh, placements) for name in full}
            metadata = CheckpointReader(path).read_metadata()
            expected = described(dcp.DefaultLoadPlanner(), state, metadata)
            assert described(LoadPlanner(), state, metadata) == expected, (mesh, placements)
            dcp.load(state, storage_reader=CheckpointReader(path), planner=LoadPlanner())
            wanted = {name: distribute_tensor(full[name], mesh, placements) for name in full}
            for name in full:
                assert torch.equal(state[name].to_local(), wanted[name].to_local()), (name, placements)
        return len(layouts)
"""


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow("four ranks"))])
def test_plans_of_sharded_tensors_equal_those_of_torch(ranks: Ranks, tmp_path: Path, world: int) -> None:
    pytest.importorskip("torch.distributed.tensor")
    tensors = {
        "even": torch.randn(8, 4),
        "twin": torch.randn(8, 4),
        "odd": torch.randn(5, 3),
        "few": torch.randn(2, 7),
    }
    torch.save(tensors, tmp_path / "model.pt")
    assert ranks.run(SHARDED, world, str(tmp_path / "model.pt")) == [7] * world


COORDINATED = """
    import dataclasses
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class Coordinating(DefaultLoadPlanner):
        seen = []

        def create_global_plan(self, plans):
            Coordinating.seen = [[item.dest_index.fqn for item in plan.items] for plan in plans]
            return [dataclasses.replace(plan, items=[item for item in plan.items if item.dest_index.fqn != "b"])
                    for plan in plans]

    def main(rank, path):
        state = {name: torch.zeros(3) for name in ("a", "b", f"own{rank}")}
        dcp.load(state, storage_reader=CheckpointReader(path), planner=Coordinating())
        return [Coordinating.seen, {name: tensor.tolist() for name, tensor in state.items()}]
"""


def test_coordinator_sees_and_changes_the_items_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    torch.save({name: torch.ones(3) for name in ("a", "b", "own0", "own1")}, tmp_path / "model.pt")
    first, second = ranks.run(COORDINATED, 2, str(tmp_path / "model.pt"))
    assert first[0] == [["a", "b", "own0"], ["a", "b", "own1"]] and second[0] == []
    for rank, (_, found) in enumerate((first, second)):
        assert found == {"a": [1.0] * 3, "b": [0.0] * 3, f"own{rank}": [1.0] * 3}


def shard(local: tuple[int, int], whole: tuple[int, int], *parts: tuple[Any, Any, Any]) -> torch.Tensor:
    """Return a plain tensor that torch 2.15 and later take for shards: each is global offset, local offset, size."""
    made: Any = torch.full(local, -1.0)
    made.global_shape = whole
    made.global_offsets, made.local_offsets, made.local_sizes = zip(*parts, strict=True)
    return made


SHARDS = {
    "padded at the beginning": lambda: shard((4, 4), (6, 4), ((0, 0), (1, 0), (3, 4))),
    "padded at the end": lambda: shard((7, 4), (6, 4), ((0, 0), (0, 0), (6, 4))),
    "late": lambda: shard((3, 4), (6, 4), ((3, 0), (0, 0), (3, 4))),
    "two, the first at 0": lambda: shard((4, 4), (6, 4), ((0, 0), (2, 0), (2, 4)), ((4, 0), (0, 0), (2, 4))),
    "local shape equal to the global": lambda: shard((6, 4), (6, 4), ((2, 0), (0, 0), (4, 4))),
}


def test_tensor_with_attributes_of_a_shard_is_filled_as_by_torch(reader: Any) -> None:
    def filled(planner: Any, name: str) -> Any:
        wanted = {"model": {**zeros(state()["model"]), "weight": SHARDS[name]()}}
        try:
            dcp.load(wanted, storage_reader=reader(), planner=planner)
        except BaseException as error:  # as CheckpointException is
            return type(error)
        return wanted["model"]["weight"].tolist()

    for name in SHARDS:
        expected = filled(dcp.DefaultLoadPlanner(), name)
        assert filled(LoadPlanner(), name) == expected, name
        assert isinstance(expected, list) or not hasattr(dcp, "CheckpointableTensor")
