"""Several saves to one file: the last that was called wins, also where the first one goes on meanwhile."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zerocopy

LARGE = {"who": "first", "x": torch.ones(3_000_000)}
LAST = {"who": "last", "y": torch.ones(3)}

Saves = dict[str, Callable[[Any, Path], object]]
FIRST: dict[str, Callable[[Path, Callable[..., object]], object]] = {
    "save": lambda path, progress: zerocopy.save(LARGE, path, progress=progress),
    "convert": lambda path, progress: zerocopy.convert(path.with_name("source.pt"), path, progress=progress),
}


def written(obj: Any, path: Path) -> None:
    with zerocopy.Writer(path) as writer:
        writer.save(obj)


def saved_patched(obj: Any, path: Path) -> None:
    with zerocopy.patched():
        torch.save(obj, path)


LATER: Saves = {
    "save": zerocopy.save,
    "background": lambda obj, path: zerocopy.save(obj, path, wait=False).wait(),
    "background, not waited for": lambda obj, path: zerocopy.save(obj, path, wait=False),
    "Writer": written,
    "patched torch.save": saved_patched,
}


PAIRS = [("save", later) for later in LATER] + [("convert", "save"), ("convert", "background")]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("f.pt", "source.pt"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(LARGE, tmp_path / "source.pt")
    torch.save({"who": "old"}, tmp_path / "f.pt")
    return tmp_path / "f.pt"


@pytest.mark.parametrize(("first", "later"), PAIRS)
def test_last_call_wins_in_another_thread(path: Path, first: str, later: str) -> None:
    is_under_way, may_go_on = threading.Event(), threading.Event()

    def progress(*_: int) -> None:
        is_under_way.set()
        may_go_on.wait(180)

    thread = threading.Thread(target=FIRST[first], args=(path, progress))
    thread.start()
    assert is_under_way.wait(180)
    LATER[later](LAST, path)
    may_go_on.set()
    thread.join()
    assert torch.load(path)["who"] == "last"
    assert left_over(path.parent) == []


@pytest.mark.parametrize(("first", "later"), PAIRS)
def test_last_call_wins_in_the_same_thread(path: Path, first: str, later: str) -> None:
    calls = []

    def progress(*_: int) -> None:
        if not calls:
            calls.append(LATER[later](LAST, path))

    FIRST[first](path, progress)
    assert torch.load(path)["who"] == "last"
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


def test_child_of_a_fork_leaves_the_save_with_its_own_exception(path: Path) -> None:
    """The child of a fork does not have the saves of its parent."""
    pids: list[int] = []

    def progress(*_: int) -> None:
        if not pids:
            pids.append(os.fork())
        if pids == [0]:
            raise ZeroDivisionError

    try:
        zerocopy.save(LARGE, path, progress=progress)
    finally:
        if pids == [0]:
            os._exit(0 if sys.exc_info()[0] is ZeroDivisionError else 1)
    assert os.waitpid(pids[0], 0)[1] == 0
    assert torch.load(path)["who"] == "first"
