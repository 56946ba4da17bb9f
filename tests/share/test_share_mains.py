"""Definitions of ``__main__`` through the model server: functions, classes and exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sharing
import torch
from conftest import Child

from zerocopy import share

pytest.importorskip("dill")

PROGRAM = """
import dataclasses
import enum
import functools
import math
import multiprocessing
import os
import sys
import threading

import numpy
import torch

from zerocopy import share


class Mode(str, enum.Enum):
    FAST = "f"
    SLOW = "s"
    QUICK = "f"

    def __init__(self, letter):
        self.letter = letter

    @classmethod
    def _missing_(cls, value):
        return cls.SLOW

    def twice(self):
        return self.value * 2, Mode.SLOW


@dataclasses.dataclass
class Config:
    width: int
    mode: Mode = Mode.FAST
    names: list = dataclasses.field(default_factory=list)


class Net(torch.nn.Linear):
    def __init__(self, config):
        super().__init__(config.width, config.width)
        self.config = config


class WithConstructor(OSError):
    def __init__(self, path, *, code):
        super().__init__(2, f"code {code}", path)
        self.code, self.lock = code, threading.Lock()


class WithMessage(Exception):
    def __init__(self, code):
        super().__init__(f"failed with {code}")
        self.code = code


def fail(kind, *args, **kwargs):
    raise kind(*args, **kwargs)


def build(config, mode):
    assert isinstance(config, Config) and config.mode is Mode.FAST and mode is Mode.QUICK is Mode.FAST
    assert dataclasses.replace(config, width=3).width == 3 and dataclasses.asdict(config)["names"] == []
    assert Mode("?") is Mode.SLOW and Mode.FAST.twice() == ("ff", Mode.SLOW) and Mode.FAST.letter == "f"
    return Net(config), mode


@functools.lru_cache
def cached(n):
    return n, Mode.FAST


def counted(log):
    with open(log, "a") as file:
        file.write("called\\n")
    return log in {"alpha", "beta", "gamma", "delta"}, math.pi, os.sep, sys.version, abs, numpy.ones(2)


def check(log):
    net, mode = share.load(build, Config(2), Mode.FAST)
    assert type(net) is Net and net.config == Config(2) and mode is Mode.FAST
    assert share.load(functools.partial(build, Config(2)), mode=Mode.FAST)[1] is Mode.FAST
    assert share.load(cached, 3) == (3, Mode.FAST)
    share.load(counted, os.fsencode(log))
    for error in (WithConstructor("a file", code=3), WithMessage(3)):
        try:
            share.load(fail, type(error), *(("a file",) if error.args[0] == 2 else (3,)),
                       **({"code": 3} if error.args[0] == 2 else {}))
        except type(error) as raised:
            assert str(raised) == str(error) and raised.args == error.args and raised.code == 3
            assert "Traceback" in str(raised.__cause__)
        else:
            raise AssertionError("nothing was raised")


if __name__ == "__main__":
    check(sys.argv[1])
    process = multiprocessing.get_context("spawn").Process(target=check, args=(sys.argv[1],))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.fixture(autouse=True)
def server(tmp_path: Path) -> Iterator[Path]:
    with sharing.served(tmp_path) as place:
        yield place


def test_functions_and_classes_of_main_are_shared(tmp_path: Path) -> None:
    """A random seed of hashes does not change the call. Classes are the program's own on both sides."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for _ in range(2):
        environment = {**os.environ, "PYTHONHASHSEED": "random", "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "log")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
    assert sharing.calls_in(tmp_path / "log") == 1


def test_order_of_a_set_is_that_of_a_fixed_hash_seed(child: Child, tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(
        "def ordered(): return list(set('alpha beta gamma delta eps'.split()))"
    )
    for seed in ("1", "2", "3", "1"):
        ended = child(
            "from zerocopy import share; import words; assert share.load(words.ordered) == words.ordered()",
            PYTHONHASHSEED=seed,
            PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        )
        assert ended.returncode == 0, ended.stderr


def test_names_within_a_function_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a module of one's own sent, with whatever it has in it: it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "value").mkdir()
    log = os.fsencode(tmp_path / "log")

    def nested(value: int) -> int:
        sharing.counted(log)
        return value

    for number in range(2):
        (tmp_path / "value" / str(number)).touch()
        assert share.load(nested, 3) == 3
    assert sharing.calls_in(tmp_path / "log") == 1


def test_functions_that_are_not_patched_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "model.pt")
    torch.save(torch.ones(3), path)
    share.patch_all()
    try:
        load = torch.load
        for _ in range(2):
            assert torch.load(path, map_location=lambda storage, _: storage).sum() == 3
            assert share.load(lambda: load(path)).sum() == 3
    finally:
        share.unpatch_all()
    assert [entry["hits"] for entry in sharing.entries()] == [1, 1]


def test_files_with_classes_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "class Own(dict): pass\n"
        "torch.save(Own(a=torch.ones(2)), 'own.pt')\n"
        "options = {} if torch.__version__ < '2' else {'weights_only': False}\n"
        "assert type(torch.load('own.pt', **options)) is Own\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "zerocopy", "run", "--share", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr


HOOKED = """
import torch
from zerocopy import share

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))
        self.calls = []
        def hook(module, arguments, result):
            self.calls.append(1)
            return result * self.scale
        self.inner.register_forward_hook(hook)

def pair():
    module = Scaled()
    return next(iter(module.inner._forward_hooks.values())), module

for _ in range(2):
    hook, module = share.load(pair)
    assert type(module) is Scaled and hook.__closure__[0].cell_contents is module
    module.scale.fill_(10)
    assert torch.equal(module.inner(torch.zeros(1, 2)), 10 * module.inner.bias[None])
    print(module.calls)
"""


def test_hook_of_main_refers_to_its_module(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HOOKED)
    with sharing.served(tmp_path):
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False
        )
    assert done.stdout == "[1]\n[1]\n", done.stderr
