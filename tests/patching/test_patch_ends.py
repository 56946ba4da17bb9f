"""The ends of patched calls: a load that fails closes its file, and a save replaces the file that is mapped."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver
from script_modules import X

import zerocopy

STATE = {"weight": torch.arange(6.0)}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def raising(location: str, *_: Any) -> Any:
    raise RuntimeError(f"not to {location}")


# A place that this process has not got, so that the load fails whether or not there is a GPU.
NO_DEVICES: list[Any] = [
    "cuda:99",
    "nonsense",
    "mps",
    {"cpu": "cuda:99"},
    lambda storage, location: raising(location),
]


def test_load_that_fails_leaves_no_descriptor_open(save: Saver, without_collector: None) -> None:
    damaged = save(STATE, "damaged.pt")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    cases: list[tuple[Path, dict[str, Any]]] = [(damaged, {})]
    for new_format in (True, False):
        path = save(STATE, f"{new_format}.pt", _use_new_zipfile_serialization=new_format)
        cases += [(path, {"map_location": place}) for place in NO_DEVICES]
    with zerocopy.patched():
        before = descriptors()
        for path, options in cases:
            for weights_only in (True, False):
                with pytest.raises(Exception, match=r"(?s)."):
                    torch.load(path, weights_only=weights_only, **options)
                assert descriptors() == before, (path.name, options)


# ------------------------------------------------------------------------------ torch.jit.save


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    path = tmp_path / "script.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), str(path))
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("as_path", [True, False])
def test_script_saved_over_its_mapped_file_keeps_the_tensors(scripted: Path, as_path: bool) -> None:
    with zerocopy.patched(jit=True):
        module = torch.jit.load(scripted)
        weight, inode = module.weight.clone(), scripted.stat().st_ino
        smaller = torch.jit.script(torch.nn.Linear(3, 1))
        torch.jit.save(smaller, scripted if as_path else str(scripted), _extra_files={"a": "text"})
        assert scripted.stat().st_ino != inode and torch.equal(module.weight, weight)
        extra = {"a": ""}
        assert torch.equal(torch.jit.load(scripted, _extra_files=extra)(X), smaller(X))
    assert extra["a"] in ("text", b"text")
    assert list(scripted.parent.iterdir()) == [scripted]


# ------------------------------------------------------------------------------ interrupts

INTERRUPTS = """
import os, signal, sys, torch, zerocopy
from zerocopy import share

INSIDE = os.path.dirname(zerocopy.__file__)
functions = lambda: [torch.load, torch.save, torch.serialization.load, torch.serialization.save, torch.jit.save]

def interrupt(call, moment):
    # Raise KeyboardInterrupt as a handler of SIGINT does, at one line of the library; return whether there is one.
    passed, was_raised = 0, False
    def trace(frame, event, _):
        nonlocal passed
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        passed += event == "line"
        if passed == moment:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        was_raised = True
    finally:
        sys.settrace(None)
    assert was_raised == (passed >= moment), "the interrupt was lost"
    return was_raised

for patch, unpatch in ((zerocopy.patch, zerocopy.unpatch), (share.patch_all, share.unpatch_all)):
    patch(), unpatch()
    originals = functions()
    for call in (unpatch, patch) if patch is zerocopy.patch else (unpatch,):  # patch_all has very many lines
        moment, is_there = 0, True
        while is_there:
            moment += 3 if patch is zerocopy.patch else 29  # it takes long
            if call is unpatch:
                patch()
            is_there = interrupt(call, moment)
            unpatch()
            assert functions() == originals, (call, moment)
        assert moment > 20
"""


@pytest.mark.slow("interrupts every third line, in a Python of its own")
def test_unpatch_restores_all_functions_after_an_interrupt(child: Child) -> None:
    ended = child(INTERRUPTS)
    assert ended.returncode == 0, ended.stderr


INTERRUPTED_BLOCKS = """
    import random, signal, sys, time, torch, zerocopy
    class Boom(BaseException): ...
    def handler(number, frame):
        raise Boom
    original, path, thread_local = torch.load, sys.argv[1], sys.argv[2] == "True"
    def load():
        with zerocopy.patched(thread_local=thread_local):
            torch.load(path)
    signal.signal(signal.SIGALRM, handler)
    load()
    begin = time.perf_counter()
    load()
    usual, interrupted = time.perf_counter() - begin, 0
    for _ in range(2000):
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, random.random() * usual * 1.2))
            load()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Boom:
            interrupted += 1
        assert not zerocopy.is_patched()
        zerocopy.unpatch()
        assert torch.load is original
    print(interrupted > 20)
"""


@pytest.mark.slow("2000 interrupts, in a Python of its own")
@pytest.mark.parametrize("thread_local", [False, True])
def test_block_that_a_signal_handler_interrupts_ends(save: Saver, child: Child, thread_local: bool) -> None:
    done = child(INTERRUPTED_BLOCKS, save({"a": torch.ones(3)}), thread_local)
    assert done.stdout == "True\n", done.stderr
