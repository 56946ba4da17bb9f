"""Runs a fuzz target that is written in Python.

Input number i of a run is made from the run's seed and i alone, and is tried in a process that may die of it: the
parent sees the number that it was at, makes the input once more, and has it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

BATCH = 500  # inputs a process: what one leaves behind must not hide what the next does
MEMORY = 2**30  # more than at the beginning, of address space: a sanitizer's own terabytes are there by then
SECONDS = 5  # of the processor, for one input
PATIENCE = 60  # on the clock: a thread that waits for ever uses no processor
_BROKEN = 70  # exit status of a process that reports a failure itself
MOST = 10  # findings of a run


@dataclass(frozen=True)
class Target:
    """A fuzz target.

    Parameters
    ----------
    name : str
        Findings are kept in ``crashes/<name>``.
    seeds : callable
        Returns the inputs to begin with, by their names.
    mutate : callable
        Returns an input changed. It takes no chances but those of the generator.
    check : callable
        Tries an input and returns in a word what came of it, for the statistics. Any exception is a finding.
    """

    name: str
    seeds: Callable[[], dict[str, bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    check: Callable[[bytes], str]

    def made(self, seed: int, i: int, seeds: list[bytes]) -> bytes:
        """Return input `i` of a run."""
        rng = random.Random(f"{seed} {i}")
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            data = self.mutate(data, rng)
        return data


@dataclass(frozen=True)
class Failure:
    """How a process ended that should not have: `kind` is the same for what has the same cause."""

    kind: str
    report: str


def in_child(body: Callable[[], None]) -> Failure | None:
    """Run in a process of its own, with little memory; None if it ends well. The report is what it says on stderr."""
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            _live(body, stderr.fileno())
        _, status = os.waitpid(child, 0)
        stderr.seek(0)
        report = stderr.read().decode(errors="replace")
    if status == 0:
        return None
    return Failure(_kind(status, report), report)


def _live(body: Callable[[], None], stderr: int) -> None:
    """Be the child: never returns."""
    status = _BROKEN
    try:
        os.dup2(stderr, 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # pytest's writes elsewhere
        with contextlib.suppress(AttributeError):  # the runtime of a sanitizer has it
            ctypes.CDLL(None).__sanitizer_set_report_fd(ctypes.c_void_p(2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        faulthandler.disable()  # pytest's: what a sanitizer does about a signal tells more
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # the threads of the parent are not there, and would be waited for
        body()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def allow_time() -> None:
    """Let the process live so much longer."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def _kind(status: int, report: str) -> str:
    if summary := re.search(r"^SUMMARY: (\w+: [\w-]+)", report, re.MULTILINE):
        ours = re.search(
            r" in (zerocopy::[\w:~]+)", report
        )  # the first of our functions: others are where all end
        return f"{summary[1]} in {ours[1] if ours else 'something else'}"
    if error := re.search(r"runtime error: (.*)", report):
        return error[1]
    if os.WIFSIGNALED(status):
        named = {signal.SIGPROF: "too much time", signal.SIGALRM: "waits for ever"}
        return named.get(os.WTERMSIG(status), signal.Signals(os.WTERMSIG(status)).name)
    if places := re.findall(r'^  File ".*?([^/"]+)", line (\d+)', report, re.MULTILINE):
        last = report.strip().splitlines()[-1]
        return f"{last.partition(':')[0]} at {':'.join(places[-1])}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def alone(target: Target, data: bytes) -> Failure | None:
    """Try one input."""

    def body() -> None:
        allow_time()
        target.check(data)

    return in_child(body)


class Run:
    """A run of a target: as many inputs as the time allows."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.seed = target, seed
        self.seeds = [data for _, data in sorted(target.seeds().items())]
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.done = 0

    def failures(self, seconds: float) -> Iterator[tuple[bytes, Failure]]:
        """Yield each input that breaks something, until the time is over; what the caller takes is not counted."""
        left = seconds
        with tempfile.TemporaryFile() as log:
            while left > 0:
                begin = time.monotonic()
                log.truncate(0)
                failure = in_child(functools.partial(self._batch, log.fileno(), begin + left))
                finished, at = self._read(log.fileno())
                self.done = at if failure is None else at + 1
                self.outcomes.update(finished)
                left -= time.monotonic() - begin
                if failure is not None:
                    yield self.target.made(self.seed, at, self.seeds), failure

    def _batch(self, log: int, until: float) -> None:
        """Say the number of each input before it, and what came of it after it."""
        os.lseek(log, 0, os.SEEK_SET)
        for i in range(self.done, self.done + BATCH):
            os.write(log, b"%d " % i)
            allow_time()
            data = self.target.made(self.seed, i, self.seeds)
            os.write(log, self.target.check(data).encode() + b"\n")
            if time.monotonic() > until:
                break

    def _read(self, log: int) -> tuple[list[str], int]:
        """Return the outcomes, and the number of the input after them: the one that the process died of, if it did."""
        size = os.fstat(log).st_size
        lines = [line.split() for line in os.pread(log, size, 0).decode().splitlines()]
        finished = [line[1] for line in lines if len(line) == 2]
        return finished, self.done + len(finished)


def fuzz(target: Target, seconds: float, seed: int, kept: Path) -> int:
    """Run, keep what is found in a folder, and say how it went; return the number of findings."""
    import reduce

    run, found = Run(target, seed), dict[str, Path]()
    for data, failure in run.failures(seconds):
        if failure.kind in found:
            continue
        again = alone(target, data)
        if again is None:
            print(
                f"fuzz: {target.name}: input {run.done - 1} of seed {seed} fails no more alone: {failure.kind}"
            )
            continue

        def breaks(trial: bytes, kind: str = again.kind) -> bool:
            failure = alone(target, trial)
            return failure is not None and failure.kind == kind

        small = reduce.reduced(data, breaks)
        kept.mkdir(parents=True, exist_ok=True)
        path = kept / f"crash-{hashlib.sha1(small).hexdigest()}"
        path.write_bytes(small)
        found[failure.kind] = found[again.kind] = path
        print("\n".join(again.report.partition("Shadow bytes")[0].strip().splitlines()[-40:]))
        print(
            f"fuzz: {target.name}: found {path} ({len(data)} bytes, made {len(small)}): {again.kind}",
            flush=True,
        )
        if len(set(found.values())) == MOST:
            break
    counted = ", ".join(f"{n} {word}" for word, n in run.outcomes.most_common())
    print(f"fuzz: {target.name}: seed {seed}: {run.done} executions; {counted}; {seconds:g} s", flush=True)
    return len(set(found.values()))


def main(target: Target) -> None:
    """``TARGET_fuzz.py SECONDS [SEED]`` fuzzes; ``TARGET_fuzz.py FILE...`` tries files, in this process."""
    warnings.simplefilter("ignore")  # torch's about half of its own objects
    arguments = sys.argv[1:]
    if arguments and not arguments[0].isdigit():
        for path in map(Path, arguments):
            print(f"{path}: {target.check(path.read_bytes())}")
        return
    if not 1 <= len(arguments) <= 2:
        sys.exit(f"usage: {sys.argv[0]} SECONDS [SEED] | FILE...")
    seed = int(arguments[1]) if len(arguments) == 2 else time.time_ns() % 2**32
    sys.exit(1 if fuzz(target, float(arguments[0]), seed, HERE / "crashes" / target.name) else 0)
