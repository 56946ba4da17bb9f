"""The private names of torch that zerocopy uses: which the running release has, and what works without each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, stock_load
from prose import ROOT, dotted, nodes, text

import zerocopy
from zerocopy._torch import private_names

NAMES = [*private_names.NEEDED, *private_names.OPTIONAL]

# torch may lose any name: these are looked up by pkgutil, in their module or class.
ALL_HIDDEN = """
import pkgutil, sys
import torch

def hidden(name):
    if name.startswith("torch"):
        raise AttributeError(name)
    return original(name)

original, pkgutil.resolve_name = pkgutil.resolve_name, hidden
import zerocopy
loaded = zerocopy.load(sys.argv[1])
print(type(loaded["weight"]), loaded["weight"].tolist(), loaded["tied"].data_ptr() - loaded["weight"].data_ptr())
print(zerocopy.load(sys.argv[1], map_location="cpu")["weight"].tolist())
with zerocopy.patched():
    print(torch.load(sys.argv[1])["weight"].tolist())
"""


def test_running_release_has_the_names() -> None:
    """A name in the list is gone from this release: the next version has to do without it."""
    assert [name for name in private_names.NEEDED if private_names.private_or_none(name) is None] == []


def test_private_names_of_torch_are_used_through_the_list() -> None:
    """A private attribute of anything but ``self`` is Python's, or one of zerocopy's own classes'."""
    members = {
        name.rpartition(".")[2] for name in NAMES if name.startswith(("torch.Tensor", "torch.Untyped"))
    }
    offenders = []
    for path in ROOT.glob("python/zerocopy/**/*.py"):
        for node in nodes(path):
            if not isinstance(node, ast.Attribute):
                continue
            first, *others = dotted(node).split(".")
            is_torchs = first in ("torch", "_serialization") and any(
                part.startswith("_") and not part.endswith("__") for part in others
            )
            is_members = node.attr in members and ast.unparse(node.value) != "self"
            if is_torchs or is_members:
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert offenders == []


def test_every_listed_name_is_used() -> None:
    paths = set(ROOT.glob("python/zerocopy/**/*.py")) - {
        Path(ROOT, "python/zerocopy/_torch/private_names.py")
    }
    sources = "".join(map(text, paths))
    # The settings of the allocator are asked for by a loop over their last parts.
    assert [name for name in NAMES if f'"{name}"' not in sources and "allocator" not in name.lower()] == []


def test_plain_checkpoint_loads_without_any_private_name(forked_with_torch: Child, tmp_path: Path) -> None:
    weight = torch.arange(6.0)
    torch.save({"weight": weight, "tied": weight[2:]}, tmp_path / "a.pt")
    done = forked_with_torch(ALL_HIDDEN, tmp_path / "a.pt")
    values = weight.tolist()
    assert done.stdout.splitlines() == [f"{torch.Tensor} {values} 8", str(values), str(values)], done.stderr


class Tagged(torch.Tensor):
    """A subclass, which torch pickles by a function of its own."""


def _files(folder: Path) -> dict[str, Path]:
    indices, values = torch.tensor([[0, 2], [1, 0]]), torch.ones(2)
    objects: dict[str, Any] = {
        "plain": {"weight": torch.arange(6.0)},
        "module": torch.nn.Sequential(torch.nn.Linear(3, 2)),
        "sparse": torch.sparse_coo_tensor(indices, values, (3, 2)).coalesce(),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
        "subclass": torch.ones(2).as_subclass(Tagged),
    }
    for name, value in objects.items():
        torch.save(value, folder / name)
    torch.save(objects["plain"], folder / "legacy", _use_new_zipfile_serialization=False)
    torch.jit.script(torch.nn.Linear(3, 2)).save(str(folder / "script"))
    return {path.name: path for path in folder.iterdir()}


def _uses(files: dict[str, Path], folder: Path) -> dict[str, Callable[[], object]]:
    def within_inference_mode() -> object:
        with torch.inference_mode():
            return zerocopy.load(files["plain"])

    def load_model() -> object:
        return zerocopy.load_model(torch.nn.ParameterDict({"weight": torch.ones(6)}), files["plain"])

    def patched() -> object:
        with zerocopy.patched():
            return torch.load(files["plain"])

    loads = {f"load {name}": lambda path=path: zerocopy.load(path) for name, path in files.items()}
    trusting = {
        f"load {name}, trusting": lambda path=path: zerocopy.load(path, weights_only=False)
        for name, path in files.items()
    }
    lazily = {
        f"lazy_load {name}": lambda path=path: zerocopy.lazy_load(path, weights_only=False)
        for name, path in files.items()
        if name != "script"
    }
    return {
        **loads,
        **trusting,
        **lazily,
        "map_location": lambda: zerocopy.load(files["plain"], map_location={"cpu": "meta"}),
        "open": lambda: zerocopy.open(files["plain"]).get_tensor("weight") + 1,
        "lazy": lambda: zerocopy.lazy_load(files["plain"])["weight"] + 1,
        "load_model": load_model,
        "save": lambda: zerocopy.save(stock_load(files["module"]).state_dict(), folder / "saved.pt"),
        "jit.load": lambda: zerocopy.jit.load(files["script"]),
        "inference mode": within_inference_mode,
        "patched": patched,
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _files(tmp_path_factory.mktemp("files"))


@pytest.mark.filterwarnings("ignore")
def test_what_needs_a_lost_name_says_so(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever does not need it goes on."""
    uses = _uses(files, tmp_path)

    def outcomes() -> dict[str, Exception | None]:
        found: dict[str, Exception | None] = {}
        for use, call in uses.items():
            try:
                call()
                found[use] = None
            except Exception as error:
                found[use] = error
        return found

    usual = outcomes()
    original = private_names._owner_and_name
    offenders = []
    for hidden in NAMES:
        with monkeypatch.context() as patch:
            patch.setattr(
                private_names,
                "_owner_and_name",
                lambda path, hidden=hidden: (None, "") if path == hidden else original(path),
            )
            for use, error in outcomes().items():
                says_so = isinstance(error, zerocopy.UnsupportedError) and hidden in str(error)
                is_right = type(error) is type(usual[use]) or (says_so and use != "load plain")
                if not is_right:
                    offenders.append(f"{use} without {hidden}: {error!r}")
    assert offenders == []
