"""Changes of a program in its own modules, and what it puts into others."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child

from zerocopy import share
from zerocopy.share.conditions import namespaces, program

NAME = "zc_own_module"
TEXT = """
import argparse, collections, dataclasses, types
import numpy, torch

number, text, long = 1, "one", 10 ** 5000
nested = {"model": {"scale": [1.0, {"depth": 2}]}}
ordered = collections.OrderedDict(bias=0.0)
default = collections.defaultdict(int)
queue = collections.deque([1])
data = bytearray(b"ab")
names = {"a", "b", ("c", 1), frozenset("de")}
functions = {"activation": max}
settings = types.SimpleNamespace(scale=1.0)
arguments = argparse.Namespace(scale=1.0)
mean = torch.tensor([0.5, 0.25])
array = numpy.ones(2)
table = list(range(5000))
endless = []
endless.append(endless)

@dataclasses.dataclass
class Config:
    scale: float = 1.0

config = Config()

@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0

slotted = Slotted()

def function(scale=1.0, *, depth=2, kept=[]):
    return scale

class Outer:
    registry = {}
    class Inner:
        depth = 1
        def method(self): ...
    @property
    def width(self): return 1
    @staticmethod
    def build(): return 1
"""

Change = Callable[[Any], object]
CHANGES: dict[str, Change] = {
    "number": lambda m: setattr(m, "number", 2),
    "long number": lambda m: setattr(m, "long", m.long + 1),
    "nested dict": lambda m: m.nested["model"]["scale"][1].update(depth=3),
    "ordered dict": lambda m: m.ordered.update(bias=5.0),
    "default dict": lambda m: m.default["new"],
    "queue": lambda m: m.queue.append(2),
    "bytes": lambda m: m.data.append(1),
    "set": lambda m: m.names.add("z"),
    "function in a dict": lambda m: m.functions.update(activation=len),
    "namespace": lambda m: setattr(m.settings, "scale", 2.0),
    "arguments": lambda m: setattr(m.arguments, "scale", 2.0),
    "dataclass": lambda m: setattr(m.config, "scale", 2.0),
    "dataclass with slots": lambda m: setattr(m.slotted, "scale", 2.0),
    "tensor in place": lambda m: m.mean.add_(1),
    "tensor": lambda m: setattr(m, "mean", torch.zeros(2)),
    "array": lambda m: m.array.__iadd__(1),
    "default": lambda m: setattr(m.function, "__defaults__", (2.0,)),
    "keyword default": lambda m: m.function.__kwdefaults__.update(depth=3),
    "function": lambda m: setattr(m, "function", lambda: 3),
    "class dict": lambda m: m.Outer.registry.update(k=1),
    "nested class": lambda m: setattr(m.Outer.Inner, "depth", 3),
    "method of a nested class": lambda m: setattr(m.Outer.Inner, "method", lambda self: 3),
    "property": lambda m: setattr(m.Outer, "width", property(lambda self: 5)),
    "static method": lambda m: setattr(m.Outer, "build", staticmethod(lambda: 5)),
}
#: docs/share.md: not detected, because a function, or a library, changes these while it is used.
UNNOTICED: dict[str, Change] = {
    "what a function keeps": lambda m: m.function.__kwdefaults__["kept"].append(1),
    "what an object keeps beside its fields": lambda m: m.config.__dict__.update(cached=1),
    "new name": lambda m: setattr(m, "cache", {}),
    "new attribute of a class": lambda m: setattr(m.Outer, "cache", {}),
    "far in a long list": lambda m: m.table.__setitem__(4000, -1),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    (tmp_path / f"{NAME}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def noticed(folder: Path, changes: dict[str, Change]) -> list[str]:
    """Return the names of the changes that are noticed, each in a module of its own."""
    found = []
    for number, (name, change) in enumerate(changes.items()):
        own = f"{NAME}_{number}"
        (folder / f"{own}.py").write_text(TEXT)
        module = importlib.import_module(own)
        known = {f"{own}:": namespaces.of_module(module)}
        assert namespaces.changed(known) == ""
        change(module)
        found += [name] if namespaces.changed(known) == own else []
        del sys.modules[own]
    return found


def test_changes_of_a_module_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert noticed(tmp_path, CHANGES) == list(CHANGES)
    assert noticed(tmp_path, UNNOTICED) == []


VALUES = """
import functools, pathlib, re, torch
DTYPE, FOLDER, PATTERN = torch.float32, pathlib.Path("small"), re.compile("small")
class Plain:
    def __init__(self, size): self.size = size
PLAIN = Plain(1)
@functools.lru_cache
def scale(): return 1
"""
BUILDS = """
import torch
from {values} import DTYPE, FOLDER, PATTERN, PLAIN
@torch.no_grad()
def weights(): return [0.5]
def build(sizes=(1, 2)):
    from {values} import scale
    return DTYPE, str(FOLDER), PATTERN.pattern, PLAIN.size, scale(), weights(), sizes
"""


@pytest.mark.parametrize(
    "edit",
    [
        "float32->float16",
        '"small")->"large")',
        "Plain(1)->Plain(2)",
        "return 1->return 2",
        "0.5->1.5",
        "1, 2->1, 3",
    ],
)
def test_edit_of_a_source_file_counts_whatever_its_kind(tmp_path: Path, forked: Child, edit: str) -> None:
    """Of a module that the function's module imports, too; in the next process."""
    files = [tmp_path / "zc_values.py", tmp_path / "zc_builds.py"]
    for file, text in zip(files, (VALUES, BUILDS), strict=True):
        file.write_text(text.format(values="zc_values"))
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import zc_builds
        from zerocopy import share
        assert share.load(zc_builds.build) == zc_builds.build()
        print(len(share.status()))
    """

    def count(folder: Path) -> int:
        time.sleep(0.05)
        done = forked(code, folder, ZEROCOPY_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert [count(tmp_path), count(tmp_path)] == [1, 1]
    shutil.copytree(tmp_path, tmp_path / "other", ignore=shutil.ignore_patterns("cache", "__pycache__"))
    for file in files:
        file.write_text(file.read_text().replace(*edit.split("->")))
    assert [count(tmp_path), count(tmp_path / "other"), count(tmp_path)] == [2, 3, 3]


def test_edit_while_the_program_runs_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "zc_edited.py").write_text("def build(): return 1")
    module = importlib.import_module("zc_edited")
    time.sleep(0.02)
    assert share.load(module.build) == 1
    assert not share.status()
    del sys.modules["zc_edited"]


def test_body_of_a_function_counts_and_its_place_does_not(tmp_path: Path) -> None:
    def function_of(text: str) -> Any:
        made: dict[str, Any] = {"__name__": NAME}
        exec(text, made)
        return made["function"]

    text = "def function(x):\n    return [x + 1 for _ in {'a', 'b'}]"
    digests = [
        namespaces.digest_of(function_of(t))
        for t in (text, f"\n\n{text}", text.replace("1", "2"), text.replace("+", "-"))
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_what_a_program_puts_into_an_installed_package_is_noticed(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickles = [pickle.dumps(torch.nn.ReLU(), protocol=2)]
    known = namespaces.of_classes(pickles)
    assert namespaces.changed(known) == ""
    puts: list[tuple[Any, str, Any]] = [
        (torch.nn, "ReLU", module.Outer),
        (torch.nn.ReLU, "forward", module.function),
        (torch.nn.ReLU, "extra_repr", staticmethod(module.function)),
        (torch.nn.Module, "dump_patches", True),
        (torch.nn.modules.activation, "helper", module.function),
    ]
    for owner, name, value in puts:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            assert namespaces.changed(known) != "", name
            assert namespaces.changed(namespaces.of_classes(pickles)) == "", (
                "the next run of the same program"
            )
        assert namespaces.changed(known) == ""


@pytest.mark.slow("it starts two Pythons, with another seed of hashes each")
def test_processes_agree_about_what_nobody_changed(module: types.ModuleType) -> None:
    code = (
        "import importlib, json, sys; from zerocopy.share.conditions import namespaces\n"
        f"sys.path.insert(0, sys.argv[1]); module = importlib.import_module({NAME!r})\n"
        "print(json.dumps(namespaces.of_module(module)))"
    )
    folder = Path(str(module.__file__)).parent
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == namespaces.of_module(module)


@pytest.mark.parametrize("kind", ["module", "package", "namespace", "none"])
def test_a_module_is_found_where_it_would_be_imported_from(tmp_path: Path, kind: str) -> None:
    name = f"zc_{kind}"
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        if kind == "module":
            (folder / f"{name}.py").write_text("")
        elif kind in ("package", "namespace"):
            (folder / name).mkdir()
        if kind == "package":
            (folder / name / "__init__.py").write_text("")
    entries = [str(tmp_path / "one"), str(tmp_path / "two")]
    before = list(sys.path)
    sys.path[:0] = entries
    try:
        expected = program.origin_of(__import__(name)) if kind != "none" else None
        assert program.found(name, entries) == expected
    finally:
        sys.path[:] = before
        sys.modules.pop(name, None)
