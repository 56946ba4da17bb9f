"""Fresh clients: processes that have imported what they need, and have not loaded or connected to anything.

Run as a program it prepares a loader, and for each line that it is told has such processes load, and says what it took:
"attach" for the seconds of one load, in a process that is started for it; "attaches" for loads a second, by 8 forked
processes at once; "pss" for the bytes that 8 forked processes have taken, each page divided by those that share it,
when all have read every page.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..data.objects import spans_of
from ..rows import LOADERS
from .kernels import load_kernels
from .measure import Series
from .memory import import_for

AT_ONCE = 8
SECONDS = 3.0
ROOT = Path(__file__).resolve().parents[2]

Ask = Callable[[str], float]


@contextlib.contextmanager
def clients_of(loader: str, path: Path) -> Iterator[Ask]:
    """Give a function that has clients of a loader do one of the three things."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.engine.clients", loader, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        sent, said = process.stdin, process.stdout

        def ask(what: str) -> float:
            sent.write(f"{what}\n")
            sent.flush()
            answer = said.readline()
            if not answer:
                raise subprocess.CalledProcessError(process.wait(), command)
            return float(json.loads(answer))

        try:
            yield ask
        finally:
            sent.close()


def interleave(ours: Ask, peer: Ask | None, rounds: int) -> Series:
    """Time one load of a fresh client each, in turn. Each takes seconds to start, so the rounds are few."""
    series = Series()
    sides = [(ours, series.ours)] + ([(peer, series.peer)] if peer else [])
    for ask, _ in sides:
        ask("attach")  # the first publishes
    while len(series.ours) < rounds:
        for ask, seconds in sides:
            seconds.append(ask("attach"))
    return series


def _attach(loader: str, path: str) -> float:
    """Seconds of one load in a new process, started as any program is: one that is forked copies what it writes to."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.engine.clients", loader, path, "once"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def _once(call: Callable[[], Any]) -> None:
    gc.disable()
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    print(f"{elapsed!r}", flush=True)


def _attaches(call: Callable[[], Any]) -> float:
    begin = time.monotonic() + 0.5  # when all of them are there

    def run() -> float:
        call()
        time.sleep(max(0.0, begin - time.monotonic()))
        count, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            call()
            count += 1
        return count / SECONDS

    return sum(_in_processes(run, AT_ONCE))


def _pss(call: Callable[[], Any]) -> float:
    """Bytes beyond those of as many processes that have loaded nothing."""
    kernels = load_kernels()
    before = _in_processes(lambda: _together(lambda: None), AT_ONCE)
    after = _in_processes(lambda: _together(lambda: _touched(call(), kernels)), AT_ONCE)
    return sum(after) - sum(before)


def _touched(result: Any, kernels: Any) -> Any:
    kernels.touch(*kernels.prepare(spans_of(result)))
    return result


def _together(call: Callable[[], Any]) -> float:
    """Return what of this process's memory is its share, when all others hold theirs too."""
    kept = call()
    _wait(2.0)
    text = Path("/proc/self/smaps_rollup").read_text()
    _wait(2.0)
    del kept
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return float(found[1]) * 1024


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def _in_processes(run: Callable[[], float], count: int) -> list[float]:
    """Fork processes, and return what each has found."""
    reading, writing = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.write(writing, f"{run()!r}\n".encode())
                status = 0
            os._exit(status)
        children.append(child)
    os.close(writing)
    with os.fdopen(reading) as answers:
        found = [float(line) for line in answers]
    for child in children:
        os.waitpid(child, 0)
    if len(found) != count:
        raise RuntimeError(f"{count - len(found)} of {count} clients failed")
    return found


def main() -> None:
    """Prepare, and do what each line says."""
    loader, path, *once = sys.argv[1:]
    import_for(loader)
    call = LOADERS[loader].call(path)
    gc.collect()
    gc.freeze()
    if once:
        _once(call)
        return
    does = {
        "attach": lambda: _attach(loader, path),
        "attaches": lambda: _attaches(call),
        "pss": lambda: _pss(call),
    }
    for line in sys.stdin:
        found = does[line.strip()]()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
