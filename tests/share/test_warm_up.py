"""The warm-up of a loader of the model server: it succeeds, and changes nothing that a call sees."""

from __future__ import annotations

from conftest import Child

CODE = """
import contextlib, os, threading, torch
from zerocopy.share.worker.warm_up import WarmUp

def state():
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this folder
            found.append((name, os.readlink("/proc/self/fd/" + name)))
    return sorted(found), threading.active_count(), torch.load, torch.jit.load, torch.random.get_rng_state().tolist()

at_first = state()
warm_up = WarmUp()
warm_up.load_and_publish()
before = state()
for _ in range(5):
    warm_up.load_and_publish()
assert state() == before, (before[:4], state()[:4])
warm_up.run()
assert state() == at_first, (at_first[:4], state()[:4])
"""


def test_warm_up_succeeds_and_leaves_the_process_as_it_was(child: Child) -> None:
    ended = child(CODE)
    assert ended.returncode == 0, ended.stderr
