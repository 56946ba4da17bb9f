"""The life of a process: its end, forks, threads, signals, other interpreters. More in test_lifetime, test_shutdown."""

from __future__ import annotations

import gc
import signal
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from conftest import Child, Saver, maps_of, saved_bytes
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


# ------------------------------------------------------------------------------------------ the end

BEGIN = """
import atexit, ctypes, gc, signal, sys, threading, torch, zerocopy
path = sys.argv[1]
signal.alarm(20)  # one that hangs ends by this
loaded = zerocopy.load(path, weights_only=sys.argv[2] == "safe")
mine = torch.empty(0).set_(zerocopy.untyped_storage(bytearray(64)), 0, (16,), (1,))
"""

ENDINGS = {
    "global": "",
    "module": "sys.modules['kept'] = [loaded, mine]\ndel loaded, mine",
    "cycle": """
        class Node: pass
        node = Node()
        node.self, node.kept = node, [loaded, mine]
        gc.disable()
        del loaded, mine, node
    """,
    "never-freed": """
        for kept in (loaded, mine):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        del loaded, mine, kept
    """,
    "static": """
        # As a static at::Tensor of a C++ library: freed by a handler of exit(3), when there is no Python any more.
        # A DLPack capsule has such a tensor, and a function of C that frees it.
        from torch.utils.dlpack import to_dlpack
        libc = ctypes.CDLL(None)
        text = ctypes.create_string_buffer(b"after all")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
        libc.__cxa_atexit(libc.puts, text, None)  # runs last
        ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
        for tensor in (*loaded.values(), mine):
            capsule = to_dlpack(tensor)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(capsule))  # whose own destructor would free it too
            managed = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor")
            free = ctypes.c_void_p.from_address(managed + 56)  # DLTensor, manager_ctx, deleter
            libc.__cxa_atexit(free, ctypes.c_void_p(managed), None)
        del loaded, mine, tensor, capsule
    """,
    "daemon-holds": """
        held = threading.Event()
        def hold(tensors):
            held.set()
            threading.Event().wait()
        threading.Thread(target=hold, args=([loaded, mine],), daemon=True).start()
        del loaded, mine
        held.wait()
    """,
    "daemon-parses": """
        begun = threading.Event()
        def work():
            while True:
                try:
                    zerocopy.load(path + ".bad")
                except zerocopy.FormatError:
                    begun.set()
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
    """,
    "atexit": "atexit.register(lambda: zerocopy.load(path)['layer.1'].add_(loaded['layer.1']))",
    "exception": "sys.tracebacklimit = 0\nraise SystemExit(0)",
    "finalizer": """
        class Last:
            def __init__(self, *tensors): self.tensors = tensors
            def __del__(self): del self.tensors
        sys.modules["last"] = Last(loaded, mine)
        del loaded, mine
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_ten_ends_with_tensors_alive(path: Path, forked_whole: Child, ending: str) -> None:
    """Of each kind, so a hundred in all: at once, with exit code 0, without a word."""
    path.with_name(path.name + ".bad").write_bytes(saved_bytes({"a": torch.ones(3)})[:-30])
    for i in range(10):
        code = BEGIN + textwrap.dedent(ENDINGS[ending])
        done = forked_whole(code, path, "trusting" if i % 3 == 2 else "safe")
        assert (done.returncode, done.stderr) == (0, ""), f"run {i}"
        assert done.stdout == ("after all\n" if ending == "static" else "")


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
        for i in range(30):
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


# ------------------------------------------------------------------------------------------ threads


def test_eight_threads_load_good_and_bad(path: Path, save: Saver) -> None:
    whole = path.read_bytes()
    cut = path.with_name("cut.pt")
    cut.write_bytes(whole[:-10])
    wrong = path.with_name("wrong.pt")
    wrong.write_bytes(whole.replace(b"FloatStorage", b"FloatStorale"))
    legacy = save(STATE, "legacy.pt", _use_new_zipfile_serialization=False)
    kinds: list[tuple[Any, Any]] = [
        (path, None),
        (cut, zerocopy.FormatError),
        (legacy, None),
        (wrong, Exception),
        (whole, None),
        (path.with_name("nowhere.pt"), FileNotFoundError),
    ]

    def load(i: int) -> bool:
        source, error = kinds[i % len(kinds)]
        try:
            loaded = zerocopy.load(source, weights_only=i % 5 != 0)
        except Exception as raised:
            return error is not None and isinstance(raised, error)
        return error is None and all(torch.equal(loaded[name], STATE[name]) for name in STATE)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(load, range(1000)))
    gc.collect()
    assert not maps_of(path) and not maps_of(legacy) and not maps_of(cut)


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


@BOTH
def test_a_signal_at_any_moment(path: Path, alarm: None, weights_only: bool) -> None:
    """Wherever it comes, the load ends with the handler's exception, or is through."""
    interrupted = 0
    for i in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 50))
            for _ in range(10):
                zerocopy.load(path, weights_only=weights_only, backend="pread" if i % 2 else "mmap")
            while True:
                time.sleep(1)
        except Interrupted:
            interrupted += 1
    assert interrupted == 200
    gc.collect()
    assert maps_of(path) == []
    assert_same(zerocopy.load(path, weights_only=weights_only), STATE)


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
