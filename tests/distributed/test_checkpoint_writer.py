"""CheckpointWriter: torch.distributed.checkpoint.save into one plain file, by processes of one group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_errors import require_reports
from ranks import Ranks

import zerocopy

SAVE = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def full():
        torch.manual_seed(0)
        return {
            "rows": torch.randn(10, 12), "columns": torch.randn(9, 14).bfloat16(), "bias": torch.randn(7),
            "grid": torch.randn(6, 8, 3), "scale": torch.tensor(3.0), "ids": torch.arange(9),
            "empty": torch.zeros(0, 3), "mask": torch.tensor([True, False]),
        }

    def sharded(state):
        line = init_device_mesh("cpu", (4,))
        grid = init_device_mesh("cpu", (2, 2))
        layouts = {"rows": (line, [Shard(0)]), "columns": (line, [Shard(1)]), "bias": (line, [Shard(0)]),
                   "grid": (grid, [Shard(0), Shard(1)]), "scale": (line, [Replicate()]),
                   "empty": (line, [Shard(0)])}
        return {name: distribute_tensor(tensor, *layouts[name]) if name in layouts else tensor
                for name, tensor in state.items()}

    def main(rank, path, nested):
        state = sharded(full())
        if nested:
            state = {"model": state, "epoch": 4, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "extra": torch.ones(2)}]}
        dcp.save(state, storage_writer=CheckpointWriter(path))
        return {name: tensor.tolist() for name, tensor in full().items()}
"""


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_shards_of_all_ranks_become_one_file_that_stock_loaders_read(
    ranks: Ranks, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"model{suffix}"
    nested = suffix == ".pt"
    expected = ranks.run(SAVE, 4, str(path), nested)[0]
    if nested:
        loaded: Any = torch.load(path, weights_only=True)
        assert loaded["epoch"] == 4
        assert loaded["groups"][0]["betas"] == (0.9, 0.99)
        assert loaded["groups"][0]["extra"].tolist() == [1, 1]
        loaded = loaded["model"]
    else:
        loaded = pytest.importorskip("safetensors.torch").load_file(path)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == expected
    assert loaded["columns"].dtype == torch.bfloat16
    assert all(tensor.is_contiguous() for tensor in loaded.values())
    ours = zerocopy.load(path)
    ours = ours["model"] if nested else ours
    assert {name: tensor.tolist() for name, tensor in ours.items()} == expected
    assert files(tmp_path) == [path.name]


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

    def main(rank, path, how):
        mesh = init_device_mesh("cpu", (2,))
        state = {"w": distribute_tensor(torch.zeros(64, 8), mesh, [Shard(0)])}
        planner = Failing()
        planner.how = how
        error = failure(dcp.save, state, storage_writer=CheckpointWriter(path), planner=planner)
        import gc
        gc.collect()  # dcp's functions refer to each other
        return error, sorted(os.listdir(os.path.dirname(path)))
"""


@pytest.mark.parametrize("how", ["killed", "raises"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
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
        self.dcp = pytest.importorskip("torch.distributed.checkpoint")

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

    def test_another_suffix_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"expected a name that ends in one of \.pt"):
            zerocopy.distributed.CheckpointWriter(tmp_path / "model")

    def test_alignment_places_every_storage(self, tmp_path: Path) -> None:
        state = {f"w{i}": torch.full((i + 1,), float(i)) for i in range(5)}
        path = self.save(state, tmp_path / "model.pt", alignment=4096)
        assert [extent.offset % 4096 for extent in zerocopy.storage_offsets(path).values()] == [0] * 5
        assert torch.load(path).keys() == state.keys()

    def test_every_dtype_of_this_release_comes_back(self, tmp_path: Path) -> None:
        names = (
            "bool",
            "uint8",
            "int16",
            "uint16",
            "float16",
            "bfloat16",
            "float8_e4m3fn",
            "complex64",
            "float64",
        )
        state = {name: torch.ones(3).to(getattr(torch, name)) for name in names if hasattr(torch, name)}
        loaded = torch.load(self.save(state, tmp_path / "model.pt"))
        assert {name: tensor.dtype for name, tensor in loaded.items()} == {
            name: tensor.dtype for name, tensor in state.items()
        }
        assert all(
            torch.equal(loaded[name].to(torch.complex64), state[name].to(torch.complex64)) for name in state
        )

    def test_views_and_transposed_tensors_are_saved_row_by_row(self, tmp_path: Path) -> None:
        base = torch.arange(24.0).view(4, 6)
        state = {"t": base.t(), "part": base[1:3, 2:5], "conj": torch.tensor([1 + 2j]).conj()}
        loaded = torch.load(self.save(state, tmp_path / "model.pt"))
        for name, tensor in state.items():
            assert torch.equal(loaded[name], tensor.resolve_conj())
            assert loaded[name].is_contiguous()
