"""A process that still holds loaded tensors ends as any other: at once, with its own exit code."""

from __future__ import annotations

import pytest
import torch
from conftest import Child, Saver

BEGIN = """
import sys, threading, atexit, ctypes, gc, torch, zerocopy
loaded = zerocopy.load(sys.argv[1], weights_only=sys.argv[2] == "safe")
mine = torch.empty(0).set_(zerocopy.untyped_storage(bytearray(64)), 0, (16,), (1,))
"""

ENDINGS = {
    "module-globals": "",
    "in-a-cycle": """
class Node: pass
node = Node()
node.self, node.loaded, node.mine = node, loaded, mine
gc.disable()
del loaded, mine, node
""",
    "in-another-module": "sys.kept = [loaded, mine]; torch.kept = loaded",
    "never-freed": """
for kept in (loaded, mine):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
del loaded, mine, kept
""",
    "static-of-a-library": """
# As a static at::Tensor of a C++ library: freed by a handler of exit(3), when there is no Python any more.
# A DLPack capsule has such a tensor, and a function of C that frees it.
from torch.utils.dlpack import to_dlpack
libc = ctypes.CDLL(None)
text = ctypes.create_string_buffer(b"after all")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
libc.__cxa_atexit(libc.puts, text, None)  # runs last
ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
for tensor in (loaded["weight"], mine):
    capsule = to_dlpack(tensor)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(capsule))  # whose own destructor would free it too
    managed = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor")
    free = ctypes.c_void_p.from_address(managed + 56)  # DLTensor, manager_ctx, deleter
    libc.__cxa_atexit(free, ctypes.c_void_p(managed), None)
del loaded, mine, tensor, capsule
""",
    "touched-by-atexit": """
both = [loaded["weight"], mine]
atexit.register(lambda: print(sum(tensor.sum().item() for tensor in both)))
""",
    "loaded-by-atexit": "atexit.register(lambda: print(zerocopy.load(sys.argv[1])['weight'].sum().item()))",
    "daemon-thread-holds": """
held = threading.Event()
def hold(tensors):
    held.set()
    threading.Event().wait()
threading.Thread(target=hold, args=([loaded, mine],), daemon=True).start()
del loaded, mine
held.wait()
""",
    "daemon-thread-loads": """
begun = threading.Event()
torch.save({"epoch": 1}, sys.argv[1] + ".plain")  # no tensors: torch 2.13 itself aborts when freeing one here
def work():
    while True:
        try:
            zerocopy.load(sys.argv[1] + ".plain")
            zerocopy.load(b"PK\\3\\4")
        except zerocopy.FormatError:
            pass
        zerocopy.untyped_storage(bytearray(64))
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    "daemon-thread-drops-mappings": """
import mmap
begun = threading.Event()
def work():
    while True:  # an mmap releases the GIL while it is freed
        zerocopy.untyped_storage(mmap.mmap(-1, 1 << 20))
        begun.set()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    "saves-go-on": """
for _ in range(20):
    zerocopy.save(loaded, sys.argv[1] + ".saved", wait=False)
""",
    "thread-local": """
local = threading.local()
local.loaded = loaded, mine
del loaded, mine
""",
    "finalizer-of-a-global": """
class Last:
    def __init__(self, tensors): self.tensors = tensors
    def __del__(self): self.tensors.clear()
last = Last([loaded, mine])
del loaded, mine
""",
    "backward-graph": "loss = (loaded['weight'].requires_grad_() * 2).sum(); loss.backward()",
}


# One of each sort of end; the others differ in who holds the tensors.
FAST = ("module-globals", "in-a-cycle", "static-of-a-library", "daemon-thread-loads", "loaded-by-atexit")
OTHERS = pytest.mark.slow("other holders of tensors at the end of an interpreter that takes itself down")


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=() if name in FAST else OTHERS) for name in ENDINGS]
)
def test_exit_with_tensors_alive(save: Saver, forked_whole: Child, ending: str) -> None:
    path = save({"weight": torch.arange(1000.0), "parameter": torch.nn.Parameter(torch.ones(2))})
    trust = "trusting" if ending in ("in-a-cycle", "daemon-thread-holds") else "safe"
    done = forked_whole(BEGIN + ENDINGS[ending], path, trust)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "499500.0\n", "after all\n")


def test_saved_at_exit(save: Saver, forked_whole: Child) -> None:
    path = save({"weight": torch.arange(500_000.0)})
    done = forked_whole(
        BEGIN + "import atexit\natexit.register(zerocopy.save, loaded, sys.argv[1])\n", path, "safe"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert torch.equal(torch.load(path)["weight"], torch.arange(500_000.0))


@pytest.mark.slow("modules that were not imported before the end, so torch is imported again")
@pytest.mark.parametrize("call", ["zerocopy.save(loaded, path)", "zerocopy.convert(sys.argv[1], path)"])
def test_saved_for_the_first_time_by_atexit(save: Saver, child: Child, call: str) -> None:
    path = save({"weight": torch.arange(500_000.0)})
    ending = f"path = sys.argv[1] + '.saved.pt'\natexit.register(lambda: {call})\n"
    done = child(BEGIN + ending, path, "safe")
    assert (done.returncode, done.stderr) == (0, "")
    assert torch.equal(torch.load(f"{path}.saved.pt")["weight"], torch.arange(500_000.0))


def test_exit_code_is_the_programs_own(save: Saver, forked_whole: Child) -> None:
    path = save({"weight": torch.arange(1000.0)})
    assert forked_whole(BEGIN + "sys.exit(7)", path, "safe").returncode == 7
    failed = forked_whole(BEGIN + "raise ValueError('mine')", path, "safe")
    assert failed.returncode == 1 and failed.stderr.strip().endswith("ValueError: mine")
