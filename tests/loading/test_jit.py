"""``zerocopy.jit.load`` of sound archives: what ``torch.jit.load`` gives, lying in the file."""

from __future__ import annotations

import gc
import gzip
import io
import logging
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import Child, goes_to_stock, lies_in_mapping, maps_of, outcome
from equality import assert_same, untyped
from script_modules import PROGRAMS, Constants, X

import zerocopy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def saved(program: Any, **kwargs: Any) -> Path:
        path = tmp_path / "program.pt"
        torch.jit.save(program, str(path), **kwargs)
        return path

    return saved


@pytest.fixture
def linear(saved: Callable[..., Path]) -> Path:
    return saved(torch.jit.script(torch.nn.Linear(3, 2)), _extra_files={"a.txt": "text", "b/c": b"\xff\0"})


def tensors_of(module: Any) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def ties_of(module: Any) -> list[set[str]]:
    """Return the names of tensors by storage."""
    by_storage: dict[int, set[str]] = {}
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            by_storage.setdefault(untyped(tensor).data_ptr(), set()).add(name)
    return list(by_storage.values())


def assert_same_program(ours: Any, stock: Any, inputs: tuple[Any, ...]) -> None:
    assert type(ours) is type(stock)
    assert ours.original_name == stock.original_name
    ours_modules, stock_modules = dict(ours.named_modules()), dict(stock.named_modules())
    assert ours_modules.keys() == stock_modules.keys()
    for name, module in stock_modules.items():
        mine = ours_modules[name]
        assert type(mine) is type(module) and str(mine._c._type()) == str(module._c._type())
        assert getattr(mine, "training", None) == getattr(module, "training", None)
        assert mine._c._method_names() == module._c._method_names()
        assert [p.requires_grad for p in mine.parameters()] == [p.requires_grad for p in module.parameters()]
    assert_same(dict(ours.state_dict()), dict(stock.state_dict()))
    assert ties_of(ours) == ties_of(stock)
    if hasattr(stock, "forward"):
        assert ours.code == stock.code and ours.code_with_constants[0] == stock.code_with_constants[0]
        assert str(ours.graph) == str(stock.graph)
        torch.manual_seed(0)
        expected = stock(*inputs)
        torch.manual_seed(0)
        assert_same(ours(*inputs), expected)


def assert_in_file(module: Any, path: Path) -> None:
    tensors = [
        tensor for tensor in tensors_of(module).values() if tensor.numel() and tensor.device.type == "cpu"
    ]
    assert all(lies_in_mapping(tensor.data_ptr(), path) for tensor in tensors)


# ------------------------------------------------------------------------------ equal to stock


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_what_stock_gives_also_when_saved_again(
    name: str, saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    program, inputs = PROGRAMS[name]()
    path = saved(program)
    with caplog.at_level(logging.DEBUG, "zerocopy"):
        module = zerocopy.jit.load(path)
    assert not goes_to_stock(caplog)
    assert_same_program(module, torch.jit.load(str(path)), inputs)
    assert_in_file(module, path)
    again = path.with_name("again.pt")
    torch.jit.save(module, str(again))
    assert_same_program(zerocopy.jit.load(again), torch.jit.load(str(again)), inputs)


def test_constants_lie_in_the_file(saved: Callable[..., Path]) -> None:
    path = saved(torch.jit.freeze(torch.jit.trace(Constants().eval(), X)))
    module = zerocopy.jit.load(path)
    constants = [
        node.t("value")
        for node in module.graph.findAllNodes("prim::Constant")
        if "value" in node.attributeNames() and node.kindOf("value") == "t"
    ]
    assert constants and all(lies_in_mapping(constant.data_ptr(), path) for constant in constants)


# ------------------------------------------------------------------------------ where from


def sources(path: Path) -> dict[str, Callable[[], Any]]:
    data = path.read_bytes()

    def wrapped() -> Any:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        file.write(data)
        file.seek(0)
        return file

    return {
        "str": lambda: str(path),
        "file": lambda: path.open("rb"),
        "NamedTemporaryFile": wrapped,
        "gzip": lambda: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data))),
        "bytearray": lambda: bytearray(data),
        "memoryview": lambda: memoryview(data),
        "mmap": lambda: mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_COPY),
    }


def test_sources(linear: Path) -> None:
    for source in sources(linear).values():
        extra = {"a.txt": ""}
        module = zerocopy.jit.load(source(), "cpu", extra)
        assert_same_program(module, torch.jit.load(str(linear)), (X,))
        assert extra == {"a.txt": b"text"}


def test_file_object_in_the_middle(linear: Path, tmp_path: Path) -> None:
    path = tmp_path / "behind"
    path.write_bytes(b"x" * 64 + linear.read_bytes())
    with path.open("rb") as file:
        file.seek(64)
        module = zerocopy.jit.load(file)
        assert file.tell() == path.stat().st_size
    assert_in_file(module, path)
    assert_same_program(module, torch.jit.load(str(linear)), (X,))


def address(buffer: Any) -> int:
    return torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()


def test_writable_buffers_are_shared(linear: Path) -> None:
    buffer = bytearray(linear.read_bytes())
    begin = address(buffer)
    module = zerocopy.jit.load(buffer)
    if module.weight.data_ptr() % 4 == 0 and begin % 16 == 0:
        assert begin <= module.weight.data_ptr() < begin + len(buffer)
        with torch.no_grad():
            module.weight.fill_(7)
        assert torch.jit.load(io.BytesIO(buffer)).weight.eq(7).all()


def test_read_only_buffers(linear: Path) -> None:
    for mode, shared in ((None, False), ("c", False), ("r", True)):
        with linear.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            module = zerocopy.jit.load(memoryview(buffer), mode=mode)
            assert lies_in_mapping(module.weight.data_ptr(), linear) is shared
            del module
            gc.collect()


@pytest.mark.parametrize("mode", ["c", "r", "r+"])
def test_modes(mode: str, linear: Path) -> None:
    module = zerocopy.jit.load(linear, mode=mode)
    assert_same(dict(module.state_dict()), dict(torch.jit.load(str(linear)).state_dict()))
    assert_in_file(module, linear)
    if mode != "r":
        with torch.no_grad():
            module.weight.fill_(7)
    assert bool(torch.jit.load(str(linear)).weight.eq(7).all()) is (mode == "r+")


def test_the_mapping_goes_with_the_module(linear: Path) -> None:
    module = zerocopy.jit.load(linear)
    weight = module.weight
    del module
    gc.collect()
    assert maps_of(linear)
    assert_same(weight, torch.jit.load(str(linear)).weight)
    del weight
    gc.collect()
    assert not maps_of(linear)


def test_alive_when_the_interpreter_ends(linear: Path, forked: Child) -> None:
    done = forked("import sys, zerocopy; m = zerocopy.jit.load(sys.argv[1]); print(m.training)", linear)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# ------------------------------------------------------------------------------ arguments


def test_extra_files(linear: Path) -> None:
    for extra in (None, {}, {"a.txt": ""}, {"a.txt": 5, "b/c": None, "no": "x"}):
        ours, stock = (None if extra is None else dict(extra) for _ in range(2))
        zerocopy.jit.load(linear, _extra_files=ours)
        torch.jit.load(str(linear), _extra_files=stock)
        assert ours == stock


def test_map_location(linear: Path) -> None:
    names = "cpu", "meta", "cuda", "cuda:0", "nonsense", "xla"
    for place in (None, *names, torch.device("cpu"), 0, {}, {"cpu": "cpu"}, print):
        ours = outcome(lambda p=place: zerocopy.jit.load(linear, p))
        stock = outcome(lambda p=place: torch.jit.load(str(linear), p))
        if stock[0] == "error":
            assert (ours[1], ours[2]) == (stock[1], stock[2])
            continue
        for name, tensor in tensors_of(stock[1]).items():
            mine = tensors_of(ours[1])[name]
            assert mine.device == tensor.device and mine.shape == tensor.shape
        if place != "meta":
            assert_same_program(ours[1], stock[1], (X,))


def test_tensors_saved_from_meta(saved: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Linear(3, 2)
    module.register_buffer("nowhere", torch.empty(5, device="meta"))
    path = saved(torch.jit.script(module))
    with caplog.at_level(logging.INFO, "zerocopy"):
        ours = zerocopy.jit.load(path)
    assert "goes to torch.jit.load: it has tensors of the meta device" in caplog.text
    assert ours.nowhere.device.type == "meta" and ours.nowhere.shape == (5,)
    assert_same(ours(X), module(X))


def test_wrong_arguments(linear: Path) -> None:
    for extra in ([], "a.txt", 5, {1: ""}, {b"a.txt": ""}):
        with pytest.raises(TypeError, match="_extra_files must"):
            zerocopy.jit.load(linear, _extra_files=extra)
    for f in (5, None, 1.5, ["x"]):
        with pytest.raises(TypeError):
            zerocopy.jit.load(f)
    with linear.open(encoding="latin-1") as file, pytest.raises(TypeError, match="text mode"):
        zerocopy.jit.load(file)
    with pytest.raises(ValueError, match="mode must be"):
        zerocopy.jit.load(linear, mode="w")


# ------------------------------------------------------------------------------ as other tools leave them


@pytest.mark.parametrize("compression", [0, 8], ids=["stored", "deflated"])
def test_zipped_anew(compression: int, saved: Callable[..., Path]) -> None:
    """Nothing is aligned: such storages are copied, or inflated."""
    program, inputs = PROGRAMS["constants beside parameters"]()
    path = saved(program)
    path.write_bytes(rezip(path.read_bytes(), compression))
    assert_same_program(zerocopy.jit.load(path), torch.jit.load(str(path)), inputs)


def test_through_load(linear: Path) -> None:
    with pytest.warns(UserWarning, match="TorchScript"):
        module = zerocopy.load(linear, weights_only=False)
    assert_same_program(module, torch.jit.load(str(linear)), (X,))
    assert_in_file(module, linear)
    with pytest.raises(zerocopy.UnsupportedError, match=r"zerocopy\.jit\.load"):
        zerocopy.load(linear)
    with pytest.warns(UserWarning, match="TorchScript"), pytest.raises(ValueError, match="map_location"):
        zerocopy.load(linear, {}, weights_only=False)
