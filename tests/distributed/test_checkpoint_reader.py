"""CheckpointReader: torch.distributed.checkpoint.load from plain files, in processes of one group."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_errors import require_dcp, require_reports_of_metadata
from ranks import Ranks
from safetensors_files import saved as safetensors

import zerocopy
from zerocopy.distributed import load_shard
from zerocopy.errors import UnsupportedError

FORMATS = ["pt", "safetensors", "index", "files", "folder"]


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(24, 16),
        "layer.weight": torch.randn(10, 12).double(),
        "layer.bias": torch.randn(7),
        "layer.conv": torch.randn(6, 5, 4),
        "scale": torch.tensor(3.0),
        "ids": torch.arange(9),
        "empty": torch.zeros(0, 3),
    }


def checkpoint(form: str, folder: Path) -> Any:
    """Write a checkpoint, and return what CheckpointReader is given."""
    held = state()
    if form == "pt":
        torch.save(held, folder / "model.pt")
        return str(folder / "model.pt")
    if form == "safetensors":
        (folder / "model.safetensors").write_bytes(safetensors(held))
        return str(folder / "model.safetensors")
    names = list(held)
    shards = {"one.safetensors": names[:3], "two.safetensors": names[3:]}
    if form in ("index", "files"):
        for file, inside in shards.items():
            (folder / file).write_bytes(safetensors({name: held[name] for name in inside}))
        if form == "files":
            return [str(folder / file) for file in shards]
        homes = {name: file for file, inside in shards.items() for name in inside}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
        return str(folder)
    import torch.distributed.checkpoint as dcp

    dcp.save(held, checkpoint_id=folder / "dcp")
    return str(folder / "dcp")


LOAD = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def main(rank, paths, reference, broadcast):
        import socket
        socket.gethostname = lambda: f"host{rank // 2}"
        full = torch.load(reference)
        size = dist.get_world_size()
        grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
        line = init_device_mesh("cpu", (size,))
        layouts = [(line, [Shard(0)]), (line, [Shard(1)]), (line, [Replicate()]), (grid, [Shard(0), Shard(1)]),
                   (grid, [Replicate(), Shard(0)]), (grid, [Shard(0), Shard(0)])]
        checked = 0
        for path in paths:
            for mesh, placements in layouts:
                wanted, state = {}, {}
                for name, tensor in full.items():
                    own = [Replicate() if p.is_shard() and p.dim >= tensor.dim() else p for p in placements]
                    wanted[name] = distribute_tensor(tensor, mesh, own)
                    state[name] = distribute_tensor(torch.zeros_like(tensor), mesh, own)
                dcp.load(state, storage_reader=CheckpointReader(path, broadcast=broadcast))
                for name in full:
                    assert torch.equal(state[name].to_local(), wanted[name].to_local()), (path, name, placements)
                    checked += 1
            plain = {name: torch.zeros_like(tensor).float() for name, tensor in full.items()}
            dcp.load(plain, storage_reader=CheckpointReader(path, broadcast=broadcast))
            for name in full:  # cast to what the target is
                assert torch.equal(plain[name], full[name].float()), (path, name)
                checked += 1
        return checked
"""


two = pytest.mark.slow("two ranks, as with another broadcast")
four = pytest.mark.slow("four ranks")


@pytest.mark.parametrize(
    ("world", "broadcast"),
    [(2, "auto"), *(pytest.param(4, how, marks=four) for how in ("auto", "job", "host"))],
)
def test_load_into_any_sharding_from_any_format_equals_the_whole(
    ranks: Ranks, tmp_path: Path, world: int, broadcast: str
) -> None:
    paths = []
    for form in FORMATS:
        (tmp_path / form).mkdir()
        paths.append(checkpoint(form, tmp_path / form))
    torch.save(state(), tmp_path / "reference.pt")
    checked = ranks.run(LOAD, world, paths, str(tmp_path / "reference.pt"), broadcast)
    assert checked == [len(FORMATS) * 7 * len(state())] * world


MODELS = """
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def model():
        return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 6))

    def main(rank, path):
        x = torch.linspace(-1, 1, 36).view(3, 12)
        plain = model()
        plain.load_state_dict(torch.load(path)["model"])
        with torch.no_grad():
            expected = plain(x)
        mesh = init_device_mesh("cpu", (4,))
        sharded = fully_shard(model(), mesh=mesh)
        try:
            with torch.no_grad():
                sharded(x)
        except AttributeError:  # Debian's PyTorch 2.6 is built without the streams that this takes on a CPU
            return None
        tensor_parallel = parallelize_module(
            model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        worst = 0.0
        for one in (sharded, tensor_parallel):
            held = {"model": one.state_dict()}
            dcp.load(held, storage_reader=CheckpointReader(path))
            one.load_state_dict(held["model"])
            with torch.no_grad():
                worst = max(worst, float((one(x) - expected).abs().max()))
        return worst
"""


@four
def test_load_into_fsdp2_and_tensor_parallel_models_computes_the_same(ranks: Ranks, tmp_path: Path) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("fully_shard: PyTorch 2.6 or later")
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 6))
    torch.save({"model": model.state_dict()}, tmp_path / "model.pt")
    errors = ranks.run(MODELS, 4, str(tmp_path / "model.pt"))
    if None in errors:
        pytest.skip("this build cannot run fully_shard on a CPU")
    assert max(errors) < 1e-5


VALUES = """
    def zeros(value):
        if isinstance(value, torch.Tensor):
            return torch.zeros_like(value)
        if isinstance(value, dict):
            return {key: zeros(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [zeros(inner) for inner in value]
        return None

    def equal(a, b):
        if isinstance(a, torch.Tensor):
            return torch.equal(a, b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
        if isinstance(a, list):
            return len(a) == len(b) and all(map(equal, a, b))
        return a == b

    def main(rank, paths, reference, broadcast):
        full = torch.load(reference, weights_only=False)
        for path in paths:
            held = zeros(full)
            dcp.load(held, storage_reader=CheckpointReader(path, broadcast=broadcast))
            assert equal(held, full), (path, held)
        return len(full)
"""


@pytest.mark.parametrize("broadcast", [pytest.param("off", marks=two), "job"])
def test_load_of_nested_state_brings_values_and_ties(ranks: Ranks, tmp_path: Path, broadcast: str) -> None:
    import torch.distributed.checkpoint as dcp

    weight = torch.randn(4, 3)
    nested = {
        "model": {"embed": weight, "head": weight, "layers": [torch.ones(2), torch.zeros(3)]},
        "optimizer": {
            "state": {"0": {"step": torch.tensor(7.0), "exp_avg": torch.randn(4, 3)}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": [0], "name": None}],
        },
        "epoch": 3,
        "text": "abc",
        "list": [1, 2, 3],
    }
    torch.save(nested, tmp_path / "model.pt")
    dcp.save(nested, checkpoint_id=tmp_path / "dcp")
    paths = [str(tmp_path / "model.pt"), str(tmp_path / "dcp")]
    assert ranks.run(VALUES, 2, paths, paths[0], broadcast) == [5, 5]


ERRORS = """
    def main(rank, path, broken, broadcast):
        def load(state, path=path, **options):
            dcp.load(state, storage_reader=CheckpointReader(path, broadcast=broadcast, **options))
        weight = torch.zeros(24, 16)
        found = {
            "missing key": failure(load, {"embed.weight": weight, "nothing": torch.zeros(3)}),
            "wrong shape": failure(load, {"embed.weight": torch.zeros(24, 17)}),
            "no file": failure(load, {"embed.weight": weight}, path + ".gone"),
            "damaged": failure(load, {"embed.weight": weight}, broken),
            "one rank": failure(load, {"embed.weight": weight} if rank else {"embed.weight": torch.zeros(1)}),
            "no alias": failure(load, {"embed.weight": weight}, aliases={"a": "b"}),
            "fine": failure(load, {"embed.weight": weight}),
        }
        assert torch.equal(weight, torch.load(path)["embed.weight"])
        dist.barrier()
        return found
"""


@pytest.mark.parametrize("broadcast", [pytest.param("off", marks=two), "job"])
def test_errors_of_any_rank_reach_all_of_them(ranks: Ranks, tmp_path: Path, broadcast: str) -> None:
    require_reports_of_metadata()
    path = checkpoint("pt", tmp_path)
    (tmp_path / "broken.pt").write_bytes(Path(path).read_bytes()[:3000])
    for found in ranks.run(ERRORS, 2, path, str(tmp_path / "broken.pt"), broadcast):
        assert found["fine"] is None
        assert set(found["missing key"][0].values()) == {"RuntimeError"}
        assert "Missing key in checkpoint state_dict: nothing" in found["missing key"][1]
        assert set(found["wrong shape"][0].values()) == {"ValueError"}
        assert found["one rank"][0] == {"0": "ValueError"}
        assert "No such file" in found["no file"][1]
        assert "zip" in found["damaged"][1]
        assert "the checkpoint has no such tensor" in found["no alias"][1]
        assert all(len(error[0]) == 2 for name, error in found.items() if name not in ("fine", "one rank"))


BYTES = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, Replicate, distribute_tensor

    class Counting(CheckpointReader):
        read = 0
        def read_data(self, plan, planner):
            before = rchar()
            done = super().read_data(plan, planner)
            self.read = rchar() - before
            return done

    def main(rank, path, dim, broadcast):
        import socket
        socket.gethostname = lambda: f"host{rank // 2}"
        world = dist.get_world_size()
        mesh = init_device_mesh("cpu", (world,))
        placements = [Replicate() if dim is None else Shard(dim)]
        with zerocopy.open(path) as opened:
            infos = opened.tensors()
            each = {}
            for info in infos:
                if dim is not None:
                    begin = info.shape[dim] // world * rank
                    each[info.name] = (slice(None),) * dim + (slice(begin, begin + info.shape[dim] // world),)
                else:
                    each[info.name] = ...
            planned = opened.plan(each).bytes_read
            on_paper = zerocopy.distributed.shard_plan(opened, mesh, placements)
        assert on_paper.ranks[rank].bytes_read == planned
        assert on_paper.reads_of(rank).requests == on_paper.ranks[rank].requests
        state = {info.name: distribute_tensor(torch.zeros(info.shape), mesh, placements) for info in infos}
        reader = Counting(path, broadcast=broadcast)
        dcp.load(state, storage_reader=reader)
        return planned, reader.read
"""


@pytest.mark.parametrize(
    ("dim", "world"), [(0, 2), pytest.param(1, 8, marks=pytest.mark.slow("eight ranks"))]
)
def test_each_rank_reads_the_bytes_of_its_shards_and_no_others(
    ranks: Ranks, tmp_path: Path, dim: int, world: int
) -> None:
    torch.save({f"layer{i}": torch.randn(64, 8192) for i in range(8)}, tmp_path / "model.pt")
    size = (tmp_path / "model.pt").stat().st_size
    for planned, read in ranks.run(BYTES, world, str(tmp_path / "model.pt"), dim, "auto"):
        assert read == pytest.approx(planned, rel=0.01)
        assert size > 0.9 * world * read


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=four)])
def test_one_rank_reads_a_shared_part_and_sends_it(ranks: Ranks, tmp_path: Path, world: int) -> None:
    torch.save({f"layer{i}": torch.randn(64, 8192) for i in range(8)}, tmp_path / "model.pt")
    size = (tmp_path / "model.pt").stat().st_size
    off = ranks.run(BYTES, world, str(tmp_path / "model.pt"), None, "off")
    assert all(read == pytest.approx(size, rel=0.01) for _, read in off)
    job = ranks.run(BYTES, world, str(tmp_path / "model.pt"), None, "job")
    assert sum(read for _, read in job) == pytest.approx(size, rel=0.05)
    assert max(read for _, read in job) < 1.2 * size / world
    host = [read for _, read in ranks.run(BYTES, world, str(tmp_path / "model.pt"), None, "host")]
    for first in range(0, world, 2):  # two ranks are a host
        assert sum(host[first : first + 2]) == pytest.approx(size, rel=0.01)


KILLED = """
    from torch.distributed.checkpoint import DefaultLoadPlanner

    class Dying(DefaultLoadPlanner):
        def resolve_tensor(self, item):
            if dist.get_rank() == 1:
                os.kill(os.getpid(), 9)
            return super().resolve_tensor(item)

    def main(rank, path, broadcast):
        state = {"embed.weight": torch.zeros(24, 16)}
        reader = CheckpointReader(path, broadcast=broadcast)
        return failure(dcp.load, state, storage_reader=reader, planner=Dying())
"""


@pytest.mark.slow("waits until the others notice")
@pytest.mark.parametrize("broadcast", ["off", "job"])
def test_a_rank_that_is_killed_ends_the_load_of_the_others_with_an_error(
    ranks: Ranks, tmp_path: Path, broadcast: str
) -> None:
    path = checkpoint("pt", tmp_path)
    error, killed = ranks.run(KILLED, 2, path, broadcast, killed=(1,), timeout=20)
    assert error is not None and killed is None


def dcp_load(held: dict[str, Any], path: Any, **options: Any) -> dict[str, Any]:
    dcp = require_dcp()
    dcp.load(held, storage_reader=zerocopy.distributed.CheckpointReader(path, **options))
    return held


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
class TestOneProcess:
    """Without a process group."""

    @pytest.fixture(autouse=True)
    def _dcp(self) -> None:
        require_dcp()

    def test_stray_files_beside_an_index_are_not_read(self, tmp_path: Path) -> None:
        path = checkpoint("index", tmp_path)
        (tmp_path / "aaa.safetensors").write_bytes(safetensors({"layer.bias": torch.full((7,), 9.0)}))
        assert torch.equal(
            dcp_load({"layer.bias": torch.zeros(7)}, path)["layer.bias"], state()["layer.bias"]
        )

    def test_an_index_that_contradicts_its_shards_is_refused(self, tmp_path: Path) -> None:
        require_reports_of_metadata()
        path, index = checkpoint("index", tmp_path), tmp_path / "model.safetensors.index.json"
        homes = json.loads(index.read_text())["weight_map"]
        # The kind is dcp's own: some releases wrap what read_metadata raises.
        for home in ("one.safetensors", "../two.safetensors", "3.safetensors", "two.safetensors"):
            index.write_text(json.dumps({"weight_map": {**homes, "scale": home}}))
            if home == homes["scale"]:  # the second file has a name of the first, too
                held = {name: state()[name] for name in list(state())[2:]}
                (tmp_path / home).write_bytes(safetensors(held))
            with pytest.raises(BaseException, match=r"is to be in|not a plain name|No such file"):
                dcp_load({"layer.bias": torch.zeros(7)}, path)

    def test_files_that_have_one_name_twice_are_refused(self, tmp_path: Path) -> None:
        require_reports_of_metadata()
        one, two = checkpoint("files", tmp_path)
        (tmp_path / "copy.safetensors").write_bytes(Path(one).read_bytes())
        with pytest.raises(BaseException, match=r"embed\.weight is in .*one.* and in .*copy"):
            dcp_load({"layer.bias": torch.zeros(7)}, [one, two, tmp_path / "copy.safetensors"])

    def test_a_tie_that_the_file_records_is_found_by_both_names(self, tmp_path: Path) -> None:
        weight = torch.randn(3, 4)
        path = tmp_path / "tied.safetensors"
        path.write_bytes(safetensors({"embed": weight}, {"head": "embed", "format": "pt"}))
        held = dcp_load({"embed": torch.zeros(3, 4), "head": torch.zeros(3, 4)}, path)
        assert torch.equal(held["head"], weight) and torch.equal(held["embed"], weight)

    def test_aliases_find_tied_and_renamed_tensors(self, tmp_path: Path) -> None:
        path = checkpoint("safetensors", tmp_path)
        aliases = {"lm_head.weight": "embed.weight", "bias": "layer.bias"}
        held = {
            "lm_head.weight": torch.zeros(24, 16),
            "bias": torch.zeros(7),
            "embed.weight": torch.zeros(24, 16),
        }
        dcp_load(held, path, aliases=aliases)
        assert torch.equal(held["lm_head.weight"], state()["embed.weight"])
        assert torch.equal(held["bias"], state()["layer.bias"])

    def test_deflated_transposed_and_sparse_tensors_are_loaded_too(self, tmp_path: Path) -> None:
        held = {"t": torch.randn(5, 8).t(), "s": torch.eye(4).to_sparse(), "c": torch.randn(3).add(1j).conj()}
        torch.save(held, tmp_path / "model.pt")
        loaded = dcp_load(
            {"t": torch.zeros(8, 5), "c": torch.zeros(3, dtype=torch.complex64)}, tmp_path / "model.pt"
        )
        assert torch.equal(loaded["t"], held["t"])
        assert torch.equal(loaded["c"], held["c"].resolve_conj())

    def test_nothing_that_a_file_names_is_called(self, tmp_path: Path) -> None:
        require_reports_of_metadata()
        import os

        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "called"),)

        torch.save({"w": torch.ones(3), "v": Evil()}, tmp_path / "model.pt")
        with pytest.raises(BaseException, match="mkdir"):
            dcp_load({"w": torch.zeros(3)}, tmp_path / "model.pt")
        assert not (tmp_path / "called").exists()

    def test_names_that_are_not_clear_are_refused(self, tmp_path: Path) -> None:
        require_reports_of_metadata()
        torch.save({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}, tmp_path / "model.pt")
        with pytest.raises(BaseException, match=r"a\.b"):
            dcp_load({"a.b": torch.zeros(1)}, tmp_path / "model.pt")

    def test_partial_loads_and_whole_checkpoints_without_a_state(self, tmp_path: Path) -> None:
        dcp = require_dcp()
        path = checkpoint("pt", tmp_path)
        held = {"scale": torch.tensor(0.0), "new": torch.ones(2)}
        reader = zerocopy.distributed.CheckpointReader(path)
        planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(held, storage_reader=reader, planner=planner)
        assert held["scale"] == 3 and torch.equal(held["new"], torch.ones(2))

        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

        empty: dict[str, Any] = {}
        dcp.load(empty, storage_reader=reader, planner=_EmptyStateDictLoadPlanner())

    def test_unknown_broadcast_is_refused(self) -> None:
        require_dcp()
        with pytest.raises(
            ValueError, match="expected broadcast to be one of off, host, job, auto, got 'all'"
        ):
            zerocopy.distributed.CheckpointReader("model.pt", broadcast="all")


def test_load_shard_splits_as_torch_chunk(tmp_path: Path) -> None:
    path = checkpoint("pt", tmp_path)
    cases = (("embed.weight", 0), ("embed.weight", 1), ("layer.conv", -1), ("layer.bias", 0))
    with zerocopy.open(path) as opened:
        for (name, dim), world in itertools.product(cases, (1, 3, 4, 9)):
            whole = state()[name]
            chunks = whole.chunk(world, dim)
            for rank in range(world):
                found = load_shard(opened if rank else path, name, dim, rank, world)
                if rank < len(chunks):
                    assert torch.equal(found, chunks[rank])
                else:
                    assert found.numel() == 0 and found.dim() == whole.dim()


def test_load_shard_with_wrong_arguments_names_the_expected(tmp_path: Path) -> None:
    path = checkpoint("pt", tmp_path)
    with pytest.raises(ValueError, match="expected a rank from 0 to 1 of 2, got 2"):
        load_shard(path, "layer.bias", 0, 2, 2)
    with pytest.raises(IndexError, match=r"expected a dimension of a tensor of shape \(7,\), got 1"):
        load_shard(path, "layer.bias", 1, 0, 2)
    with pytest.raises(KeyError, match="layer"):
        load_shard(path, "layer.bia", 0, 0, 2)


def test_classes_of_dcp_on_a_release_without_it_say_which_has_it(tmp_path: Path) -> None:
    from zerocopy._torch import distributed

    if distributed.checkpoint_module() is not None:
        pytest.skip("this release has it")
    for name in ("CheckpointReader", "CheckpointWriter", "LoadPlanner"):
        with pytest.raises(UnsupportedError, match=r"PyTorch 2\.3 or later"):
            getattr(zerocopy.distributed, name)(tmp_path / "model.pt")
