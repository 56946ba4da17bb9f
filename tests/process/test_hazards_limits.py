"""The process comes to its limits: an exception each time, and all is well again where there is room."""

from __future__ import annotations

import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from archives import big_endian, rezip
from conftest import Child, Saver, saved_bytes

from benchmarks.data.sparse import write_sparse_checkpoint

pytestmark = pytest.mark.plain_memory("what it takes for itself meets the same limits")

STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}

# For the children: limits, and what a load comes to.
BEGIN = """
import contextlib, errno, gc, mmap, os, resource, sys, threading, zerocopy
path = sys.argv[1]

def limit(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def in_use():
    return int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE

def attempt(**options):
    try:
        return "loaded" if zerocopy.load(path, **options) is not None else None
    except MemoryError:
        return "MemoryError"
    except OSError as error:
        assert error.filename == path
        return errno.errorcode[error.errno]

zerocopy.load(path)  # imports, caches
"""


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


def outcomes(forked: Child, code: str, *arguments: object) -> list[str]:
    """Return the words that code prints behind BEGIN."""
    done = forked(BEGIN + textwrap.dedent(code), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


# ------------------------------------------------------------------------ descriptors and mappings


def test_thousands_of_storages_take_one_mapping(tmp_path: Path, forked: Child) -> None:
    path = tmp_path / "many.pt"
    write_sparse_checkpoint(path, 3000 * 4096, tensors=3000)
    code = """
    def counts():
        maps = sum(line.endswith(path + "\\n") for line in open("/proc/self/maps"))
        return maps, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    before = counts()
    for _ in range(3):
        loaded = zerocopy.load(path)
        during = counts()
        assert len({tensor.data_ptr() for tensor in loaded.values()}) == 3000
        del loaded
        gc.collect()
        assert counts() == before, counts()
    print(*(b - a for a, b in zip(before, during)))
    """
    assert outcomes(forked, code, path) == ["1", "0", "0"]


def test_no_descriptor_left(path: Path, forked: Child) -> None:
    code = """
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    limit(resource.RLIMIT_NOFILE, free)
    print(attempt(), attempt(backend="pread"), attempt(weights_only=False))
    limit(resource.RLIMIT_NOFILE, free + 1)
    print(attempt(), attempt(backend="pread"), attempt(weights_only=False))
    """
    assert outcomes(forked, code, path) == ["EMFILE"] * 3 + ["loaded"] * 3


def test_no_mapping_left(path: Path, forked: Child) -> None:
    """vm.max_map_count: every second page of a large mapping gets another flag, and so is a mapping of its own."""
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 1 << 18:
        pytest.skip(f"vm.max_map_count is {most}: filling it takes too long")
    code = """
    most = int(sys.argv[2])
    pages = mmap.mmap(-1, 2 * most * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        for i in range(most):
            pages.madvise(mmap.MADV_DONTDUMP, 2 * i * mmap.PAGESIZE, mmap.PAGESIZE)
    last = []
    with contextlib.suppress(OSError):
        while True:  # the one or two that madvise cannot use
            last.append(mmap.mmap(-1, mmap.PAGESIZE))
    full = [attempt(), attempt(weights_only=False), attempt(mode="r")]
    pages.close()
    print(*full, attempt())
    """
    *full, after = outcomes(forked, code, path, most)
    assert set(full) <= {"ENOMEM", "MemoryError"} and after == "loaded"


# ------------------------------------------------------------------------------------------ memory


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "sparse.pt"
    write_sparse_checkpoint(path, 1 << 30, tensors=4)
    return path


def test_address_space_smaller_than_the_file(sparse: Path, forked: Child) -> None:
    code = """
    limit(resource.RLIMIT_AS, in_use() + (256 << 20))
    print(attempt(), attempt(mode="r"), attempt(weights_only=False))
    print(attempt(backend="pread"), attempt(backend="pread", weights_only=False))
    limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    print(attempt())
    """
    expected = ["ENOMEM"] * 3 + ["MemoryError"] * 2 + ["loaded"]
    assert outcomes(forked, code, sparse) == expected


def test_data_segment_smaller_than_the_file(sparse: Path, forked: Child) -> None:
    """Pages that may be written to privately count as data; such as can only be read do not."""
    code = """
    used = int(open("/proc/self/statm").read().split()[5]) * mmap.PAGESIZE  # with torch's CUDA libraries gigabytes
    limit(resource.RLIMIT_DATA, used + (512 << 20))
    print(attempt(), attempt(mode="r"))
    """
    assert outcomes(forked, code, sparse) == ["ENOMEM", "loaded"]


SWEEP = """
    import ctypes
    trim = ctypes.CDLL(None).malloc_trim
    outcomes = set()
    for room in range(0, 6 << 20, 64 << 10):
        for options in ({}, {"backend": "pread"}, {"weights_only": False}):
            gc.collect()
            trim(0)  # what was freed goes back, so that the next load has to ask for it again
            limit(resource.RLIMIT_AS, in_use() + room)
            outcome = attempt(**options)
            limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
            outcomes.add(outcome)
    print(*sorted(outcomes))
"""


def _contents() -> dict[str, bytes]:
    tensors = [tensor.repeat(5) for tensor in STATE.values()]  # 1.2 MB
    return {
        "stored": saved_bytes(tensors),
        "deflated": rezip(saved_bytes(tensors), zipfile.ZIP_DEFLATED),
        "big-endian": big_endian(tensors),
        "legacy": saved_bytes(tensors, _use_new_zipfile_serialization=False),
        "values": saved_bytes({f"key.{i}": [i, float(i), (str(i),)] for i in range(3000)}),
    }


SWEPT = pytest.mark.slow("a sweep over the room that is left, for another container")


@pytest.mark.parametrize(
    "kind",
    ["stored", *(pytest.param(kind, marks=SWEPT) for kind in ("deflated", "big-endian", "legacy", "values"))],
)
def test_memory_that_ends_anywhere(tmp_path: Path, forked: Child, kind: str) -> None:
    """With no room at all, then in steps of 64 kB: each load is an exception or right, none ends the process."""
    path = tmp_path / "a.pt"
    path.write_bytes(_contents()[kind])
    *refused, loaded = outcomes(forked, SWEEP, path)
    assert loaded == "loaded" and refused and set(refused) <= {"ENOMEM", "MemoryError"}


READ_SWEEP = """
    names = list(zerocopy.open(path))
    outcomes = set()
    for room in range(0, 64 << 20, 1 << 20):
        limit(resource.RLIMIT_AS, in_use() + room)
        try:
            with zerocopy.open(path) as checkpoint:
                found = checkpoint.read({name: slice(0, 400) for name in names})
            outcome = "read"
        except (OSError, MemoryError, RuntimeError) as error:
            outcome = "refused"
        limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        outcomes.add(outcome)
    print("read" in outcomes)
"""


@pytest.mark.slow("a sweep over the room that is left")
def test_memory_that_ends_while_threads_start(tmp_path: Path, forked: Child) -> None:
    """The read does not wait for a thread that ends before its first line."""
    path = tmp_path / "a.pt"
    torch.save({str(i): torch.full((500, 20), float(i)) for i in range(200)}, path)
    done = forked(BEGIN + textwrap.dedent(READ_SWEEP), path)  # Python reports such a thread on stderr.
    assert (done.returncode, done.stdout.split()) == (0, ["True"])


def test_memory_that_was_used_before(tmp_path: Path, forked: Child) -> None:
    """scripts/test has glibc fill what it gives out and takes back: nothing of either is in a tensor."""
    expected = tmp_path / "expected.pt"
    torch.save([tensor.repeat(5) for tensor in STATE.values()], expected)
    paths = [expected]
    for kind, content in _contents().items():
        if kind != "values":
            paths.append(tmp_path / f"{kind}.pt")
            paths[-1].write_bytes(content)
    code = """
        import sys, torch, zerocopy
        expected, *paths = sys.argv[1:]
        expected = torch.load(expected)
        for path in paths:
            for backend in ("mmap", "pread"):
                for weights_only in (True, False):
                    loaded = zerocopy.load(path, backend=backend, weights_only=weights_only)
                    assert all(map(torch.equal, loaded, expected)) and len(loaded) == len(expected)
        print("same")
    """
    done = forked(code, *paths)
    assert done.stdout.strip() == "same", done.stderr


# ----------------------------------------------------------------------------------------- threads


def test_no_thread_to_be_had(tmp_path: Path, forked: Child) -> None:
    """Where the system allows no thread, the calling thread reads headers and prefetches."""
    path = tmp_path / "many.pt"
    write_sparse_checkpoint(path, 1000 * 4096, tensors=1000)
    code = """
    file = open(path, "rb")
    if os.getuid() == 0:  # whom the limit does not bind
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    limit(resource.RLIMIT_NPROC, 0)
    try:
        threading.Thread(target=print).start()
        print("a thread could be had")
    except RuntimeError:
        state = zerocopy.load(file)
        steps = []
        readings = zerocopy.prefetch(state), zerocopy.prefetch(state, progress=lambda *step: steps.append(step))
        print(len(state), [reading.done for reading in readings] == [True] * 2, len(set(steps[-1])) == 1)
    """
    assert outcomes(forked, code, path) == ["1000", "True", "True"]
