"""Programs that have changed something in their own process: classes, values, hooks, modules, closures."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
from torch import nn

from share_catalog.case import explicit, patched

SCALE = 1


class Layer(nn.Module):
    """A layer without random numbers."""

    depth = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8192))


def scaled(path: str) -> Any:
    return torch.load(path) * SCALE


def layer(path: str) -> Any:
    return nn.Sequential(Layer(), nn.ReLU()), torch.load(path)


def _vector(folder: Path) -> None:
    torch.save(torch.ones(8192), folder / "a.pt")


def setting(owner: Any, name: str, value: Callable[[], Any]) -> Callable[[Path], Any]:
    """Return a context manager of a case in which an attribute has another value."""

    @contextlib.contextmanager
    def within(folder: Path) -> Iterator[None]:
        with mock.patch.object(owner, name, value()):
            yield

    return within


@patched(
    config=["scaled"],
    prepare=_vector,
    within=setting(sys.modules[__name__], "SCALE", lambda: 10),
    always=True,
)
def value_of_a_module(folder: Path) -> Any:
    return scaled(str(folder / "a.pt"))


@patched(config=["layer"], prepare=_vector, within=setting(Layer, "depth", lambda: 5), always=True)
def value_of_a_class(folder: Path) -> Any:
    made, _ = layer(str(folder / "a.pt"))
    return made, made[0].depth


class Rectifier(nn.ReLU):
    """A layer that a program puts in the place of torch's."""


@patched(config=["layer"], prepare=_vector, within=setting(nn, "ReLU", lambda: Rectifier), always=True)
def class_of_torch_that_is_replaced(folder: Path) -> Any:
    return layer(str(folder / "a.pt"))


def _noting_init(self: Any, *args: Any, **kwargs: Any) -> None:
    nn.Module.__init__(self)
    self.inplace, self.note = False, "made here"


@patched(
    config=["layer"], prepare=_vector, within=setting(nn.ReLU, "__init__", lambda: _noting_init), always=True
)
def method_of_torch_that_is_replaced(folder: Path) -> Any:
    made, _ = layer(str(folder / "a.pt"))
    return made, made[1].note


@patched(config=["layer"], prepare=_vector, within=setting(nn.Module, "dump_patches", lambda: True))
def value_of_a_base_of_torch(folder: Path) -> Any:
    made, _ = layer(str(folder / "a.pt"))
    return made, made[1].dump_patches


@patched(config=["layer"], prepare=_vector, is_shared=True, always=True)
def class_that_nobody_has_changed(folder: Path) -> Any:
    return layer(str(folder / "a.pt"))


@contextlib.contextmanager
def _registration_hook(folder: Path) -> Iterator[None]:
    def mark(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None:
            parameter.mark = True

    hook = nn.modules.module.register_module_parameter_registration_hook(mark)
    yield
    hook.remove()


@patched(config=["layer"], prepare=_vector, within=_registration_hook, since=(2, 0))
def hook_for_what_modules_register(folder: Path) -> Any:
    return layer(str(folder / "a.pt"))


class Moved(nn.Module):
    """A class whose module has another name in old files."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8192))


@contextlib.contextmanager
def _alias(folder: Path) -> Iterator[None]:
    with mock.patch.dict(sys.modules, former_package=sys.modules[__name__]):
        yield


def _old_file(folder: Path) -> None:
    with _alias(folder), mock.patch.object(Moved, "__module__", "former_package"):
        torch.save(Moved(), folder / "a.pt")


@patched(prepare=_old_file, within=_alias, always=True)
def alias_of_a_module(folder: Path) -> Any:
    trusted = {"weights_only": False} if hasattr(torch.serialization, "add_safe_globals") else {}
    return torch.load(folder / "a.pt", **trusted)


@patched(prepare=_vector, always=True)
def closure_that_is_changed(folder: Path) -> Any:
    calls: list[str] = []

    def note(storage: Any, location: str) -> Any:
        calls.append(location)
        return storage

    return torch.load(folder / "a.pt", map_location=note), calls


@patched(prepare=_vector)
def descriptors_by_their_paths(folder: Path) -> Any:
    found = []
    for number in (1.0, 2.0):
        memory = os.memfd_create("checkpoint")
        with os.fdopen(os.dup(memory), "wb") as file:
            torch.save(torch.full((3,), number), file)
        os.dup2(memory, 77)
        found.append(torch.load("/proc/self/fd/77"))
        os.close(memory)
    return found


# ------------------------------------------------------------------------------------- explicit


@explicit(always=True)
def keywords_in_another_order() -> Any:
    from zerocopy import share

    return [list(share.load(_named, b=1, a=2)), list(share.load(_named, a=2, b=1))]


def _named(**sizes: int) -> Any:
    return {name: torch.zeros(8192) for name in sizes}


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def _write_settings(folder: Path) -> None:
    (folder / "optional_settings.py").write_text("number = 5\n")


@explicit(change=_write_settings, within=_on_path, always=True)
def optional_module_that_appears() -> Any:
    try:
        return importlib.import_module("optional_settings").number
    except ImportError:
        return importlib.util.find_spec("optional_settings")


def _package(folder: Path) -> None:
    (folder / "own_package").mkdir()
    (folder / "own_package" / "__init__.py").touch()


def _write_submodule(folder: Path) -> None:
    (folder / "own_package" / "extra.py").write_text("number = 7\n")


@explicit(prepare=_package, change=_write_submodule, within=_on_path)
def optional_submodule_that_appears() -> Any:
    try:
        return importlib.import_module("own_package.extra").number
    except ImportError:
        return None


def _written_through(arrays: Any) -> Any:
    arrays["base"][:] += 1
    return {name: array.tolist() for name, array in arrays.items() if name != "broadcast"}


@explicit(after=_written_through, always=True)
def views_of_an_array() -> Any:
    base = numpy.arange(2000.0)
    views = {"strided": base[::2], "backwards": base[::-1], "matrix": base.reshape(40, 50)[:, 3:7]}
    return {"base": base, **views, "broadcast": numpy.broadcast_to(numpy.arange(5.0), (10000, 5))}


@explicit()
def module_that_only_the_call_has() -> Any:
    made = types.ModuleType("made_by_the_call")
    exec("def number(): return 3", made.__dict__)
    sys.modules["made_by_the_call"] = made
    return importlib.import_module("made_by_the_call").number()
