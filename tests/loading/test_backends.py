"""``backend=``: the same object however its bytes come, and what is raised when they do not."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from archives import big_endian
from conftest import Child, Saver, lies_in_mapping, stock_load
from containers import CONTAINERS
from equality import assert_same
from example_states import state_of_all_sizes
from interrupting import interrupted
from page_cache import PAGE, drop, resident

import zerocopy
from benchmarks.system import far
from zerocopy import _core
from zerocopy.loading import backends

BACKENDS = pytest.mark.parametrize("backend", ["auto", "mmap", "pread", "direct"])
READING = pytest.mark.parametrize("backend", ["pread", "direct"])


PAIRS = [
    ("auto", "zip"),
    ("mmap", "deflated"),
    ("pread", "unaligned"),
    ("direct", "legacy"),
    ("direct", "zip"),
]
REST = [pair for pair in product(("auto", "mmap", "pread", "direct"), CONTAINERS) if pair not in PAIRS]


@pytest.mark.parametrize(
    ("backend", "container"),
    [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow("the rest of a product")) for pair in REST)],
)
def test_every_backend_gives_the_same_object(tmp_path: Path, backend: str, container: str) -> None:
    state, path = state_of_all_sizes(), tmp_path / "checkpoint.pt"
    path.write_bytes(CONTAINERS[container](state))
    assert_same(zerocopy.load(path, backend=backend), state)
    assert_same(zerocopy.load(path, backend=backend, weights_only=False), state)
    lazy = zerocopy.lazy_load(path, backend=backend)
    assert_same({name: tensor.materialize() for name, tensor in lazy.items()}, state)


@BACKENDS
def test_from_anywhere_in_a_file(save: Saver, tmp_path: Path, backend: str) -> None:
    path = save({f"{i}": torch.arange(i * 1000) for i in range(20)})
    shifted = tmp_path / "shifted.pt"
    for shift in (1, 4096):
        shifted.write_bytes(bytes(shift) + path.read_bytes())
        with shifted.open("rb") as file:
            file.seek(shift)
            assert_same(zerocopy.load(file, backend=backend), stock_load(path))


@BACKENDS
def test_big_endian(backend: str, tmp_path: Path) -> None:
    tensors = [torch.arange(300_000, dtype=torch.float32), torch.arange(5, dtype=torch.int32)]
    path = tmp_path / "big.pt"
    path.write_bytes(big_endian(tensors))
    assert_same(zerocopy.load(path, backend=backend), tensors)


@READING
def test_what_is_read_is_no_part_of_the_file(save: Saver, backend: str) -> None:
    path = save({"weight": torch.ones(1 << 20)})
    weight = zerocopy.load(path, backend=backend)["weight"]
    assert not lies_in_mapping(weight.data_ptr(), path)
    weight.zero_()
    assert stock_load(path)["weight"].sum() == 1 << 20


@pytest.mark.plain_memory("what is freed stays with the sanitizer for a while")
@READING
def test_memory_goes_back_with_its_tensor(save: Saver, backend: str) -> None:
    path = save({f"layer.{i}": torch.ones(1 << 20) for i in range(16)})
    state = zerocopy.load(path, backend=backend)
    before = zerocopy.memory().anonymous
    for i in range(8):
        del state[f"layer.{i}"]
    assert before - zerocopy.memory().anonymous > 7 << 22


# ------------------------------------------------------------------------------------ what auto chooses


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.levelname for record in caplog.records} <= {"INFO"}
    return [record.getMessage() for record in caplog.records if record.name == "zerocopy"]


def test_auto_says_what_it_chose(save: Saver, caplog: pytest.LogCaptureFixture) -> None:
    path = save([torch.ones(3)])
    with caplog.at_level(logging.INFO, "zerocopy"):
        zerocopy.load(path)
    [line] = said(caplog)
    assert line.startswith(f"{path}: mapped") and "local" in line
    caplog.clear()
    with caplog.at_level(logging.INFO, "zerocopy"):
        for backend in ("mmap", "pread"):
            zerocopy.load(path, backend=backend)
    assert not said(caplog)


@pytest.mark.parametrize("windows", [False, True])
def test_auto_on_a_network_file_system(
    save: Saver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, windows: bool
) -> None:
    monkeypatch.setattr(_core, "file_system_of_path", lambda path: ("NFS", True))
    path = save(state_of_all_sizes())
    with caplog.at_level(logging.INFO, "zerocopy"):
        loaded = zerocopy.lazy_load(path) if windows else zerocopy.load(path)
    [line] = said(caplog)
    assert "NFS" in line and ("32 threads" in line) is not windows
    assert lies_in_mapping(loaded["large"].data_ptr(), path)


def test_auto_does_not_read_ahead_what_memory_cannot_hold(
    save: Saver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_core, "file_system_of_path", lambda path: ("NFS", True))
    monkeypatch.setattr(backends, "_free_memory", lambda: 1000.0)
    path = save(torch.ones(1000))
    with caplog.at_level(logging.INFO, "zerocopy"):
        zerocopy.load(path)
    [line] = said(caplog)
    assert "not read ahead" in line


def test_direct_where_it_may_be_refused(caplog: pytest.LogCaptureFixture) -> None:
    # Before Linux 6.6 tmpfs was one that refuses.
    path = Path("/dev/shm") / f"zerocopy_test_{os.getpid()}.pt"
    try:
        torch.save({"weight": torch.arange(3_000_000)}, path)
        with caplog.at_level(logging.INFO, "zerocopy"):
            loaded = zerocopy.load(path, backend="direct")
        assert torch.equal(loaded["weight"], torch.arange(3_000_000))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            [line] = said(caplog)
            assert "refuses O_DIRECT" in line
        else:
            assert not said(caplog)  # newer ones take it
    finally:
        path.unlink(missing_ok=True)


@READING
def test_what_is_read_does_not_take_memory_twice(save: Saver, backend: str) -> None:
    """Of a file that was not in the page cache next to nothing is there afterwards."""
    path = save({"weight": torch.arange(3_000_000.0), "bias": torch.arange(2_000_000.0)})
    drop(path)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("its file system refuses O_DIRECT")
    loaded = zerocopy.load(path, backend=backend)
    assert len(resident(path)) * PAGE < 4 << 20
    assert_same(loaded, stock_load(path))
    assert_same(zerocopy.load(path, backend=backend), loaded)


@BACKENDS
def test_bad_numbers_of_threads(save: Saver, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    path = save(torch.ones(3))
    for value in ("0", "-1", "many", "1.5", "100000", " 3 ", "²"):
        monkeypatch.setenv("ZEROCOPY_NUM_THREADS", value)
        for call in (lambda: zerocopy.load(path, backend=backend), lambda: zerocopy.prefetch(path)):
            with pytest.raises(ValueError, match="ZEROCOPY_NUM_THREADS"):
                call()


# ------------------------------------------------------------------------------------ a slow, broken disk

needs_far = pytest.mark.skipif(bool(far.why_not()), reason=far.why_not())
slow_disk = pytest.mark.slow("mounts a slow or broken disk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of 40 MB."""
    folder = tmp_path_factory.mktemp("far")
    torch.save(
        {"big": torch.arange(10_000_000, dtype=torch.float32), "small": torch.ones(3)}, folder / "m.pt"
    )
    return folder


@pytest.fixture(scope="module")
def broken(folder: Path) -> Iterator[Path]:
    """Return the checkpoint on a disk that fails in the middle of it, and nowhere else it is asked before."""
    size = (folder / "m.pt").stat().st_size
    with far.mounted(folder, fail_from=size // 2, fail_to=size - 2_000_000) as place:
        yield place / "m.pt"


@slow_disk
@needs_far
@pytest.mark.parametrize("backend", ["auto", "pread", "direct"])
def test_an_error_of_the_disk_names_the_file(broken: Path, backend: str) -> None:
    with pytest.raises(OSError) as caught:
        zerocopy.load(broken, backend=backend)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(broken)


@slow_disk
@needs_far
def test_an_error_of_the_disk_in_prefetch(broken: Path) -> None:
    with pytest.raises(OSError) as caught:
        zerocopy.prefetch(broken, block=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(broken))
    started = zerocopy.prefetch(broken)
    with pytest.raises(OSError) as caught:
        started.wait()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(broken))
    assert started.done
    mapped = zerocopy.load(broken, backend="mmap")
    with pytest.raises(OSError) as caught:
        zerocopy.prefetch(mapped, block=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(broken))


@slow_disk
@needs_far
@BACKENDS
def test_on_a_real_fuse_file_system(folder: Path, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    with far.mounted(folder, delay_us=1000) as place, caplog.at_level(logging.INFO, "zerocopy"):
        loaded = zerocopy.load(place / "m.pt", backend=backend)
        assert_same(loaded, stock_load(folder / "m.pt"))
        if backend == "auto":
            [line] = said(caplog)
            assert "FUSE" in line and "read ahead" in line
        del loaded


@slow_disk
@needs_far
@pytest.mark.parametrize("what", ["auto", "pread", "direct", "prefetch"])
def test_ctrl_c_and_the_number_of_threads(folder: Path, forked: Child, what: str) -> None:
    with far.mounted(folder, delay_us=200_000) as place:
        load = (
            f"zerocopy.load(path, backend={what!r})"
            if what != "prefetch"
            else "zerocopy.prefetch(path, block=True)"
        )
        seen = interrupted(forked, load, place / "m.pt", already=1, ZEROCOPY_NUM_THREADS="3")
    # Ours, and the one that watches; what waits for the others in the background is one more.
    assert 1 < seen.most <= 1 + 3 + (what == "prefetch")
    assert seen.left == seen.mapped == 0
