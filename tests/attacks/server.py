"""Loads files of the catalog: a process that has imported everything, and forks to load, in bounds.

:mod:`attacks.runner` runs this as a program, with a folder to work in. A line of standard input names attacks and a
loader. Each of the files is answered by a line of standard output.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import assembler
import legacy_files
import torch
from equality import assert_same
from sanitizer import SANITIZED

import zerocopy
from attacks import CATALOG, hdf5
from attacks.attack import CANARY, MEBIBYTE, TRAP, Attack, Expected

#: Limit of torch itself for any file: beyond it the answer is "out of memory" or "hangs".
TORCH_MEMORY = 512 * MEBIBYTE
TORCH_SECONDS = 1
#: How much longer the same takes under a sanitizer.
SLOWNESS = 5 if SANITIZED else 1
#: How much more memory: around each allocation lies some that nobody may touch.
GREED = 2 if SANITIZED else 1
#: Seconds by the clock. A process that waits for something takes no processor time.
PATIENCE = 20 * SLOWNESS
#: Of malloc.h.
_ARENA_MAX = -8
#: Parts of what is said where memory is not given.
_ALLOCATORS = ("allocate memory", "bad_alloc", "bad allocation", "not enough memory", "Cannot allocate")
#: Limit of the comparison, beyond the loading.
COMPARISON_SECONDS = 20
#: Address space that loading anything takes: stacks of threads, libraries that were not needed yet.
OVERHEAD = 16 * MEBIBYTE

EQUAL, LOADS, DIFFERS, HANGS, NO_MEMORY = "equal", "loads", "differs", "hangs", "out of memory"
KILLED = "killed by "


@dataclass
class Outcome:
    """The result of loading a file.

    Parameters
    ----------
    word : str
        "equal", "loads" or "differs"; an exception's class; "killed by SIGSEGV", "hangs", "out of memory".
    message : str
        The exception's, or how the value differs.
    memory : int
        Bytes at the peak, beyond the start.
    noted : list of str
        Forbidden acts of zerocopy, from Python's audit events.
    left : list of str
        The contents of the working folder, which was empty before.
    globals : list of str
        All refused names, as the exception lists them. Its message has the first five.
    """

    word: str
    message: str = ""
    memory: int = 0
    noted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    globals: list[str] = field(default_factory=list)

    @property
    def is_refusal(self) -> bool:
        """Return whether the loader has raised an exception other than for want of memory."""
        return self.word.endswith("Error")


def file_of(folder: Path, number: int) -> Path:
    """Return where the file of a family's attack lies."""
    return folder / "files" / f"{number}.pt"


def serve(folder: Path) -> None:
    """Answer one line of standard input after the other."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    trap, answers = folder / "trap", os.dup(1)
    trap.mkdir()
    (trap / f"{TRAP}.py").write_text(
        f"import pathlib\ndef spring(*_): pathlib.Path({CANARY!r}).touch()\nspring()\n"
    )
    sys.path.append(str(trap))
    sys.addaudithook(hook)
    warm_up(folder / "warm.pt")
    gc.collect()
    gc.freeze()  # a child's collections would copy all of it
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for line in sys.stdin:
        family, numbers, loader = json.loads(line)
        while numbers:
            for outcome in outcomes_in_child(folder, family, numbers, loader):
                os.write(answers, json.dumps(asdict(outcome)).encode() + b"\n")
                del numbers[0]


def warm_up(path: Path) -> None:
    """Import what torch and zerocopy import on first use, so that no import belongs to a file."""
    "\n".encode("unicode_escape")  # Python imports codecs on first use
    legacy = legacy_files.checkpoint()
    mkdir = assembler.pickle(assembler.call(assembler.name("posix", "mkdir"), "no"))
    files = [assembler.checkpoint(), legacy, assembler.checkpoint(mkdir), legacy[:-1], b"nothing"]
    named = [assembler.name("collections", "deque"), legacy_files.tensor()]  # a global that takes trust
    files += [hdf5.hdf5(hdf5.attributed)]  # takes h5py
    trusted = [legacy_files.checkpoint(named)]
    for data in files + trusted:
        path.write_bytes(data)
        for load in (zerocopy.load, torch.load):
            with contextlib.suppress(Exception):
                load(path, weights_only=data not in trusted)


def outcomes_in_child(folder: Path, family: int, numbers: list[int], loader: str) -> Iterator[Outcome]:
    """Yield outcomes of a forked process, as many as one process may load: until one does more than answer."""
    room = folder / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    ours, childs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(room)
            for number in list(numbers):
                attack = CATALOG[family].attacks[number].here()
                outcome = observed(attack, loader, file_of(folder, number))
                outcome.left = [each.name for each in room.iterdir()]
                os.write(childs, json.dumps(asdict(outcome)).encode() + b"\n")
                is_clean = not (outcome.left or outcome.noted) and loader != "trusting"
                if not (is_clean and (outcome.word == EQUAL or outcome.is_refusal)):
                    break
            status = 0
        finally:
            os._exit(status)
    os.close(childs)
    with os.fdopen(ours) as lines:
        for line in lines:
            yield Outcome(**json.loads(line))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        yield Outcome(ended(status), left=[each.name for each in room.iterdir()])


def ended(status: int) -> str:
    """Return the word for a process that ended without an answer."""
    if status > 0:
        return f"exits with {status}"
    name = signal.Signals(-status).name
    return HANGS if name in ("SIGPROF", "SIGALRM") else KILLED + name


def observed(attack: Attack, loader: str, path: Path) -> Outcome:
    """Load a file in this process, with limits, and tell what happened."""
    noted: list[str] = []
    options: dict[str, Any] = {"weights_only": attack.weights_only and loader != "trusting"}
    if attack.map_location is not None:
        options["map_location"] = attack.map_location
    value, outcome = None, Outcome(LOADS)
    ours = loader in ("zerocopy", "stub")
    if loader == "stub":
        options |= {"weights_only": True, "unknown": "stub"}
    load = zerocopy.load if ours else torch.load
    memory = GREED * (attack.memory if ours else TORCH_MEMORY)
    # Nothing of an earlier file is left: no finalizer that would run now, no memory that could be used again.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    start = memory_of("VmHWM")
    seconds = SLOWNESS * (attack.seconds if ours else TORCH_SECONDS)
    with limited(memory + path.stat().st_size, seconds), noting(noted, path, attack.weights_only):
        try:
            value = load(path, **options)
        except BaseException as error:
            outcome = judged(error)
    outcome.memory = memory_of("VmHWM") - start
    outcome.noted = noted if ours else []  # stock torch imports what it wants
    if outcome.word == LOADS and attack.expected is Expected.EQUAL:
        try:
            assert_same(value, attack.value())
            outcome.word = EQUAL
        except AssertionError as error:
            outcome.word, outcome.message = DIFFERS, str(error)[:1000]
    del value
    return outcome


def judged(error: BaseException) -> Outcome:
    """Return an exception's name and text, or "out of memory" for one of the many names of that."""
    word, message = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or any(said in message for said in _ALLOCATORS):
        word = NO_MEMORY
    return Outcome(word, message[:100_000], globals=getattr(error, "globals", []))


def memory_of(name: str) -> int:
    """Return a figure of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


@contextlib.contextmanager
def limited(memory: int, seconds: float) -> Iterator[None]:
    """Bound what is done meanwhile: allocations beyond fail, time beyond ends the process."""
    # Else a thread's first allocation would take 128 MiB of address space for an arena of its own.
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    limit = memory_of("VmSize") + memory + OVERHEAD
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, max(PATIENCE, 10 * seconds))
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_PROF, COMPARISON_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def noting(noted: list[str], path: Path, weights_only: bool) -> Iterator[None]:
    """Note each of Python's audit events but the opening of one file: imports, system calls, code.

    The names in a trusted file are looked up.
    """
    own = {str(path), os.fsencode(path)}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_own = event == "open" and arguments[0] in own
        is_trusted = event == "pickle.find_class" and not weights_only
        is_harmless = event == "builtins.id"  # h5py keeps its objects by it
        if not (is_own or is_trusted or is_harmless):
            noted.append(f"{event} {arguments!r}"[:200])

    _watching.append(watch)
    try:
        yield
    finally:
        _watching.clear()


#: The function that sees audit events now. Python keeps a hook for good: there is one.
_watching: list[Callable[[str, tuple[Any, ...]], None]] = []


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _watching:
        watch(event, arguments)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
