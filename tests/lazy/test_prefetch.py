"""``zerocopy.prefetch``: what was not in memory is there; it can be waited for, followed, cancelled, forgotten."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import page_cache
import pytest
import torch
from conftest import Child, Saver
from dcp_folders import Writer

import zerocopy

STATE = {"first": torch.arange(3_000_000), "second": torch.ones(1_000_000), "small": torch.ones(3)}


@pytest.fixture
def cold(save: Saver) -> Path:
    """Return a checkpoint of 28 MB that is not in the page cache."""
    path = save(STATE)
    page_cache.drop(path)
    return path


def share_in_memory(path: Path) -> float:
    return len(page_cache.resident(path)) * page_cache.PAGE / path.stat().st_size


def test_prefetch_of_other_objects_raises_type_error() -> None:
    for wrong in (None, 3, b"m.pt", io.BytesIO(b"x"), object(), torch.ones):
        with pytest.raises(TypeError, match=f"got {type(wrong).__name__}$"):
            zerocopy.prefetch(wrong)


@pytest.mark.parametrize("block", [True, False])
def test_files_are_in_memory_afterwards(cold: Path, block: bool) -> None:
    with open(os.fsencode(cold), "rb") as by_bytes, cold.open("rb") as file:
        for source in (cold, str(cold), file, by_bytes):
            page_cache.drop(cold)
            calls: list[tuple[int, int]] = []
            started = zerocopy.prefetch(
                source, block=block, progress=lambda *numbers, calls=calls: calls.append(numbers)
            )
            assert (block and started.done) or started.wait() is True
            size = cold.stat().st_size
            assert started.bytes_done == started.bytes_total == size and share_in_memory(cold) >= 1
            assert calls == sorted(calls) and calls[-1] == (size, size)
            assert started.done and "done" in repr(started)
    started = zerocopy.prefetch(cold)
    started.cancel()
    assert started.wait() is True and started.done


OBJECTS = {
    "state dict": zerocopy.load,
    "nested": lambda path: [{"model": (zerocopy.load(path), 3, "x")}],
    "module": lambda path: torch.nn.ParameterDict(
        {name: torch.nn.Parameter(value, False) for name, value in zerocopy.load(path).items()}
    ),
    "checkpoint": zerocopy.open,
    "placeholders": zerocopy.lazy_load,
    "read-only": lambda path: zerocopy.load(path, mode="r"),
    "shared": lambda path: zerocopy.load(path, mode="r+"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_load_returned(cold: Path, kind: str) -> None:
    loaded = OBJECTS[kind](cold)
    assert zerocopy.prefetch(loaded, block=True).done
    assert share_in_memory(cold) > 0.98


def test_a_tensor_is_read_and_the_others_are_not(save: Saver) -> None:
    path = save({"first": torch.zeros(4_000_000), "second": torch.zeros(4_000_000)})
    page_cache.drop(path)
    loaded = zerocopy.load(path)
    started = zerocopy.prefetch(loaded["first"])
    started.wait()
    assert started.bytes_total == 16_000_000
    assert 0.49 < share_in_memory(path) < 0.95


IN_FILES = {
    "path": lambda path: path,
    "placeholders": zerocopy.lazy_load,
    "checkpoint": zerocopy.open,
    "state dict": zerocopy.load,
}


@pytest.mark.parametrize("kind", IN_FILES)
def test_several_files(tmp_path: Path, save: Saver, kind: str) -> None:
    zerocopy.convert(save(STATE), tmp_path, max_shard_size="10MB")
    for shard in (shards := list(tmp_path.glob("*.safetensors"))):
        page_cache.drop(shard)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        started = zerocopy.prefetch(IN_FILES[kind](path), block=True)
        assert started.bytes_total >= 28_000_012
    assert len(shards) > 1 and all(share_in_memory(shard) > 0.98 for shard in shards)


@pytest.mark.parametrize("kind", ["path", "placeholders", "checkpoint"])
def test_a_folder_of_torch_distributed(tmp_path: Path, kind: str) -> None:
    writer = Writer(tmp_path)
    writer.add("x", torch.zeros(3_000_000))
    writer.write()
    page_cache.drop(file := tmp_path / "__0_0.distcp")
    zerocopy.prefetch(IN_FILES[kind](tmp_path), block=True)
    assert share_in_memory(file) >= 0.98


def test_it_finds_a_file_that_has_lost_its_name(cold: Path) -> None:
    loaded = zerocopy.load(cold)
    cold.rename(cold.with_name("other.pt"))
    torch.save({"another": 1}, cold)
    zerocopy.prefetch(loaded, block=True)
    assert share_in_memory(cold.with_name("other.pt")) > 0.98


@pytest.mark.parametrize("kind", ["placeholders", "checkpoint"])
def test_an_open_file_that_is_gone_or_replaced(
    save: Saver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that took the name is refused. The current folder does not matter."""
    path = save(STATE)
    monkeypatch.chdir(path.parent)
    opened = IN_FILES[kind](path.name)
    monkeypatch.chdir("/")
    assert zerocopy.prefetch(opened, block=True).bytes_total == path.stat().st_size
    path.rename(path.with_name("moved.pt"))
    with pytest.raises(FileNotFoundError):
        zerocopy.prefetch(opened)
    torch.save({"another": 1}, path)
    with pytest.raises(OSError, match="another file") as caught:
        zerocopy.prefetch(opened)
    assert caught.value.errno == errno.ESTALE


def test_a_closed_checkpoint(save: Saver) -> None:
    checkpoint = zerocopy.open(save(STATE))
    checkpoint.close()
    with pytest.raises(zerocopy.ClosedError):
        zerocopy.prefetch(checkpoint)


def test_tensors_that_are_laid_over_a_checkpoint(cold: Path, save: Saver) -> None:
    changed = zerocopy.load(save({"first": torch.ones(5000)}))
    with zerocopy.open(cold) as checkpoint, zerocopy.overlay(checkpoint, changed) as both:
        assert zerocopy.prefetch(both, block=True).bytes_total == cold.stat().st_size + 20_000


def test_nothing_to_read() -> None:
    started = zerocopy.prefetch([torch.ones(3), torch.ones(2).to_sparse(), 5], block=True)
    assert started.done and started.bytes_total == 0


@pytest.mark.parametrize("block", [True, False])
def test_what_progress_raises_ends_it(cold: Path, block: bool) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        zerocopy.prefetch(cold, block=block, progress=fail).wait()


@pytest.mark.parametrize("left", [100, 1 << 20])
def test_a_file_that_was_cut_since_it_was_mapped(save: Saver, left: int) -> None:
    path = save({"weight": torch.ones(4 << 20)})
    state = zerocopy.load(path)
    os.truncate(path, left)
    with pytest.raises(OSError, match="cut") as caught:
        zerocopy.prefetch(state, block=True)
    assert caught.value.errno == errno.ESTALE and caught.value.filename == str(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        zerocopy.prefetch(tmp_path / "none.pt")
    assert caught.value.filename == str(tmp_path / "none.pt")
    with pytest.raises(IsADirectoryError):
        zerocopy.prefetch(tmp_path)
    (tmp_path / "empty").touch()
    assert zerocopy.prefetch(tmp_path / "empty", block=True).bytes_total == 0


def locked_bytes() -> int:
    return sum(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/smaps").read_text().splitlines()
        if line.startswith("Locked:")
    )


def test_lock(save: Saver) -> None:
    path = save(torch.ones(1000))  # within the limit that everybody has
    before = locked_bytes()
    held = zerocopy.prefetch(path, block=True, lock=True)
    assert locked_bytes() >= before + 4096
    del held
    assert locked_bytes() == before


def test_a_process_ends_without_it(cold: Path, forked: Child) -> None:
    done = forked("import sys, zerocopy; zerocopy.prefetch(sys.argv[1], progress=print).done", cold)
    assert done.returncode == 0 and not done.stderr


def test_a_forked_process_does_not_wait_for_it(cold: Path) -> None:
    started = zerocopy.prefetch(cold)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if started.done and started.wait() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    started.wait()
