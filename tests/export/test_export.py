"""``zerocopy.export.load``, against ``torch.export.load`` of the running release."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child
from http_server import serving
from sharing import age

import zerocopy
from zerocopy._torch import programs

pytestmark = pytest.mark.filterwarnings("ignore")

exports = pytest.mark.skipif(not programs.has_archives(), reason="this release writes no such archives")
nn = torch.nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("step", torch.ones(2), persistent=False)
        self.table = torch.arange(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(self.step)
        return x + self.count + self.table


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.a, self.b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(24.0)
        self.t = nn.Parameter(whole.view(4, 6).t())
        self.register_buffer("part", whole[6:12])
        self.register_buffer("none", torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.t[:4, :2] + self.part[:2] + self.none.sum()


class Typed(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(16).to(dtype).reshape(4, 4), requires_grad=dtype == torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w.to(torch.float32)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        return {"y": self.fc(x) * scale}


X = torch.linspace(-1, 1, 16).reshape(2, 8)
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, dict[str, Any]]] = {
    "linear": (lambda: nn.Linear(8, 3), X, {}),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.ones(2, 1, 5, 5), {}),
    "attention": (Attention, X[None], {}),
    "tied": (Tied, torch.tensor([1, 2]), {}),
    "mutated buffers": (Counting, torch.ones(2), {}),
    "LoRA": (Lora, X, {}),
    "views": (Views, torch.ones(3, 4), {}),
    "dynamic shapes": (lambda: nn.Linear(8, 3), X, {"dynamic_shapes": ({0: "batch"},)}),
    "bfloat16": (lambda: Typed(torch.bfloat16), torch.ones(1, 4), {}),
    "int8": (lambda: Typed(torch.int8), torch.ones(1, 4), {}),
    "keywords and a dict": (Whole, torch.ones(1, 4), {}),
}
if hasattr(torch, "float8_e4m3fn"):
    PROGRAMS["float8"] = (lambda: Typed(torch.float8_e4m3fn), torch.ones(1, 4), {})


def exported(title: str) -> tuple[Any, torch.Tensor]:
    make, x, options = PROGRAMS[title]
    torch.manual_seed(0)
    if "dynamic_shapes" in options:
        options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    return torch.export.export(make().eval(), (x,), **options), x


def require_same(ours: Any, stock: Any, x: torch.Tensor) -> None:
    """Compare programs: signature, state dict, constants, graph, outputs, and the state after two runs."""
    assert str(ours.graph_signature) == str(stock.graph_signature)
    assert ours.graph_module.code == stock.graph_module.code
    assert str(ours.range_constraints) == str(stock.range_constraints)
    for found, wanted in ((ours.state_dict, stock.state_dict), (ours.constants, stock.constants)):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            got = found[name]
            assert type(got) is type(value) and got.dtype == value.dtype and got.stride() == value.stride()
            assert got.device == value.device
            # torch lets a buffer over the record of a parameter require grad.
            assert got.requires_grad == (value.requires_grad and value.is_leaf)
            assert torch.equal(got.detach().to(torch.float64), value.detach().to(torch.float64)), name
        ties = [
            {a: [b for b in each if each[a].data_ptr() == each[b].data_ptr()] for a in each}
            for each in (found, wanted)
        ]
        if all(value.numel() for value in wanted.values()):
            assert ties[0] == ties[1]
    modules = ours.module(), stock.module()
    for _ in range(2):
        a, b = (module(x) for module in modules)
        assert str(a) == str(b)
    assert str(modules[0].state_dict()) == str(modules[1].state_dict())
    assert str(ours.example_inputs) == str(stock.example_inputs)


@exports
@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_is_that_of_torch(tmp_path: Path, title: str) -> None:
    path = tmp_path / "program.pt2"
    program, x = exported(title)
    torch.export.save(program, path)
    before = path.read_bytes()
    ours = zerocopy.export.load(path)
    assert {storage.how for storage in zerocopy.explain(path).storages} <= {"mapped"}
    require_same(ours, torch.export.load(path), x)
    assert path.read_bytes() == before
    if title not in ("views", "mutated buffers"):
        with zerocopy.open(path) as checkpoint:
            assert {name: tuple(value.shape) for name, value in checkpoint.items()} == {
                name: tuple(value.shape) for name, value in (program.state_dict | program.constants).items()
            }


@exports
def test_weights_lie_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "renamed.bin"
    content = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(512, 512), (torch.ones(1, 512),)), content)
    path.write_bytes(content.getvalue())
    program = zerocopy.export.load(path)
    assert path in [Path(file.path) for file in zerocopy.memory().files]
    weight = program.state_dict["weight"]
    with torch.no_grad():
        weight.zero_()
    assert path.read_bytes() == content.getvalue()


@exports
def test_other_sources_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    program, x = exported("linear")
    torch.export.save(program, path, extra_files={"note.txt": "how it was made"})
    content = path.read_bytes()
    wanted = program.module()(x)
    with path.open("rb") as file:
        for source in (str(path), file, content, memoryview(content), io.BytesIO(content)):
            extra: dict[str, Any] = {"other": 1}
            ours = zerocopy.export.load(source, extra_files=extra)
            assert torch.equal(ours.module()(x), wanted)
            assert extra == {"other": 1, "note.txt": "how it was made"}


@exports
def test_a_url_is_transferred(tmp_path: Path) -> None:
    program, x = exported("linear")
    torch.export.save(program, tmp_path / "program.pt2")
    with serving(tmp_path) as server:
        ours = zerocopy.export.load(server.url("program.pt2"))
        assert torch.equal(ours.module()(x), program.module()(x))


@exports
def test_several_programs_of_one_archive(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import load_pt2, package_pt2

    path = tmp_path / "both.pt2"
    linear, x = exported("linear")
    lora, _ = exported("LoRA")
    package_pt2(path, exported_programs={"model": linear, "adapted": lora})
    stock = load_pt2(path).exported_programs
    require_same(zerocopy.export.load(path), stock["model"], x)
    require_same(zerocopy.export.load(path, name="adapted"), stock["adapted"], x)
    assert "adapted.a.weight" in zerocopy.open(path)
    with pytest.raises(KeyError, match=r"found 'model', 'adapted'|found 'adapted', 'model'"):
        zerocopy.export.load(path, name="none")


@exports
@pytest.mark.parametrize("target", ["weights.pt", "weights.safetensors", "weights.h5", "tensors"])
@pytest.mark.parametrize("title", ["tied", "LoRA"])
def test_weights_from_elsewhere(tmp_path: Path, title: str, target: str) -> None:
    path, other = tmp_path / "program.pt2", tmp_path / target
    program, x = exported(title)
    torch.export.save(program, path)
    make, _, _ = PROGRAMS[title]
    torch.manual_seed(1)
    model = make().eval()
    if target == "tensors":
        given: Any = model.state_dict()
    else:
        torch.save(model.state_dict(), tmp_path / "state.pt")
        zerocopy.convert(tmp_path / "state.pt", other)
        given = other
    ours = zerocopy.export.load(path, weights=given)
    assert torch.equal(ours.module()(x), model(x))
    for name, value in program.state_dict.items():
        assert type(ours.state_dict[name]) is type(value)
        assert ours.state_dict[name].requires_grad == value.requires_grad


@exports
def test_wrong_weights_are_refused_together(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(exported("linear")[0], path)
    with pytest.raises(RuntimeError, match=r"weight is missing, bias is torch.float64 \(3,\) on cpu"):
        zerocopy.export.load(
            path, weights={"bias": torch.ones(3, dtype=torch.float64), "more": torch.ones(1)}
        )
    with pytest.raises(TypeError, match="expected tensors by name"):
        zerocopy.export.load(path, weights={"bias": 1})  # type: ignore[dict-item]
    nowhere = {"weight": torch.ones(3, 8, device="meta"), "bias": torch.ones(3)}
    with pytest.raises(RuntimeError, match=r"on meta, and the program needs torch\.float32"):
        zerocopy.export.load(path, weights=nowhere)
    turned = {"weight": torch.arange(24.0).reshape(8, 3).t(), "bias": torch.zeros(3)}
    ours = zerocopy.export.load(path, weights=turned)
    assert ours.state_dict["weight"].is_contiguous()
    assert torch.allclose(ours.module()(X), X @ turned["weight"].t())


class Scaled(torch.Tensor):
    """A wrapper whose weight torch pickles."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = torch.utils._pytree.tree_map(lambda x: x.inner if isinstance(x, Scaled) else x, args)
        result = function(*args, **(kwargs or {}))
        return Scaled(result) if "detach" in str(function) or "clone" in str(function) else result


class WithSubclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(Scaled(torch.arange(12.0).reshape(3, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w.t()


@exports
def test_a_pickled_weight_goes_to_the_safe_machine(tmp_path: Path) -> None:
    path = tmp_path / "subclass.pt2"
    x = torch.ones(2, 4)
    torch.export.save(torch.export.export(WithSubclass(), (x,)), path)
    with pytest.raises(pickle.UnpicklingError, match="Scaled"):
        zerocopy.export.load(path)
    stock = torch.export.load(path).module()(x)
    with zerocopy.safe_globals([Scaled]):
        ours = zerocopy.export.load(path)
    assert type(ours.state_dict["w"]) is type(torch.export.load(path).state_dict["w"])
    assert torch.equal(ours.module()(x), stock)
    with zerocopy.patched(export=True):  # a program that trusts its file, as without the patch
        assert torch.equal(torch.export.load(path).module()(x), stock)


@exports
def test_the_patch_maps_and_leaves_the_rest_to_torch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "program.pt2"
    program, x = exported("linear")
    torch.export.save(program, path)
    original = torch.export.load
    with zerocopy.patched(export=True):
        assert torch.export.load is not original
        extra: dict[str, Any] = {}
        ours = torch.export.load(path, extra_files=extra)
        assert path in [Path(file.path) for file in zerocopy.memory().files]
        assert torch.equal(ours.module()(x), program.module()(x))
        path.write_bytes(path.read_bytes()[:-100])
        with caplog.at_level("DEBUG", "zerocopy"), pytest.raises(Exception) as ours_raised:
            torch.export.load(path)
        assert any("goes to torch.export.load" in record.message for record in caplog.records)
        with pytest.raises(TypeError):
            torch.export.load()
    assert torch.export.load is original
    with pytest.raises(type(ours_raised.value)):
        torch.export.load(path)


@exports
@pytest.mark.parametrize("title", ["tied", "mutated buffers", "dynamic shapes"])
def test_a_kept_result_is_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "program.pt2"
    program, x = exported(title)
    torch.export.save(program, path)
    age(path)
    require_same(zerocopy.share.load(zerocopy.export.load, path), torch.export.load(path), x)
    (entry,) = zerocopy.share.status()
    assert entry.mapped >= sum(weight.nbytes for weight in {*program.state_dict.values()})


@exports
def test_a_program_under_patch_all_keeps_its_weights_in_the_file(tmp_path: Path, forked: Child) -> None:
    path = tmp_path / "program.pt2"
    program, x = exported("linear")
    torch.export.save(program, path)
    age(path)
    code = """
        import sys, torch, zerocopy
        zerocopy.share.patch_all()
        program = torch.export.load(sys.argv[1])
        print(program.module()(torch.linspace(-1, 1, 16).reshape(2, 8)).tolist())
        print(*((entry.what, entry.mapped >= 108) for entry in zerocopy.share.status()))
    """
    for _ in range(2):
        done = forked(code, path, ZEROCOPY_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        values, kept = done.stdout.splitlines()
        assert values == str(program.module()(x).tolist())
        assert kept == "('torch.export.load', True)"


@exports
@pytest.mark.slow("starts a process")
def test_a_fresh_process_loads_and_shares(tmp_path: Path, child: Child) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(nn.Linear(4096, 4096), (torch.ones(1, 4096),)), path)
    done = child(
        """
import sys, torch, zerocopy
import torch.export
program = zerocopy.export.load(sys.argv[1])
print(program.module()(torch.ones(1, 4096)).shape)
print(*(file.private for file in zerocopy.memory().files))
""",
        path,
    )
    assert done.stdout.split("\n")[1] == "0", (done.stdout, done.stderr)


@pytest.mark.skipif(programs.has_archives(), reason="this release has such archives")
def test_other_releases_name_themselves(tmp_path: Path) -> None:
    with pytest.raises(zerocopy.UnsupportedError, match=r"need 2\.9 or later"):
        zerocopy.export.load(tmp_path / "none.pt2")
    with pytest.raises(zerocopy.UnsupportedError, match=torch.__version__.partition("+")[0]):
        zerocopy.patch(export=True)


@exports
def test_wrong_arguments_say_what_was_expected(tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    torch.save({"a": torch.ones(1)}, state)
    with pytest.raises(zerocopy.UnsupportedError, match="expected a program of torch"):
        zerocopy.export.load(state)
    with pytest.raises(FileNotFoundError):
        zerocopy.export.load(tmp_path / "none.pt2")
    with pytest.raises(TypeError, match="extra_files"):
        zerocopy.export.load(state, extra_files=1)  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError):
        zerocopy.export.load(tmp_path)
    with pytest.raises(TypeError, match="name"):
        zerocopy.export.load(state, name=1)  # type: ignore[arg-type]
    with warnings.catch_warnings(), pytest.raises(TypeError):
        zerocopy.export.load(3)  # type: ignore[arg-type]
