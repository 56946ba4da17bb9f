"""Several saves to one file: the last that was called wins, also where an earlier one goes on meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sharing import wait_until

import zerocopy
from zerocopy.saving import turns

LARGE = {"who": "first", "x": torch.ones(3_000_000)}
LAST = {"who": "last", "y": torch.ones(3)}


def written(obj: Any, path: Path) -> None:
    with zerocopy.Writer(path) as writer:
        writer.save(obj)


def saved_patched(obj: Any, path: Path) -> None:
    with zerocopy.patched():
        torch.save(obj, path)


FIRST: dict[str, Callable[[Path, Callable[..., object]], object]] = {
    "save": lambda path, progress: zerocopy.save(LARGE, path, progress=progress),
    "background": lambda path, progress: zerocopy.save(LARGE, path, progress=progress, wait=False).wait(),
    "convert": lambda path, progress: zerocopy.convert(path.with_name("source.pt"), path, progress=progress),
}
LATER: dict[str, Callable[[Any, Path], object]] = {
    "save": zerocopy.save,
    "background": lambda obj, path: zerocopy.save(obj, path, wait=False).wait(),
    "Writer": written,
    "patched torch.save": saved_patched,
}
PAIRS = [("save", later) for later in LATER] + [("background", "save"), ("convert", "background")]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("f.pt", "source.pt"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(LARGE, tmp_path / "source.pt")
    torch.save({"who": "old"}, tmp_path / "f.pt")
    return tmp_path / "f.pt"


@pytest.mark.parametrize(("first", "later"), PAIRS)
def test_later_call_of_another_thread_waits_and_wins(path: Path, first: str, later: str) -> None:
    is_under_way, may_go_on = threading.Event(), threading.Event()

    def progress(*_: int) -> None:
        is_under_way.set()
        may_go_on.wait(180)

    threads = [threading.Thread(target=FIRST[first], args=(path, progress))]
    threads[0].start()
    assert is_under_way.wait(180)
    threads.append(threading.Thread(target=LATER[later], args=(LAST, path)))
    threads[1].start()
    if later != "Writer":  # which counts from its end
        wait_until(lambda: len(turns._under_way) == 2)
        assert torch.load(path)["who"] == "old" or first == "background"
    may_go_on.set()
    for thread in threads:
        thread.join()
    assert torch.load(path)["who"] == "last"
    assert left_over(path.parent) == []


@pytest.mark.parametrize("later", ["save", "Writer", "patched torch.save"])
@pytest.mark.parametrize("first", ["save", "convert"])
def test_call_within_another_takes_its_place(path: Path, first: str, later: str) -> None:
    """As a signal handler does that saves at the end of the machine's time."""
    calls = []

    def handle(*_: object) -> None:
        calls.append(LATER[later](LAST, path))

    def progress(*_: int) -> None:
        if not calls:
            signal.raise_signal(signal.SIGUSR1)

    own = signal.signal(signal.SIGUSR1, handle)
    try:
        FIRST[first](path, progress)
    finally:
        signal.signal(signal.SIGUSR1, own)
    assert calls and torch.load(path)["who"] == "last"
    assert left_over(path.parent) == []


def test_first_call_keeps_its_name_when_the_later_one_fails(path: Path) -> None:
    failed = []

    def progress(*_: int) -> None:
        if not failed:
            with pytest.raises(ZeroDivisionError):
                zerocopy.save(LAST, path, progress=lambda *_: 1 // 0)
            failed.append(True)

    zerocopy.save(LARGE, path, progress=progress)
    assert failed and torch.load(path)["who"] == "first"


def test_writer_counts_from_its_end(path: Path) -> None:
    with zerocopy.Writer(path) as writer:
        zerocopy.save(LAST, path)
        writer.save(LARGE)
    assert torch.load(path)["who"] == "first"


def save_many(path: Path, wait: Callable[[int], bool]) -> None:
    """Save by eight threads at once."""

    def save(number: int) -> None:
        for step in range(4):
            saving = zerocopy.save(
                [number, step, torch.full((70_000,), float(number))], path, wait=wait(number)
            )
            if saving is not None:
                saving.wait()

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_eight_threads_of_two_processes_leave_one_whole_file(path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            save_many(path, lambda number: number % 2 == 0)
            os._exit(0)
        finally:
            os._exit(1)
    save_many(path, lambda number: number % 2 == 1)
    assert os.waitpid(child, 0)[1] == 0
    number, step, tensor = torch.load(path)
    assert step == 3 and torch.equal(tensor, torch.full((70_000,), float(number)))
    assert left_over(path.parent) == [] and not turns._under_way
    zerocopy.save(LAST, path)
    assert torch.load(path)["who"] == "last"


def test_child_of_a_fork_leaves_the_save_with_its_own_exception(path: Path) -> None:
    """The child of a fork does not have the saves of its parent, and leaves its file alone."""
    pids: list[int] = []

    def progress(*_: int) -> None:
        if not pids:
            pids.append(os.fork())
        if pids == [0]:
            raise ZeroDivisionError
        if len(pids) == 1:
            pids.append(os.waitpid(pids[0], 0)[1])

    try:
        zerocopy.save(LARGE, path, progress=progress)
    finally:
        if pids == [0]:
            os._exit(0 if sys.exc_info()[0] is ZeroDivisionError else 1)
    assert pids[1] == 0 and torch.load(path)["who"] == "first"
