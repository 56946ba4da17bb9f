"""A staged copy that fails raises a clear error, leaves nothing behind, and the next load succeeds."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest
import torch
from conftest import Child, Saver
from equality import assert_same, storage_bytes, untyped
from example_states import large_state
from interrupting import interrupted
from sharing import wait_until
from simulated_device import Pages, SimulatedDevice
from test_backends import broken, folder, needs_far, slow_disk  # noqa: F401  fixtures
from test_staged_copy import few_slots

import zerocopy
from benchmarks.system import far
from zerocopy.loading.device import pinned_ring


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def assert_nothing_left(simulated: type[SimulatedDevice], before: int) -> None:
    gc.collect()
    assert not simulated.alive
    wait_until(lambda: threads() <= before)  # the system takes a moment to forget a thread that was joined
    assert not [thread for thread in threading.enumerate() if thread.name == "zerocopy.devices"]
    assert not [ring for ring in pinned_ring._rings.values() if ring._lock.locked()]


def test_no_room(save: Saver, simulated: type[SimulatedDevice]) -> None:
    path, simulated.room = save(large_state()), 1_000_000
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        zerocopy.load(path)
    needed = int(str(caught.value).split()[0])
    assert sum(4 * t.numel() for t in large_state().values()) <= needed <= path.stat().st_size
    assert "GiB" in str(caught.value) and "cpu" in str(caught.value) and not simulated.copies
    assert_nothing_left(simulated, threads())


@pytest.mark.parametrize(("fails_at", "kind"), [(1, RuntimeError), (4, KeyboardInterrupt), (8, RuntimeError)])
def test_a_copy_fails(
    save: Saver,
    simulated: type[SimulatedDevice],
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
    kind: type[BaseException],
) -> None:
    few_slots(monkeypatch)
    path, before = save(large_state()), threads()
    simulated.fails_at, simulated.fault = (
        fails_at,
        kind("CUDA error: an illegal memory access was encountered"),
    )
    with pytest.raises(kind, match="CUDA error: an illegal memory access"):
        zerocopy.load(path)
    simulated.fault.__traceback__ = None
    assert_nothing_left(simulated, before)
    assert_same(zerocopy.load(path), large_state())
    assert sum(ring.nbytes for ring in pinned_ring._rings.values()) <= 128 << 20


def test_no_page_locked_memory(
    save: Saver, simulated: type[SimulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, blocks = save(large_state()), []

    def block(self: SimulatedDevice, nbytes: int) -> torch.Tensor:
        blocks.append(nbytes)
        if len(blocks) > most:
            raise RuntimeError("CUDA error: out of memory")
        return torch.frombuffer(Pages(-1, nbytes), dtype=torch.uint8)

    monkeypatch.setattr(simulated, "block", block)
    most = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        zerocopy.load(path)
    most, before = 3, threads()  # two blocks, of which the smaller has no room for a slot
    assert_same(zerocopy.load(path), large_state())
    assert_same(zerocopy.load(path), large_state())
    assert_nothing_left(simulated, before)


@pytest.mark.parametrize("backend", ["auto", "pread", "direct"])
def test_a_file_that_is_cut_on_the_way(
    save: Saver,
    simulated: type[SimulatedDevice],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    few_slots(monkeypatch)
    path, before = save(large_state()), threads()

    class Cut(simulated):  # type: ignore[valid-type,misc]
        def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
            os.truncate(path, 1 << 20)
            super().move(target, source)

    monkeypatch.setitem(zerocopy.loading.device.devices.KINDS, "cpu", Cut)
    with pytest.raises(OSError) as caught:
        zerocopy.load(path, backend=backend)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, str(path))
    del caught
    assert_nothing_left(simulated, before)


@slow_disk
@needs_far
@pytest.mark.parametrize("backend", ["auto", "pread", "direct"])
def test_an_error_of_the_disk_names_the_file(
    broken: Path,  # noqa: F811
    simulated: type[SimulatedDevice],
    backend: str,
) -> None:
    before = threads()
    with pytest.raises(OSError) as caught:
        zerocopy.load(broken, backend=backend)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(broken))
    with pytest.raises(OSError) as caught:
        zerocopy.lazy_load(broken, device="cpu", backend=backend)["big"].materialize()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(broken))
    del caught
    assert_nothing_left(simulated, before)


@slow_disk
@needs_far
def test_ctrl_c(folder: Path, forked: Child) -> None:  # noqa: F811
    with far.mounted(folder, delay_us=200_000) as place:
        load = "from benchmarks.system.memory_device import MemoryDevice; from zerocopy.loading.device import devices; "
        load += "devices.KINDS['cpu'] = MemoryDevice; zerocopy.load(path)"
        seen = interrupted(forked, load, place / "m.pt", already=3, ZEROCOPY_NUM_THREADS="3")
    # The watching thread, the stream's thread, and three that read.
    assert 3 < seen.most <= 5 and seen.left == seen.mapped == 0


def test_after_a_fork(save: Saver, simulated: type[SimulatedDevice]) -> None:
    """The child of a process whose ring another thread has locked is not locked with it."""
    path = save(large_state())
    zerocopy.load(path)
    [ring] = pinned_ring._rings.values()
    expected = storage_bytes(untyped(large_state()["layer.9"]))
    with ring._lock:
        pid = os.fork()
        if pid == 0:
            try:
                loaded = zerocopy.load(path)
                # Nothing is computed: torch's own threads are not there after a fork.
                os._exit(0 if storage_bytes(untyped(loaded["layer.9"])) == expected else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
