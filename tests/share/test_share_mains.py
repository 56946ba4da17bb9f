"""Definitions of ``__main__`` as arguments and in results: functions, classes and exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sharing
from conftest import Child

pytest.importorskip("dill")

pytestmark = pytest.mark.slow("programs")

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


@dataclasses.dataclass
class Config:
    width: int
    mode: str = "fast"
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
    assert isinstance(config, Config) and config.mode == "fast" and mode == ["fast"]
    assert dataclasses.replace(config, width=3).width == 3 and dataclasses.asdict(config)["names"] == []
    return Net(config), mode


@functools.lru_cache
def cached(n):
    return n, Config(n).mode


class Mode(enum.Enum):
    FAST = "fast"


def mode():
    return Mode.FAST


def counted(log):
    with open(log, "a") as file:
        file.write("called\\n")
    return log in {"alpha", "beta", "gamma", "delta"}, math.pi, os.sep, sys.version, abs, numpy.ones(2)


def check(log):
    net, found = share.load(build, Config(2), ["fast"])
    assert type(net) is Net and net.config == Config(2) and found == ["fast"]
    assert share.load(functools.partial(build, Config(2)), mode=["fast"])[1] == ["fast"]
    assert share.load(cached, 3) == (3, "fast")
    assert share.load(mode) is Mode.FAST and not any(".mode" in entry.what for entry in share.status())
    share.load(counted, os.fsencode(log))
    for error in (WithConstructor("a file", code=3), WithMessage(3)):
        try:
            share.load(fail, type(error), *(("a file",) if error.args[0] == 2 else (3,)),
                       **({"code": 3} if error.args[0] == 2 else {}))
        except type(error) as raised:
            assert str(raised) == str(error) and raised.args == error.args and raised.code == 3
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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))


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
    for seed in ("1", "2"):
        ended = child(
            "from zerocopy import share; import words; assert share.load(words.ordered) == words.ordered()",
            PYTHONHASHSEED=seed,
            PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        )
        assert ended.returncode == 0, ended.stderr
