"""The ends of patched calls: a load that fails closes its file, and a save replaces the file that is mapped."""

from __future__ import annotations

import gc
import io
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
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def raising(location: str, *_: Any) -> Any:
    raise RuntimeError(f"not to {location}")


# A place that this process has not got, so that the load fails whether or not there is a GPU.
NO_DEVICES = {
    "cuda": "cuda:99",
    "nonsense": "nonsense",
    "mps": "mps",
    "dict": {"cpu": "cuda:99"},
    "function": lambda storage, location: raising(location),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("place", NO_DEVICES)
@pytest.mark.parametrize("new_format", [True, False])
def test_load_that_fails_leaves_no_descriptor_open(
    place: str, weights_only: bool, new_format: bool, save: Saver, without_collector: None
) -> None:
    path = save(STATE, _use_new_zipfile_serialization=new_format)
    with zerocopy.patched():
        before = descriptors()
        for _ in range(5):
            with pytest.raises(Exception, match=r"(?s)."):
                torch.load(path, map_location=NO_DEVICES[place], weights_only=weights_only)
        assert descriptors() == before


@pytest.mark.parametrize("weights_only", [True, False])
def test_damaged_file_leaves_no_descriptor_open(
    weights_only: bool, save: Saver, without_collector: None
) -> None:
    path = save(STATE)
    path.write_bytes(path.read_bytes()[:-100])
    with zerocopy.patched():
        before = descriptors()
        for _ in range(5):
            with pytest.raises(RuntimeError):
                torch.load(path, weights_only=weights_only)
        assert descriptors() == before


# ------------------------------------------------------------------------------ wrong arguments, wrong files


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    "arguments", [{"map_location": b"cpu"}, {"wrong": 1}, {"encoding": 1}, {"errors": 1}, {"fix_imports": 1}]
)
def test_wrong_argument_is_refused_in_the_words_of_torch(
    arguments: dict[str, Any], weights_only: bool, new_format: bool, save: Saver
) -> None:
    path = save(STATE, _use_new_zipfile_serialization=new_format)

    def said() -> tuple[Any, ...]:
        try:
            return sorted(torch.load(path, weights_only=weights_only, **arguments)), ""
        except Exception as error:
            return type(error), str(error)

    stock = said()
    with zerocopy.patched():
        assert said() == stock


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_several_archives_in_one_file_say_so(weights_only: bool, as_file: bool, tmp_path: Path) -> None:
    file = io.BytesIO()
    for _ in range(3):
        torch.save(STATE, file)
    path = tmp_path / "several.pt"
    path.write_bytes(file.getvalue())
    file.seek(0)
    with zerocopy.patched(), pytest.raises(Exception, match="several archives") as raised:
        torch.load(path if as_file else file, weights_only=weights_only)
    with pytest.raises(Exception, match=r"(?s).") as of_damage:
        torch.load(io.BytesIO(file.getvalue()[:100]), weights_only=weights_only)
    assert raised.type is of_damage.type


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


@pytest.mark.parametrize("thread_local", [False, True])
def test_block_that_a_signal_handler_interrupts_ends(save: Saver, child: Child, thread_local: bool) -> None:
    done = child(INTERRUPTED_BLOCKS, save({"a": torch.ones(3)}), thread_local)
    assert done.stdout == "True\n", done.stderr
