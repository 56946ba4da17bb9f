"""The two readers of memory, from kernels.c where there is a C compiler, from NumPy where there is none."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Span = tuple[int, int]  # address, size


@dataclass(frozen=True)
class Kernels:
    """``touch`` and ``consume`` read; ``prepare``, which is not timed, turns spans into what they take."""

    name: str
    prepare: Callable[[Sequence[Span]], tuple]
    touch: Callable[..., int]
    consume: Callable[..., int]


def load_kernels() -> Kernels:
    """Compile kernels.c; fall back to NumPy, which costs a call per storage and says so in the report."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return _from_c(compiler) if compiler else _from_numpy()


def _from_c(compiler: str) -> Kernels:
    source = Path(__file__).with_name("kernels.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*compiler.split(), *flags, "-o", str(library), str(source)], check=True)
        loaded = ctypes.CDLL(str(library))  # stays loaded after its file is gone
    for function in (loaded.touch, loaded.consume):
        function.restype = ctypes.c_uint64
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return Kernels("C, one call for all storages", _arrays, loaded.touch, loaded.consume)


def _arrays(spans: Sequence[Span]) -> tuple:
    count = len(spans)
    addresses = (ctypes.c_void_p * count)(*(address for address, _ in spans))
    sizes = (ctypes.c_size_t * count)(*(size for _, size in spans))
    return addresses, sizes, count


def _from_numpy() -> Kernels:
    import numpy as np

    def prepare(spans: Sequence[Span]) -> tuple:
        raw = ((ctypes.c_uint8 * size).from_address(address) for address, size in spans)
        return ([np.frombuffer(memory, dtype=np.uint8) for memory in raw],)

    def touch(arrays: list[np.ndarray]) -> int:
        return sum(int(array[::4096].sum()) + int(array[-1]) for array in arrays)

    def consume(arrays: list[np.ndarray]) -> int:
        # Whole words for speed; the bytes after the last whole word one by one.
        cut = [len(array) // 8 * 8 for array in arrays]
        words = sum(int(array[:end].view(np.int64).sum()) for array, end in zip(arrays, cut, strict=True))
        return words + sum(int(array[end:].sum()) for array, end in zip(arrays, cut, strict=True))

    return Kernels("NumPy, a call per storage", prepare, touch, consume)
