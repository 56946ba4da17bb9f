"""The life of a process: forks, signals, other interpreters. More in test_lifetime, test_shutdown, test_threads."""

from __future__ import annotations

import gc
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from conftest import Child, Saver, maps_of
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


# ------------------------------------------------------------------------------------------- forks


@pytest.mark.plain_memory(
    "GCC 12's allocator may be locked by another thread at a fork, and is then in the child"
)
def test_fork_while_other_threads_load(path: Path, forked_whole: Child) -> None:
    """A child of fork has one thread, and finds no lock held by those that it does not have."""
    code = """
        import os, sys, threading, zerocopy
        path, stop = sys.argv[1], threading.Event()
        def work():
            while not stop.is_set():
                zerocopy.load(path, backend="pread")
                zerocopy.load(path, weights_only=False)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for i in range(10):
            child = os.fork()
            if child == 0:
                fine = zerocopy.load(path, weights_only=i % 2 == 0)["layer.7"][2999].item() == 7
                os._exit(0 if fine else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        print("fine")
    """
    done = forked_whole(code, path)
    assert done.stdout.strip() == "fine", (done.returncode, done.stderr)


# ------------------------------------------------------------------------------------------ signals


class Interrupted(Exception):
    """Raised by the handlers here, like KeyboardInterrupt."""


@pytest.fixture
def alarm() -> Any:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@BOTH
def test_a_signal_in_the_middle(path: Path, alarm: None, weights_only: bool) -> None:
    def place(storage: Any, location: str) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return storage

    with pytest.raises(Interrupted):
        zerocopy.load(path, place, weights_only=weights_only)
    gc.collect()
    assert maps_of(path) == []
    assert_same(zerocopy.load(path, weights_only=weights_only), STATE)


def test_a_signal_at_any_moment(path: Path, alarm: None) -> None:
    """Wherever it comes, the load ends with the handler's exception, or is through."""
    interrupted = 0
    for i in range(200):
        options: dict[str, Any] = {"weights_only": i % 3 > 0, "backend": "pread" if i % 2 else "mmap"}
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 50))
            for _ in range(10):
                zerocopy.load(path, **options)
            while True:
                time.sleep(1)
        except Interrupted:
            interrupted += 1
    assert interrupted == 200
    gc.collect()
    assert maps_of(path) == []
    assert_same(zerocopy.load(path), STATE)


# ------------------------------------------------------------------------------- other interpreters

IN_ANOTHER = """
    import sys
    for module in sys.argv[2].split():
        __import__(module)
    import _xxsubinterpreters as interpreters
    for isolated in (True, False):
        other = interpreters.create(isolated=isolated)
        try:
            interpreters.run_string(other, "import " + sys.argv[1])
        except interpreters.RunFailedError as error:
            print(error)
        interpreters.destroy(other)
    if "zerocopy" in sys.modules:
        import torch, zerocopy
        print(zerocopy.untyped_storage(bytearray(3)).nbytes())
"""


@pytest.mark.parametrize("before", ["", "torch zerocopy"], ids=["first", "after-the-main-one"])
@pytest.mark.parametrize("module", ["zerocopy", "zerocopy._C", "zerocopy.loading.loader"])
def test_refused_in_a_sub_interpreter(child: Child, forked_whole: Child, module: str, before: str) -> None:
    """Before torch is imported there, which would end the process."""
    pytest.importorskip("_xxsubinterpreters", reason="other names for interpreters from Python 3.13 on")
    done = (forked_whole if before else child)(IN_ANOTHER, module, before)
    *refusals, last = done.stdout.splitlines()
    if before:
        assert last == "3", "the main interpreter goes on"
    else:
        refusals.append(last)
    assert (done.returncode, len(refusals)) == (0, 2), done.stderr
    assert all("ImportError" in text and "main interpreter only" in text for text in refusals)
