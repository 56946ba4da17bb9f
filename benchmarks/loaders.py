"""Everything that loads a file, under a name: ours and the peers."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from .kernels import Kernels, load_kernels
from .notebook import zero_copy_load
from .objects import spans_of
from .pagecache import read_through

stock_load = torch.load  # the peer stays what it is when torch.load is patched


@dataclass(frozen=True)
class Loader:
    """A way to load a file.

    Attributes
    ----------
    label : str
        What the table calls it.
    load : callable
        Path to object. Nothing in it is there for the benchmark's sake: it is what a user would write.
    missing : callable
        Returns why it cannot run here, or an empty string.
    prepare : callable, optional
        Path to what has to be there before, and is not measured; `load` is given it behind the path.
    modules : tuple of str
        What the first call would import.
    real : callable
        Turns what `load` returned into what is compared: with tensors in place of what stands for them.
    expected : callable, optional
        Takes that out of what ``torch.load`` returns. None: nothing is returned that could be compared.
    reference : str
        The loader that is right by definition.
    """

    label: str
    load: Callable[..., Any]
    missing: Callable[[], str] = lambda: ""
    prepare: Callable[[str], Any] | None = None
    modules: tuple[str, ...] = ()
    real: Callable[[Any], Any] = lambda result: result
    expected: Callable[[Any], Any] | None = lambda whole: whole
    reference: str = "torch"

    def call(self, path: str) -> Callable[[], Any]:
        """Do what comes before, and return the call that is measured."""
        if self.prepare is None:
            return functools.partial(self.load, path)
        return functools.partial(self.load, path, self.prepare(path))


def _needs_module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"


def _needs_torch_mmap() -> str:
    has = "mmap" in inspect.signature(torch.load).parameters
    return "" if has else f"torch {torch.__version__} has no mmap="


def _needs_open() -> str:
    missing = _needs_module("zerocopy")()
    return missing or ("" if importlib.util.find_spec("zerocopy.checkpoint") else "zerocopy has no open()")


def _mapped(path: str) -> Any:
    return stock_load(path, mmap=True, weights_only=True)


def _zerocopy(path: str) -> Any:
    import zerocopy

    return zerocopy.load(path)


def _script(path: str) -> Any:
    import zerocopy

    return zerocopy.jit.load(path)


@functools.cache
def _patch() -> None:
    import zerocopy

    zerocopy.patch()


@functools.lru_cache(maxsize=1)
def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _patched_from_memory(path: str) -> Any:
    _patch()
    return torch.load(io.BytesIO(_content(path)), weights_only=False)


# --------------------------------------------------------------------------------- listing

Listed = list[tuple[Any, ...]]


def _list(path: str) -> Listed:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        return checkpoint.tensors()


def _listed(infos: Listed) -> Listed:
    return [tuple(info[:5]) for info in infos]


def _listing_of(state: Mapping[str, torch.Tensor]) -> Listed:
    facts = ((t.shape, t.dtype, t.stride(), t.numel() * t.element_size()) for t in state.values())
    return [(name, *fact) for name, fact in zip(state, facts, strict=True)]


# --------------------------------------------------------------------------------- one tensor

ONE = "model.layers.5.mlp.experts.127.up_proj.weight"


def _one(path: str) -> torch.Tensor:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        return checkpoint.get_tensor(ONE)


def _one_of(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return state[ONE]


def _one_zipslicer(path: str) -> torch.Tensor:
    import zipslicer

    return zipslicer.load(path)[ONE]


# --------------------------------------------------------------------------------- safetensors


def _load_file(path: str) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _one_safe_open(path: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(ONE)
        return tensor


def _by_name(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a plain dict in an order that both formats have."""
    return dict(sorted(state.items()))


# --------------------------------------------------------------------------------- placeholders


def _lazy(path: str) -> Any:
    import zerocopy

    return zerocopy.lazy_load(path)


def _lazy_fabric(path: str) -> Any:
    from lightning_fabric.utilities.load import _lazy_load

    return _lazy_load(path)


def _filled_by(method: str) -> Callable[[Any], Any]:
    """Return what puts, in place, the tensors into a state dict of placeholders."""

    def fill(state: Any) -> Any:
        for name in state:
            state[name] = getattr(state[name], method)()
        return state

    return fill


# --------------------------------------------------------------------------------- into a module


def _module_for(path: str) -> torch.nn.Module:
    """Return a module that has the file's parameters, in memory that is there: filled with zeros."""
    import zerocopy

    root = torch.nn.Module()
    for name, tensor in zerocopy.lazy_load(path).items():
        *branches, leaf = name.split(".")
        module = root
        for branch in branches:
            if branch not in module._modules:
                module.add_module(branch, torch.nn.Module())
            module = module.get_submodule(branch)
        zeros = torch.empty(tensor.shape, dtype=tensor.dtype).fill_(0)
        module.register_parameter(leaf, torch.nn.Parameter(zeros))
    return root


def _fill_lazily(path: str, module: torch.nn.Module) -> torch.nn.Module:
    import zerocopy

    module.load_state_dict(zerocopy.lazy_load(path))
    return module


def _fill(path: str, module: torch.nn.Module) -> torch.nn.Module:
    module.load_state_dict(stock_load(path))
    return module


def _state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.state_dict())


# --------------------------------------------------------------------------------- rows

FEW, MANY = slice(5001, 5005), slice(1001, 3049)  # 64 KiB and 32 MiB; in the small file of --quick too


def _open(path: str) -> Any:
    import zerocopy

    return zerocopy.open(path)


def _row_loaders(name: str, rows: slice) -> dict[str, Loader]:
    """Return loaders of some rows of a file that is open."""

    def expected(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return state["weight"][rows].clone()

    return {
        f"zerocopy-{name}": Loader(
            f"get_slice, {name}",
            lambda _, checkpoint: checkpoint.get_slice("weight")[rows].clone(),
            _needs_open,
            prepare=_open,
            expected=expected,
        ),
        f"torch-mmap-{name}": Loader(
            f"torch.load(mmap, weights_only), {name}",
            lambda _, state: expected(state),
            _needs_torch_mmap,
            prepare=_mapped,
            expected=expected,
        ),
    }


# --------------------------------------------------------------------------------- layer by layer


def _compiled(_: str) -> Kernels:
    return load_kernels()


def _sum(kernels: Kernels, tensors: Iterable[torch.Tensor]) -> int:
    """Read every byte of some tensors, as fast as memory is."""
    alive = list(tensors)
    return kernels.consume(*kernels.prepare(spans_of(alive)))


def _layer_of(name: str) -> str:
    return ".".join(name.split(".")[:3])  # model.layers.7


def _stream(path: str, kernels: Kernels) -> list[int]:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        layers = groupby(checkpoint, _layer_of)
        return [_sum(kernels, (checkpoint.get_tensor(name) for name in names)) for _, names in layers]


def _streamed(state: Mapping[str, torch.Tensor]) -> list[int]:
    kernels = load_kernels()
    layers = groupby(state, _layer_of)
    return [_sum(kernels, (state[name] for name in names)) for _, names in layers]


CHECKPOINT = ("zerocopy.checkpoint",)

LOADERS: dict[str, Loader] = {
    "zerocopy": Loader("zerocopy.load", _zerocopy, _needs_module("zerocopy"), modules=("zerocopy",)),
    "torch": Loader("torch.load", lambda path: stock_load(path)),
    "torch-mmap": Loader(
        "torch.load(mmap, weights_only)",
        _mapped,
        _needs_torch_mmap,
    ),
    "torch-mmap-trusted": Loader(
        "torch.load(mmap, weights_only=False)",
        lambda path: stock_load(path, mmap=True, weights_only=False),
        _needs_torch_mmap,
    ),
    "torch-memory": Loader(
        "torch.load(BytesIO)", lambda path: stock_load(io.BytesIO(_content(path)), weights_only=False)
    ),
    "patched-memory": Loader("patched torch.load(BytesIO)", _patched_from_memory, _needs_module("zerocopy")),
    "notebook": Loader("HDF5 notebook", zero_copy_load, _needs_module("h5py"), modules=("h5py", "numpy")),
    "zerocopy-list": Loader(
        "zerocopy.open, tensors()",
        _list,
        _needs_open,
        modules=CHECKPOINT,
        real=_listed,
        expected=_listing_of,
    ),
    "zerocopy-one": Loader("zerocopy.open, one tensor", _one, _needs_open, expected=_one_of),
    "torch-mmap-one": Loader(
        "torch.load(mmap, weights_only), one tensor",
        lambda path: _mapped(path)[ONE],
        _needs_torch_mmap,
        expected=_one_of,
    ),
    "zipslicer-one": Loader(
        "zipslicer, one tensor", _one_zipslicer, _needs_module("zipslicer"), expected=_one_of
    ),
    "zerocopy-safetensors": Loader(
        "zerocopy.load",
        _zerocopy,
        _needs_module("safetensors"),  # which makes the file
        modules=("zerocopy",),
        real=_by_name,
        expected=_by_name,
    ),
    "load_file": Loader(
        "safetensors' load_file",
        _load_file,
        _needs_module("safetensors"),
        modules=("safetensors.torch",),
        real=_by_name,
        expected=_by_name,
    ),
    "safe_open-one": Loader(
        "safe_open, one tensor",
        _one_safe_open,
        _needs_module("safetensors"),
        modules=("safetensors.torch",),
        expected=_one_of,
    ),
    "zerocopy-lazy": Loader("zerocopy.lazy_load", _lazy, _needs_open, real=_filled_by("materialize")),
    "fabric-lazy": Loader(
        "Fabric's _lazy_load",
        _lazy_fabric,
        _needs_module("lightning_fabric"),
        real=_filled_by("_load_tensor"),
    ),
    "zerocopy-module": Loader(
        "load_state_dict(zerocopy.lazy_load)",
        _fill_lazily,
        _needs_open,
        prepare=_module_for,
        real=_state_of,
        expected=dict,
    ),
    "torch-module": Loader(
        "load_state_dict(torch.load)",
        _fill,
        _needs_open,
        prepare=_module_for,
        real=_state_of,
        expected=dict,
    ),
    "zerocopy-script": Loader(
        "zerocopy.jit.load",
        _script,
        _needs_module("zerocopy"),
        real=_state_of,
        expected=_state_of,
        reference="torch-script",
    ),
    "torch-script": Loader("torch.jit.load", lambda path: torch.jit.load(path), reference="torch-script"),
    **_row_loaders("few-rows", FEW),
    **_row_loaders("many-rows", MANY),
    "zerocopy-layers": Loader(
        "zerocopy.open, layer by layer",
        _stream,
        _needs_open,
        prepare=_compiled,
        modules=CHECKPOINT,
        expected=_streamed,
    ),
    "disk": Loader("read()", lambda path: read_through(Path(path)), expected=None),
}
