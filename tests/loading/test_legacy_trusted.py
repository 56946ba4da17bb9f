"""Files of before PyTorch 1.6 that may run code: modules, ``zerocopy.Unpickler``, other modules' Unpicklers."""

from __future__ import annotations

import collections
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from assembler import Code, call, name
from conftest import Saver, saved_bytes, stock_load
from equality import assert_same
from legacy_files import checkpoint, tensor

import zerocopy

LEGACY = {"_use_new_zipfile_serialization": False}
STATE = {"weight": torch.arange(2000.0), "bytes": torch.arange(5, dtype=torch.uint8), "empty": torch.empty(0)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE, **LEGACY)


class Block(torch.nn.Module):
    """Of a test's own: torch writes the source of such a class into the file."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.tied = self.linear.weight
        self.register_buffer("steps", torch.arange(4))


def test_source_of_a_module_is_never_opened(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compares it with today's, warns, and may leave a patch file in the working directory."""
    opened: list[Any] = []
    path = save(Block(), **LEGACY)
    changed = path.read_bytes().replace(b"Of a test's own", b"Of a text's own")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(Block, "dump_patches", True, raising=False)
    monkeypatch.setattr(torch.serialization, "get_source_lines_and_file", lambda *args: opened.append(args))
    assert isinstance(zerocopy.load(changed, weights_only=False), Block)
    assert opened == [] and list(path.parent.iterdir()) == [path]


class OnlyTensors(zerocopy.Unpickler):
    """A subclass as the documentation of the class advises."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch") or (module, name) == ("collections", "OrderedDict"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def pickle_of(content: bytes) -> io.BytesIO:
    """Return a file object at the object's pickle, the fourth."""
    file = io.BytesIO(content)
    for _ in range(3):
        pickle.load(file)
    return file


def test_unpickler_of_the_users(path: Path) -> None:
    content = path.read_bytes()
    assert_same(OnlyTensors(pickle_of(content), path).load(), STATE)
    assert_same(OnlyTensors(pickle_of(content), content, map_location="cpu").load(), STATE)
    other = saved_bytes([STATE, Path("x")], **LEGACY)
    with pytest.raises(pickle.UnpicklingError, match=r"pathlib\.[\w.]*Path"):
        OnlyTensors(pickle_of(other), other).load()


class Module:
    """A ``pickle_module`` whose Unpickler takes more arguments than pickle's."""

    class Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
        def __init__(self, *args: Any, ignore: bool = False, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.ignore = ignore


def mutated() -> dict[str, Any]:
    """Return what only fails to be safe when it is made: an attribute that hides a method."""
    made = collections.OrderedDict(a=torch.ones(2))
    made.copy = 3  # type: ignore[method-assign, assignment]
    return made


OBJECTS: dict[str, Any] = {
    "numbers": [1, 2**70, {}],
    "tensors": STATE,
    "a module": torch.nn.ReLU(),
    "a path": Path("x"),
    "a hidden method": mutated(),
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("pickle_module", [pickle, Module], ids=["pickle", "another"])
def test_position_behind_each(kind: str, pickle_module: Any) -> None:
    """The storages of a file, or that it has none, are read whatever the object is and whoever reads it."""
    # torch cannot read its persistent ids in text, which protocol 0 is.
    for protocol in (0, 1, 2, 4) if kind in ("numbers", "a path") else (1, 2, 4):
        content = saved_bytes(OBJECTS[kind], pickle_protocol=protocol, **LEGACY)
        file = io.BytesIO(content * 2 + b"behind")
        for end in (len(content), 2 * len(content)):
            found = zerocopy.load(file, weights_only=False, pickle_module=pickle_module)
            assert_same(found, stock_load(io.BytesIO(content)))
            assert file.tell() == end


def test_code_stands_in_place_of_nothing(tmp_path: Path) -> None:
    """INST and OBJ, which no pickle since protocol 1 has."""
    for opcodes in (Code(b"(ccollections\nOrderedDict\no"), Code(b"(icollections\nOrderedDict\n")):
        content = checkpoint([opcodes, tensor()])
        assert_same(zerocopy.load(content, weights_only=False), stock_load(io.BytesIO(content)))


def test_pickle_module_with_arguments_of_its_own(path: Path) -> None:
    loaded = zerocopy.load(path, pickle_module=Module, weights_only=False, ignore=True, errors="strict")
    assert_same(loaded, STATE)


def test_code_runs_once(tmp_path: Path) -> None:
    """The pickle is read twice, for its storages first, and run once."""
    trace = tmp_path / "trace"
    write = call(name("builtins", "eval"), f"open({str(trace)!r}, 'a').write('x')")
    content = checkpoint({"extra": write, "weight": tensor()})
    assert zerocopy.load(content, weights_only=False)["extra"] == 1
    assert trace.read_text() == "x"
