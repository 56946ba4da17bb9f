"""Memory, descriptors and mappings: small, and flat over many loads."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from archives import payload_offset
from conftest import Child, Saver, mappings, saved_bytes

import zerocopy
from benchmarks.data.sparse import write_sparse_checkpoint

STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}


def resources() -> tuple[int, int, int]:
    """Return numbers of descriptors and mappings, and resident kilobytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return len(list(Path("/proc/self/fd").iterdir())), len(mappings()), int(status["VmRSS"].split()[0])


@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.parametrize(
    ("source", "weights_only"),
    [
        ("path", True),
        pytest.param("file", False, marks=pytest.mark.slow("a source as the others")),
        pytest.param("bytes", True, marks=pytest.mark.slow("a source as the others")),
        ("pread", False),
    ],
)
def test_many_loads_leave_nothing(save: Saver, source: str, weights_only: bool) -> None:
    path = save(STATE)
    content = path.read_bytes()

    def once() -> None:
        if source == "bytes":
            loaded = zerocopy.load(content, weights_only=weights_only)
        elif source == "file":
            with path.open("rb") as file:
                loaded = zerocopy.load(file, weights_only=weights_only)
        else:
            backend = "pread" if source == "pread" else "mmap"
            loaded = zerocopy.load(path, backend=backend, weights_only=weights_only)
        loaded["layer.3"].add_(1)

    for _ in range(200):  # allocators and caches find their size
        once()
    gc.collect()
    before = resources()
    for _ in range(500):
        once()
    gc.collect()
    after = resources()
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) <= 8, "the allocator's own arenas may come and go"
    assert after[2] - before[2] < 4096, f"{after[2] - before[2]} kB in 500 loads"


@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.parametrize("weights_only", [True, False])
def test_many_failed_loads_leave_nothing(save: Saver, weights_only: bool) -> None:
    whole = saved_bytes(STATE)
    path = save(STATE)
    path.write_bytes(whole[: len(whole) // 2])

    def once() -> None:
        for source in (path, whole[:-10]):
            with pytest.raises(zerocopy.FormatError):
                zerocopy.load(source, weights_only=weights_only)

    for _ in range(50):
        once()
    gc.collect()
    before = resources()
    for _ in range(500):
        once()
    gc.collect()
    after = resources()
    assert after[0] == before[0] and after[2] - before[2] < 4096


PRIVATE = """
    import re, sys, torch, zerocopy
    def private():
        rollup = open("/proc/self/smaps_rollup").read()
        return int(re.search(r"Anonymous: *(\\d+)", rollup)[1])  # Private_Dirty has pages not yet on disk too
    zerocopy.load(sys.argv[2], weights_only=sys.argv[3] == "True")  # imports, caches
    private()
    before = private()
    loaded = zerocopy.load(sys.argv[1], weights_only=sys.argv[3] == "True")
    ready = private() - before
    total = sum(tensor.sum().item() for tensor in loaded.values())  # reads every page
    print(ready, private() - before, total)
"""


@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.parametrize("weights_only", [True, False])
def test_private_memory_of_a_load_is_small(save: Saver, forked: Child, weights_only: bool) -> None:
    big = save({f"layer.{i}": torch.full((1 << 20,), float(i)) for i in range(16)}, "big.pt")  # 64 MiB
    small = save({f"layer.{i}": torch.ones(1) for i in range(16)}, "small.pt")
    done = forked(PRIVATE, big, small, weights_only)
    ready, read, total = done.stdout.split()
    assert float(total) == 120 * (1 << 20)
    assert int(ready) < 1024 and int(read) < 2048, f"{ready} kB when loaded, {read} kB when read"


TERABYTES = 4 << 40


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """Return a checkpoint of 4 TiB, nearly all of it a hole, whose last element is 7."""
    path = tmp_path / "huge.pt"
    try:
        write_sparse_checkpoint(path, TERABYTES, tensors=2048)
    except OSError as error:
        pytest.skip(f"this file system takes no file of 4 TiB: {error}")
    with path.open("rb+") as file:
        file.seek(payload_offset(path, "data/2047") + TERABYTES // 2048 - 4)
        file.write(torch.tensor([7.0]).numpy().tobytes())
    return path


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("mode", ["c", "r", "r+"])
def test_larger_than_memory(huge: Path, mode: str, weights_only: bool) -> None:
    loaded = zerocopy.load(huge, mode=mode, weights_only=weights_only)
    assert sum(tensor.numel() for tensor in loaded.values()) * 4 == TERABYTES
    first, last = loaded["layers.0.weight"], loaded["layers.2047.weight"]
    assert first[:4].tolist() == [1, 2, 3, 4] and last[:4].tolist() == [2048, 2049, 2050, 2051]
    assert last[-1].item() == 7 and last[-2].item() == 0
    if mode != "r":
        last[-1] = 8
        assert last[-1].item() == 8
    assert huge.stat().st_blocks * 512 < 1 << 28, "the file is still a hole"
