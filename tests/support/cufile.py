"""A fake of libcufile and libcuda (tests/gds/fake_cufile.cpp): built once a run, and its numbers."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerocopy import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver

ROOT = Path(__file__).parents[2]


@contextmanager
def using(found: driver.Opened | UnsupportedError | None) -> Iterator[None]:
    """Have another be the process's cuFile in a block: one over another library, a reason, or none that was asked."""
    before, driver._opened = driver._opened, found
    try:
        yield
    finally:
        driver._opened = before


class FakeCufile:
    """Its numbers: see there."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_get.restype = ctypes.c_long

    def set(self, **numbers: int) -> None:
        for name, value in numbers.items():
            self._library.fake_set(name.encode(), ctypes.c_long(value))

    def get(self, name: str) -> int:
        return int(self._library.fake_get(name.encode()))

    def open(self) -> _C.GdsDriver:
        return _C.GdsDriver.open([self.path], [self.path], "/proc")

    def reset(self) -> None:
        self._library.fake_reset()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have it be this process's cuFile, for storages of the CPU; see that nothing stays open."""
        self.reset()
        gc.collect()  # what earlier tests have left
        before = descriptors()
        with using(driver.Opened(self.open(), frozenset({"cpu"}))):
            yield
        gc.collect()
        left = {
            name: self.get(name)
            for name in ("files", "buffers", "batches", "later", "allocations", "drivers")
        }
        assert not any(left.values()), left
        assert self.get("violations") == 0
        assert descriptors() == before


def descriptors() -> int:
    """Return how many are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def build(folder: Path) -> FakeCufile:
    path = folder / "libfake_cufile.so"
    source = ROOT / "tests" / "gds" / "fake_cufile.cpp"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-I", ROOT / "csrc", source, "-o", path]
    subprocess.run(command, check=True, timeout=300)
    return FakeCufile(path)
