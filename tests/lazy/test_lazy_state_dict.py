"""``load_state_dict`` of modules and optimizers takes what ``lazy_load`` gives, as it takes real tensors."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import inspect
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import Child, Saver, maps_of, outcome, saved_bytes
from equality import assert_same
from lazily import compared

import zerocopy

pytestmark = pytest.mark.filterwarnings("ignore")  # of meta modules, which are meant

HAS_ASSIGN = "assign" in inspect.signature(torch.nn.Module.load_state_dict).parameters
HAS_SWAP = hasattr(getattr(torch, "__future__", None), "set_swap_module_params_on_conversion")
Options = dict[str, Any]


class Scaled(torch.nn.Module):
    """Has a 0-dim parameter, a 0-dim buffer, and state of its own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(()))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.note: Any = "x"

    def get_extra_state(self) -> Any:
        return {"note": self.note, "tensor": torch.full((2,), float(len(self.note)))}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"] * int(state["tensor"][0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.count


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def network() -> torch.nn.Module:
    layers = (
        torch.nn.Linear(4, 4),
        torch.nn.BatchNorm1d(4),
        Tied(),
        torch.nn.Linear(4, 4).requires_grad_(False),
        Scaled(),
    )
    return torch.nn.Sequential(collections.OrderedDict(zip("abcde", layers, strict=True)))


def seeded(make: Callable[[], torch.nn.Module] = network, seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return make()


def trained() -> dict[str, Any]:
    """Return the state of a network whose BatchNorm has seen something."""
    module = seeded(seed=2)
    module(torch.rand(8, 4))
    return module.state_dict()


@contextlib.contextmanager
def swapping(on: bool) -> Iterator[None]:
    """Let ``load_state_dict`` swap tensors."""
    if not on:
        yield
        return
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def in_meta(make: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    return lambda: make().to("meta")


MODES: dict[str, tuple[Options, bool]] = {
    "copy": ({}, False),
    **({"assign": ({"assign": True}, False)} if HAS_ASSIGN else {}),
    **({"swap": ({}, True), "swap and assign": ({"assign": True}, True)} if HAS_SWAP else {}),
}
MODE = pytest.mark.parametrize("mode", MODES)


def load(module: torch.nn.Module, state: Any, mode: str, **options: Any) -> Any:
    """Load a state into a module in one of the modes."""
    given, swap = MODES[mode]
    with swapping(swap):
        return module.load_state_dict(state, **given, **options)


def both(source: Any) -> tuple[Any, Any]:
    """Return a checkpoint, loaded at once and lazily."""
    return zerocopy.load(source), zerocopy.lazy_load(source)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "as it is": lambda state: None,
    "a key is missing": lambda state: state.pop("a.weight"),
    "a key is unexpected": lambda state: state.update({"f.weight": state["a.weight"]}),
    "another shape": lambda state: state.update({"a.weight": state["a.bias"]}),
    "one element for none": lambda state: state.update({"e.scale": state["a.bias"][:1]}),
    "not a tensor": lambda state: state.update({"a.bias": 7}),
    "another dtype": lambda state: state.update({"a.bias": state["e.mask"].repeat(2)}),
    "a view": lambda state: state.update({"a.weight": state["c.first.weight"].t()}),
    "no _metadata": lambda state: delattr(state, "_metadata"),
    "no extra state": lambda state: state.pop("e._extra_state"),
}


@MODE
@pytest.mark.parametrize("change", CHANGES)
def test_module_takes_placeholders_as_it_takes_tensors(save: Saver, change: str, mode: str) -> None:
    """The same module comes of it, or the same words."""
    path = save(trained())
    for strict, make in itertools.product((True, False), (network, in_meta(network))):
        modules, answers = [], []
        for state in both(path):
            CHANGES[change](state)
            module = seeded(make)
            answers.append(outcome(lambda m=module, s=state, k=strict: load(m, s, mode, strict=k)))
            modules.append(module)
        assert_same(*answers[::-1])
        compared(modules[1], modules[0])
        if not any(parameter.is_meta for parameter in modules[0].parameters()):
            x = torch.rand(8, 4)
            results = [outcome(lambda m=module, x=x: m(x).sum().backward()) for module in modules]
            assert [found[0] for found in results] == ["value", "value"] or results[0] == results[1]
            compared(modules[1], modules[0])


@MODE
def test_copied_tensors_release_the_file(save: Saver, mode: str) -> None:
    """The file is let go of, but where its tensors become the module's."""
    path = save(trained())
    lazy = zerocopy.lazy_load(path)
    module = seeded()
    del lazy["e._extra_state"], lazy["e.scale"]
    load(module, lazy, mode, strict=False)
    gc.collect()
    assert bool(maps_of(path)) == ("assign" in mode)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@MODE
def test_converted(save: Saver, mode: str, dtype: torch.dtype) -> None:
    """``dtype=`` is what a checkpoint would be that was saved so: with the ties that it has."""
    path = save(trained())
    modules = [seeded(), seeded()]
    made: dict[Any, torch.Tensor] = {}

    def cast(value: Any) -> Any:
        if not getattr(value, "is_floating_point", bool)():
            return value
        shown = value.data_ptr(), value.size(), value.stride()
        return made.setdefault(shown, value.to(dtype)).detach()

    eager = collections.OrderedDict((name, cast(value)) for name, value in zerocopy.load(path).items())
    for module, state in zip(modules, (eager, zerocopy.lazy_load(path, dtype=dtype)), strict=True):
        del state["e._extra_state"]
        load(module, state, mode, strict=False)
    compared(modules[1], modules[0])


def saved_and_loaded(module: torch.nn.Module) -> Any:
    return torch.load(io.BytesIO(saved_bytes(module)), weights_only=False)


AFTER: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved_and_loaded,
    "state_dict": lambda module: dict(module.state_dict()),
    "half": lambda module: module.half(),
    "to meta": lambda module: module.to("meta"),
    "requires_grad_": lambda module: module.requires_grad_(False),
    "train": lambda module: [module(torch.ones(3, 4)).sum().backward(), module],
    "apply": lambda module: module.apply(lambda part: part.register_buffer("new", torch.ones(1))),
    "data": lambda module: [p.data.add_(1) for p in module.parameters()] and module,
    "optimized": lambda module: [optimized(module, torch.optim.Adam, {"lr": 0.1}), module],
}


@pytest.mark.skipif(not HAS_ASSIGN, reason="this release copies always")
@pytest.mark.parametrize("parameters", [False, True], ids=["tensors in the file", "parameters in the file"])
def test_module_with_assigned_tensors_works_like_any_other(save: Saver, parameters: bool) -> None:
    """Parameters of the file become placeholders."""
    path = save(seeded(seed=2).state_dict(keep_vars=parameters))
    for use in AFTER.values():
        results = []
        for state in both(path):
            module = seeded()
            module.load_state_dict(state, assign=True)
            torch.manual_seed(0)
            results.append([outcome(lambda m=module, use=use: use(m)), module])
        assert results[0][0][0] == "value", results[0][0]
        compared(*results[::-1])


def optimized(module: torch.nn.Module, cls: Any, options: Options, steps: int = 2) -> Any:
    """Take some steps; return the optimizer."""
    optimizer = cls(module.parameters(), **options)
    return stepped(module, optimizer, steps)


def stepped(module: torch.nn.Module, optimizer: Any, steps: int = 2) -> Any:
    """Take some steps of an optimizer; return it."""
    dtype = next(module.parameters()).dtype
    for i in range(steps):

        def closure(i: int = i) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (module(torch.full((3, 4), i + 0.5, dtype=dtype)) ** 2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return optimizer


def small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def takes(cls: Any, options: Options) -> bool:
    """Return whether an optimizer of this release has the options, for tensors on the CPU."""
    if not options.keys() <= inspect.signature(cls).parameters.keys():
        return False
    return outcome(lambda: optimized(seeded(small), cls, options))[0] == "value"


OPTIMIZERS: dict[str, tuple[Any, Options]] = {
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "fused": (torch.optim.Adam, {"lr": 0.1, "fused": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "foreach": True}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["same dtype", "other dtype"])
def test_optimizer(save: Saver, name: str, dtype: torch.dtype) -> None:
    """It goes on as with real tensors, and its own state dict is the same then."""
    cls, options = OPTIMIZERS[name]
    if not takes(cls, options):
        pytest.skip("this release has no such optimizer")
    module = seeded(small)
    path = save(optimized(module, cls, options).state_dict())
    results = []
    for state in both(path):
        module = seeded(small, 3).to(dtype)
        optimizer = cls(module.parameters(), **options)
        optimizer.load_state_dict(state)
        loaded = copy.deepcopy(optimizer.state_dict())
        stepped(module, optimizer, 3)
        again = cls(module.parameters(), **options)
        again.load_state_dict(optimizer.state_dict())
        stepped(module, again)
        results.append([loaded, module.state_dict(), optimizer.state_dict(), again.state_dict()])
    compared(*results[::-1])
    resaved = [saved_bytes(result[2]) for result in results]
    compared(zerocopy.load(resaved[1]), zerocopy.load(resaved[0]))


MEGABYTE = 1 << 20
PEAK = """
    import re, sys, threading, torch, zerocopy
    def private():
        return int(re.search(r"Anonymous: *(\\d+)", open("/proc/self/smaps_rollup").read())[1]) << 10
    def module():
        return torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(SIZE, dtype=dtype)) for _ in range(16)])
    path, small, dtype, SIZE = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3]), 1 << 20
    into = module()
    def load(path, into):
        into.load_state_dict(zerocopy.lazy_load(path, **({"dtype": dtype} if dtype != torch.float32 else {})))
    SIZE = 10
    load(small, module())  # imports, caches
    before = peak = private()
    done = threading.Event()
    def watch():
        global peak
        while not done.is_set():
            peak = max(peak, private())
    thread = threading.Thread(target=watch)
    thread.start()
    load(path, into)
    done.set()
    thread.join()
    assert all(float(p[7]) == i for i, p in enumerate(into))
    print(before, max(peak, private()), sum(p.numel() * p.element_size() for p in into))
"""


@pytest.mark.slow("files of 64 MiB")
@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.parametrize("kind", ["stored", "deflated", "converted", "legacy"])
def test_private_memory_of_copying(tmp_path: Path, forked: Child, kind: str) -> None:
    """The module, one tensor, and some megabytes: for a file of 64 MiB, of tensors of 4 MiB."""
    paths = []
    for name, size in (("big.pt", 1 << 20), ("small.pt", 10)):
        state = {str(i): torch.full((size,), float(i)) for i in range(16)}
        content = saved_bytes(state, _use_new_zipfile_serialization=kind != "legacy")
        paths.append(tmp_path / name)
        paths[-1].write_bytes(rezip(content, 8) if kind == "deflated" else content)
    done = forked(PEAK, *paths, "float16" if kind == "converted" else "float32")
    assert done.returncode == 0, done.stderr
    before, peak, module = map(int, done.stdout.split())
    # The module was there before; its pages come as they are written.
    assert peak - before < module + 4 * MEGABYTE + 20 * MEGABYTE
