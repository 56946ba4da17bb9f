"""zerocopy.release: clean pages go back to the system, values and addresses stay."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from equality import untyped

import zerocopy
from zerocopy import _core

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint of 16 MiB that is on the disk: dirty pages cannot be given back."""
    if _core.file_system_of_path(os.fsencode(tmp_path))[0] in ("tmpfs", "ramfs"):
        pytest.skip("files of this folder are memory themselves")
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.arange(3 * MIB), "bias": torch.ones(2 * MIB)}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def resident(path: Path) -> int:
    return sum(file.resident for file in zerocopy.memory().files if file.path == str(path))


HOLDERS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "state dict": lambda path, state: [state],
    "module": lambda path, state: torch.nn.ParameterDict(
        {name: torch.nn.Parameter(value, requires_grad=False) for name, value in state.items()}
    ),
    "path": lambda path, state: path,
    "checkpoint": lambda path, state: zerocopy.open(path),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_release_gives_clean_pages_back_and_keeps_values(path: Path, holder: str) -> None:
    state = zerocopy.load(path)
    addresses = {name: untyped(tensor).data_ptr() for name, tensor in state.items()}
    held = HOLDERS[holder](path, state)
    assert state["weight"].sum() + state["bias"].sum() > 0  # every page is touched
    before = resident(path)
    assert before > 30 * MIB
    released = zerocopy.release(held)
    after = resident(path)
    assert released >= 0.95 * before and before - after >= 0.95 * before, (before, released, after)
    assert torch.equal(state["weight"], torch.arange(3 * MIB)) and state["bias"].eq(1).all()
    assert addresses == {name: untyped(tensor).data_ptr() for name, tensor in state.items()}


def test_released_bytes_leave_the_page_cache(path: Path) -> None:
    state = zerocopy.load(path)
    assert state["weight"].sum() > 0 and path.read_bytes()
    zerocopy.release(path)
    # A new mapping has none of them: RWF_NOWAIT reads what the page cache has, and nothing else.
    with path.open("rb") as file:
        try:
            got = os.preadv(file.fileno(), [bytearray(MIB)], 8 * MIB, os.RWF_NOWAIT)
        except BlockingIOError:
            got = 0
        except OSError:
            pytest.skip("the file system cannot say what is cached")
    assert got == 0


def test_written_pages_are_kept_also_while_a_thread_writes(path: Path) -> None:
    state = zerocopy.load(path)
    state["bias"][::2048] = 7
    stop, errors = threading.Event(), []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            state["weight"][number % (3 * MIB)] = -number
            if state["weight"][number % (3 * MIB)] != -number:
                errors.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            zerocopy.release(state)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert state["bias"][::2048].eq(7).all() and state["bias"][1::2048].eq(1).all()


def test_memory_of_no_file_is_left_alone() -> None:
    tensor = torch.arange(MIB)
    assert zerocopy.release({"a": tensor, "empty": torch.empty(0)}) == 0
    assert torch.equal(tensor, torch.arange(MIB))


def test_release_of_something_else_names_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected a path, .* got int"):
        zerocopy.release(7)
    with pytest.raises(FileNotFoundError):
        zerocopy.release(tmp_path / "missing.pt")
