"""CheckpointWriter: torch.distributed.checkpoint.save into one plain file, by processes of one group."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_errors import require_dcp, require_reports
from ranks import Ranks

import zerocopy

SAVE = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def full():
        torch.manual_seed(0)
        return {
            "rows": torch.randn(10, 12), "columns": torch.randn(9, 14).double(), "bias": torch.randn(7),
            "grid": torch.randn(6, 8, 3), "scale": torch.tensor(3.0), "ids": torch.arange(9),
            "empty": torch.zeros(0, 3), "mask": torch.tensor([True, False]),
        }

    def sharded(state):
        size = dist.get_world_size()
        line = init_device_mesh("cpu", (size,))
        grid = init_device_mesh("cpu", (2, size // 2))
        layouts = {"rows": (line, [Shard(0)]), "columns": (line, [Shard(1)]), "bias": (line, [Shard(0)]),
                   "grid": (grid, [Shard(0), Shard(1)]), "scale": (line, [Replicate()]),
                   "empty": (line, [Shard(0)])}
        return {name: distribute_tensor(tensor, *layouts[name]) if name in layouts else tensor
                for name, tensor in state.items()}

    def main(rank, path, nested, shards=None):
        state = sharded(full())
        if nested:
            state = {"model": state, "epoch": 4, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "extra": torch.ones(2)}]}
        before = written()
        dcp.save(state, storage_writer=CheckpointWriter(path, max_shard_size=shards))
        return {name: tensor.tolist() for name, tensor in full().items()}, written() - before
"""


four = pytest.mark.slow("four ranks")


@pytest.mark.parametrize(("suffix", "world"), [(".pt", 2), pytest.param(".safetensors", 4, marks=four)])
def test_shards_of_all_ranks_become_one_file_that_stock_loaders_read(
    ranks: Ranks, tmp_path: Path, suffix: str, world: int
) -> None:
    path = tmp_path / f"model{suffix}"
    nested = suffix == ".pt"
    expected = ranks.run(SAVE, world, str(path), nested)[0][0]
    if nested:
        loaded: Any = torch.load(path, weights_only=True)
        assert loaded["epoch"] == 4
        assert loaded["groups"][0]["betas"] == (0.9, 0.99)
        assert loaded["groups"][0]["extra"].tolist() == [1, 1]
        loaded = loaded["model"]
    else:
        loaded = pytest.importorskip("safetensors.torch").load_file(path)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == expected
    assert loaded["columns"].dtype == torch.float64
    assert all(tensor.is_contiguous() for tensor in loaded.values())
    ours = zerocopy.load(path)
    ours = ours["model"] if nested else ours
    assert {name: tensor.tolist() for name, tensor in ours.items()} == expected
    assert files(tmp_path) == [path.name]


@pytest.mark.parametrize(("suffix", "world"), [(".safetensors", 2), pytest.param(".bin", 4, marks=four)])
def test_shards_have_an_index_and_are_what_stock_loaders_read(
    ranks: Ranks, tmp_path: Path, suffix: str, world: int
) -> None:
    folder = tmp_path / "model"
    target = folder if suffix == ".safetensors" else tmp_path / "pytorch_model.bin"
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    results = ranks.run(SAVE, world, str(target), False, 300)
    expected = results[0][0]
    folder = target if suffix == ".safetensors" else tmp_path
    index = json.loads((folder / f"{stem}{suffix}.index.json").read_text())
    homes = index["weight_map"]
    shards = sorted(set(homes.values()))
    assert shards == [f"{stem}-{n:05}-of-{len(shards):05}{suffix}" for n in range(1, len(shards) + 1)]
    assert files(folder) == sorted([*shards, f"{stem}{suffix}.index.json"])
    load = torch.load if suffix == ".bin" else pytest.importorskip("safetensors.torch").load_file
    loaded: dict[str, Any] = {}
    for shard in shards:
        found = load(folder / shard)
        assert {homes[name] for name in found} == {shard}
        sizes = [tensor.numel() * tensor.element_size() for tensor in found.values()]
        assert sum(sizes) <= 300 or len(found) == 1
        loaded.update(found)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == expected
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in loaded.values())
    ours = zerocopy.load(folder)
    assert {name: tensor.tolist() for name, tensor in ours.items()} == expected


@four
def test_each_rank_writes_its_own_bytes_of_the_shards(ranks: Ranks, tmp_path: Path) -> None:
    written = ranks.run(SPLIT, 4, str(tmp_path / "model"))
    for nbytes in written:
        assert nbytes == pytest.approx(8 * 64 * 2048, rel=0.01)
    assert len(files(tmp_path / "model")) == 5


SPLIT = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    class Counting(CheckpointWriter):
        def write_data(self, plan, planner):
            before = written()
            done = super().write_data(plan, planner)
            self.nbytes = written() - before
            return done

    def main(rank, path):
        mesh = init_device_mesh("cpu", (4,))
        state = {f"layer{i}": distribute_tensor(torch.ones(64, 2048), mesh, [Shard(0)]) for i in range(8)}
        writer = Counting(path, max_shard_size="1MiB")
        dcp.save(state, storage_writer=writer)
        return writer.nbytes
"""

FAILS = """
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    class Failing(DefaultSavePlanner):
        how = None
        def resolve_data(self, item):
            if dist.get_rank() == 1 and self.how == "killed":
                os.kill(os.getpid(), 9)
            if dist.get_rank() == 1:
                raise OSError(28, "No space left on device")
            return super().resolve_data(item)

    def main(rank, path, how, shards=None):
        mesh = init_device_mesh("cpu", (2,))
        state = {name: distribute_tensor(torch.zeros(64, 8), mesh, [Shard(0)]) for name in ("w", "v")}
        planner = Failing()
        planner.how = how
        writer = CheckpointWriter(path, max_shard_size=shards)
        error = failure(dcp.save, state, storage_writer=writer, planner=planner)
        import gc
        del writer
        gc.collect()  # dcp's functions refer to each other
        return error, sorted(os.listdir(os.path.dirname(path)))
"""


two = pytest.mark.slow("two ranks, and one of them fails")


@pytest.mark.parametrize(
    ("how", "suffix"), [("raises", ".pt"), pytest.param("killed", ".safetensors", marks=two)]
)
def test_a_rank_that_fails_leaves_the_old_file_whole(
    ranks: Ranks, tmp_path: Path, how: str, suffix: str
) -> None:
    if how == "raises":
        require_reports()
    path = tmp_path / f"model{suffix}"
    zerocopy.convert(_saved(tmp_path / "first.pt"), path)
    (tmp_path / "first.pt").unlink()
    before = path.read_bytes()
    results = ranks.run(FAILS, 2, str(path), how, killed=(1,) if how == "killed" else (), timeout=20)
    error, _ = results[0]
    assert error is not None
    if how == "raises":
        assert error[0] == {"1": "OSError"}
        assert "No space left on device" in error[1]
        assert results[0][1] == [path.name]  # the new file was deleted
    assert path.read_bytes() == before
    zerocopy.save({"w": torch.ones(2)}, tmp_path / "other.pt")
    zerocopy.convert(tmp_path / "other.pt", path)  # deletes what a killed writer left
    assert files(tmp_path) == sorted(["other.pt", path.name])


@two
@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_rank_that_fails_leaves_the_old_shards_whole(ranks: Ranks, tmp_path: Path, how: str) -> None:
    if how == "raises":
        require_reports()
    index = tmp_path / "model.safetensors.index.json"
    old = {"w": torch.ones(64, 8), "v": torch.full((64, 8), 2.0)}
    save_sharded(old, index)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    assert len(before) == 3
    results = ranks.run(FAILS, 2, str(index), how, 2048, killed=(1,) if how == "killed" else (), timeout=20)
    assert results[0][0] is not None
    if how == "raises":
        assert results[0][0][0] == {"1": "OSError"}
        assert results[0][1] == sorted(before)  # the new files were deleted
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert torch.equal(zerocopy.load(index)["v"], old["v"])
    save_sharded({"w": torch.zeros(64, 8)}, index)  # deletes the old shards, and what a killed save left
    assert len(files(tmp_path)) == 2
    assert list(zerocopy.load(index)) == ["w"]


def save_sharded(state: dict[str, torch.Tensor], path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=zerocopy.distributed.CheckpointWriter(path, max_shard_size=2048))


def test_index_of_nothing_is_read_as_nothing(tmp_path: Path) -> None:
    dcp = require_dcp()
    save_sharded({}, tmp_path)
    assert zerocopy.load(tmp_path) == {}
    dcp.load({}, storage_reader=zerocopy.distributed.CheckpointReader(tmp_path))
    with zerocopy.open(tmp_path) as opened:
        assert opened.metadata() == {}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _saved(path: Path) -> Path:
    torch.save({"w": torch.ones(64, 8)}, path)
    return path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestOneProcess:
    """Without a process group."""

    @pytest.fixture(autouse=True)
    def _dcp(self) -> None:
        self.dcp = require_dcp()

    def save(self, state: dict[str, Any], path: Path, **options: Any) -> Path:
        self.dcp.save(state, storage_writer=zerocopy.distributed.CheckpointWriter(path, **options))
        return path

    def test_a_file_is_replaced_and_its_mode_kept(self, tmp_path: Path) -> None:
        path = _saved(tmp_path / "model.pt")
        path.chmod(0o640)
        mapped = zerocopy.load(path)
        self.save({"w": torch.zeros(3)}, path)
        assert torch.equal(torch.load(path)["w"], torch.zeros(3))
        assert bool((mapped["w"] == 1).all())
        assert path.stat().st_mode & 0o777 == 0o640

    def test_values_in_safetensors_and_strange_dtypes_are_refused_and_nothing_is_left(
        self, tmp_path: Path
    ) -> None:
        require_reports()
        for held in ({"w": torch.ones(2), "step": 3}, {"w": torch.ones(2, dtype=torch.complex128)}):
            with pytest.raises(BaseException, match="safetensors"):
                self.save(held, tmp_path / "model.safetensors")
        assert files(tmp_path) == []

    @pytest.mark.parametrize("options", [{}, {"max_shard_size": 16}])
    def test_a_name_that_safetensors_reserves_is_refused_and_the_old_file_kept(
        self, options: dict[str, Any], tmp_path: Path
    ) -> None:
        require_reports()
        path = tmp_path if options else tmp_path / "model.safetensors"
        self.save({"w": torch.ones(2)}, path, **options)
        before = files(tmp_path)
        with pytest.raises(BaseException, match="a name that the format reserves"):
            self.save({"w": torch.ones(2), "__metadata__": torch.zeros(2)}, path, **options)
        assert files(tmp_path) == before
        assert torch.equal(zerocopy.load(path)["w"], torch.ones(2))

    def test_shards_of_a_later_save_do_not_touch_those_of_the_old_index(self, tmp_path: Path) -> None:
        state = {f"w{i}": torch.full((4,), float(i)) for i in range(3)}
        keep = tmp_path / "model-00009-of-00009.safetensors"
        keep.write_bytes(b"of somebody else")
        for turn, stem in ((0, "model"), (1, "model-2"), (2, "model")):
            old = zerocopy.load(tmp_path) if turn else None
            names = self.save_shards({name: tensor + turn for name, tensor in state.items()}, tmp_path)
            assert names == [f"{stem}-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
            if old is not None:  # still mapped
                assert all(torch.equal(old[name], tensor + turn - 1) for name, tensor in state.items())
            found = zerocopy.load(tmp_path)
            assert all(torch.equal(found[name], tensor + turn) for name, tensor in state.items())
            assert files(tmp_path) == sorted([*names, keep.name, "model.safetensors.index.json"])

    def save_shards(self, state: dict[str, Any], folder: Path) -> list[str]:
        self.save(state, folder, max_shard_size=16)
        homes = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        return [homes[name] for name in state]

    def test_an_index_that_names_other_files_does_not_have_them_deleted(self, tmp_path: Path) -> None:
        names = ["tokenizer.json", "../outside-00001-of-00001.safetensors", "model.safetensors"]
        folder = tmp_path / "model"
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(b"keep")
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {str(n): name for n, name in enumerate(names)}}))
        self.save_shards({"w": torch.ones(1)}, folder)
        assert all((folder / name).read_bytes() == b"keep" for name in names)

    def test_values_in_shards_and_wrong_sizes_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="a size with its unit"):
            zerocopy.distributed.CheckpointWriter(tmp_path, max_shard_size="much")
        require_reports()
        folder = tmp_path / "new"
        for name in ("model.pt", "model.safetensors"):
            with pytest.raises(BaseException, match="shards hold tensors only, found 1 other values: step"):
                self.save({"w": torch.ones(2), "step": 3}, folder / name, max_shard_size=16)
        assert not folder.exists()

    def test_a_tensor_larger_than_a_shard_and_an_empty_state_are_saved(self, tmp_path: Path) -> None:
        state = {"small": torch.ones(2), "large": torch.arange(100), "last": torch.ones(1)}
        assert len(set(self.save_shards(state, tmp_path))) == 3
        found = zerocopy.load(tmp_path)
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
        self.save_shards({}, tmp_path / "empty")
        assert zerocopy.load(tmp_path / "empty") == {}

    def test_names_in_a_file_have_the_order_of_the_state(self, tmp_path: Path) -> None:
        state = {name: torch.ones(1) for name in "zaymb"}
        assert list(torch.load(self.save(state, tmp_path / "model.pt"))) == list("zaymb")

    def test_a_planner_that_sends_plans_of_an_earlier_save_is_refused_and_the_file_kept(
        self, tmp_path: Path
    ) -> None:
        require_reports()
        planner_class = self.dcp.DefaultSavePlanner
        if "enable_plan_caching" not in inspect.signature(planner_class).parameters:
            pytest.skip("this release caches no plans")

        class Caching(planner_class):  # type: ignore[misc,valid-type]
            """Its name is the key of what is cached."""

        path = tmp_path / "model.pt"
        writer = zerocopy.distributed.CheckpointWriter
        self.dcp.save(
            {"w": torch.ones(2)}, storage_writer=writer(path), planner=Caching(enable_plan_caching=True)
        )
        with pytest.raises(BaseException, match="enable_plan_caching=False"):
            self.dcp.save(
                {"w": torch.zeros(2)}, storage_writer=writer(path), planner=Caching(enable_plan_caching=True)
            )
        assert torch.load(path)["w"].tolist() == [1, 1]
        assert files(tmp_path) == ["model.pt"]

    def test_another_suffix_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"expected a name that ends in one of \.pt"):
            zerocopy.distributed.CheckpointWriter(tmp_path / "model")
        for size in (None, 2048):
            with pytest.raises(zerocopy.UnsupportedError, match="URLs are only read"):
                zerocopy.distributed.CheckpointWriter("s3://bucket/model.pt", max_shard_size=size)

    def test_alignment_places_every_storage(self, tmp_path: Path) -> None:
        state = {f"w{i}": torch.full((i + 1,), float(i)) for i in range(5)}
        path = self.save(state, tmp_path / "model.pt", alignment=4096)
        assert [extent.offset % 4096 for extent in zerocopy.storage_offsets(path).values()] == [0] * 5
        assert torch.load(path).keys() == state.keys()

    def test_every_dtype_of_this_release_comes_back(self, tmp_path: Path) -> None:
        names = ["bool", "uint8", "int16", "uint16", "float16", "bfloat16", "float8_e4m3fn", "complex64"]
        state = {name: torch.ones(3).to(getattr(torch, name)) for name in names if hasattr(torch, name)}
        loaded = torch.load(self.save(state, tmp_path / "model.pt"))
        for name, tensor in state.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name].to(torch.complex64), tensor.to(torch.complex64))

    def test_views_and_transposed_tensors_are_saved_row_by_row(self, tmp_path: Path) -> None:
        base = torch.arange(24.0).view(4, 6)
        state = {"t": base.t(), "part": base[1:3, 2:5], "conj": torch.tensor([1 + 2j]).conj()}
        loaded = torch.load(self.save(state, tmp_path / "model.pt"))
        for name, tensor in state.items():
            assert torch.equal(loaded[name], tensor.resolve_conj())
            assert loaded[name].is_contiguous()
