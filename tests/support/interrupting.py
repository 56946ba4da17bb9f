"""A load that Ctrl-C interrupts while its threads read: what becomes of it, of the threads and of the mappings."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple

from conftest import Child

_PROGRAM = """
import os, signal, sys, threading, time, torch, zerocopy
path, already = sys.argv[1], int(sys.argv[2])
def threads():
    return len(os.listdir("/proc/self/task"))
before, most, stop = threads(), 0, threading.Event()
def watch():
    global most
    sent = False
    while not stop.wait(0.002):
        most = max(most, threads())
        if most - before > already and not sent:  # it is reading
            sent = True
            os.kill(os.getpid(), signal.SIGINT)
watching = threading.Thread(target=watch)
watching.start()
try:
    LOAD
    print("loaded")
except KeyboardInterrupt:
    print("interrupted")
stop.set()
watching.join()
deadline = time.monotonic() + 30
while threads() > before and time.monotonic() < deadline:  # what was joined is listed a moment longer
    time.sleep(0.01)
print(most - before, threads() - before, sum(path in line for line in open("/proc/self/maps")))
"""


class Interrupted(NamedTuple):
    """Observations: most threads beside the first, with the watcher; threads left; mappings left."""

    most: int
    left: int
    mapped: int


def interrupted(forked: Child, load: str, path: Path, already: int, **environment: str) -> Interrupted:
    """Run `load`, which takes `path`, and interrupt it when there are more threads than `already` beside the first."""
    program = _PROGRAM.replace("LOAD", textwrap.indent(load, "    ").strip())
    done = forked(program, path, already, **environment)
    outcome, _, numbers = done.stdout.partition("\n")
    assert outcome == "interrupted", done.stderr
    return Interrupted(*map(int, numbers.split()))
