"""Shared by the tests of ``share``: a cache of their own, and functions whose results are kept."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from zerocopy import share
from zerocopy.share.api import Result


class Module(torch.nn.Module):
    """Parameters, a buffer, a tie, a hook, an attribute, a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(40, 40)
        self.second = torch.nn.Linear(40, 40)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("steps", torch.arange(5))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.note = {"name": "model"}
        self.register_forward_hook(double)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def double(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


class Box:
    """An object with others in it, that can be referred to weakly."""

    def __init__(self, *things: Any, **named: Any) -> None:
        self.things, self.named = things, named


def box(*things: Any, **named: Any) -> Box:
    return Box(*things, **named)


def itself(thing: Any) -> Any:
    return thing


def changed_box(module: torch.nn.Module) -> Box:
    with torch.no_grad():
        module.frozen.add_(1)
    return Box(module)


def counted(log: bytes, value: Any = None, seconds: float = 0.0) -> Any:
    """Return a tensor, and leave a line for each time that this was called."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"called\n")
    os.close(descriptor)
    time.sleep(seconds)
    return {"value": value, "tensor": torch.arange(1000.0)}


def told(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def read_all(folders: Box) -> int:
    return sum(1 + len(path.read_text()) for folder in folders.things for path in folder.iterdir())


class TwoParts(os.PathLike[str]):
    """A path that is made of more than its text."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def __fspath__(self) -> str:
        return f"{self.folder}/{self.name}"


def read_at(path: os.PathLike[str]) -> tuple[os.PathLike[str], str]:
    return path, Path(path).read_text()


def calls_in(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def filled(size: int, value: int = 0) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


class OwnError(Exception):
    """One that pickle cannot make again: its arguments are not those of its maker."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.second, self.lock = second, threading.Lock()


def fail(kind: type[BaseException], *args: Any) -> None:
    raise kind(*args)


def nested(log: bytes) -> Any:
    return share.load(counted, log)


def view_of(content: bytes, shape: tuple[int, int] | None, is_readonly: bool) -> memoryview:
    view = memoryview(content if is_readonly else bytearray(content))
    return view if shape is None else view.cast("I", shape)


def mapped_arrays(path: str) -> Any:
    changeable, values = numpy.load(path, mmap_mode="c"), numpy.arange(20_000.0)
    masked = numpy.ma.masked_array(values, values > 5, fill_value=7)
    records = numpy.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", int), ("b", float)])
    return numpy.load(path, mmap_mode="r"), changeable, changeable[2:], values, masked, records, records["b"]


class Scripted(torch.nn.Module):
    """A module with a TorchScript module in it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.jit.script(torch.nn.Linear(64, 64).eval())
        self.scale = torch.nn.Parameter(torch.full((), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


class Quantized(torch.nn.Parameter):
    """As those of bitsandbytes: a constructor that converts, and a state beside the data."""

    def __new__(cls, data: Any, requires_grad: bool = False, scale: Any = None) -> Any:
        self: Any = torch.Tensor._make_subclass(cls, (data / scale).to(torch.int8), requires_grad)
        self.scale, self.state = scale, {"codes": torch.arange(16.0), "self": None}
        return self

    def __getstate__(self) -> Any:
        raise AssertionError("it expects __setstate__")

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("it expects what __getstate__ returns")

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError


def quantized() -> Any:
    layer: Any = torch.nn.Linear(64, 64)
    layer.register_parameter("weight", Quantized(torch.full((64, 64), 4.0), scale=2))
    layer.weight.module, layer.tied = layer, layer.weight
    return torch.nn.Sequential(layer, torch.nn.ReLU()).eval()


def with_bound_forward() -> Any:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 100 + self.bias[0].item() * 0

    layer: Any = torch.nn.Linear(2, 2)
    layer.forward = types.MethodType(forward, layer)
    return layer


def with_wrapped_forward() -> Any:
    layer: Any = torch.nn.Linear(2, 2)
    before = layer.forward

    @functools.wraps(before)
    def forward(x: torch.Tensor) -> Any:
        return before(x) * 0 + 3

    layer.forward = forward
    return layer


class Scaled(torch.nn.Module):
    """A hook that is a nested function, and refers to its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))
        self.calls: list[int] = []

        def hook(module: Any, arguments: Any, result: torch.Tensor) -> torch.Tensor:
            self.calls.append(1)
            return result * self.scale

        self.inner.register_forward_hook(hook)


FACTOR = 2


def nested_functions() -> tuple[Any, ...]:
    tensor = torch.ones(2)

    @functools.lru_cache(maxsize=7)
    def cached() -> torch.Tensor:
        return tensor

    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    def scaled(x: int, *, by: Any = tensor) -> Any:
        """Scale."""
        return x * FACTOR * by

    if tensor is None:
        undefined = 0
    return tensor, cached, factorial, scaled, lambda: undefined, threading.RLock()


def of_a_nested_class() -> Any:
    class Scaled(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)

        def forward(self, x: Any) -> Any:
            return x * FACTOR

        @functools.cached_property
        def factor(self) -> int:
            return FACTOR

        @classmethod
        def named(cls) -> tuple[Any, ...]:
            return FACTOR, cls.__name__, __class__.__name__  # type: ignore[name-defined]

    return Scaled()


class Family(torch.nn.Module):
    """Weak references to the module, and to what is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 1
        self.child = torch.nn.Linear(2, 2)
        vars(self.child).update(parent=weakref.proxy(self), reference=weakref.ref(self))
        self.gone = weakref.ref(Family.__new__(Family))


def computed() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


def generator() -> Any:
    return (n for n in range(3))


def named() -> torch.Tensor:
    return torch.ones(2, names=("a",))


def of_dtype(name: str) -> torch.Tensor:
    return torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name))


class Refusing:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def a_module(_: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(40, 40))


def summed(tensor: torch.Tensor) -> float:
    return float(tensor.sum())


DRAWS: dict[str, Callable[[], float]] = {
    "Python": random.random,
    "NumPy": lambda: float(numpy.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


def drawn(name: str) -> float:
    return DRAWS[name]()


def modes() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
    }


def trainable() -> torch.nn.Module:
    """Return a module with ordinary parameters, also within inference mode."""
    with torch.inference_mode(False):
        return torch.nn.Linear(2, 2)


def doubled(number: float) -> list[float]:
    return torch.full((2,), number).mul(2.0).tolist()


def appended(items: list[int]) -> int:
    items.append(5)
    return len(items)


def wrapped(tensor: torch.Tensor, name: str) -> dict[str, Any]:
    return {"tensor": tensor, "name": name}


def in_another_process(work: Callable[[], object]) -> None:
    """Run a function in a fork of this process, and fail if the function raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def entries() -> list[Result]:
    return share.status()


def descriptors_of() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def age(*paths: Path) -> None:
    """Make files older than the next call: they get their times from a clock that ticks seldom."""
    assert all(path.exists() for path in paths)
    time.sleep(0.02)


def wait_until(what: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def client(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that runs code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def countdown(number: int) -> int:
    return 0 if number == 0 else 1 + share.load(countdown, number - 1)


def sum_of(name: str) -> float:
    return float(share.load(torch.load, f"/{name}").sum())
