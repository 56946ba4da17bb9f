"""Measures what the checks of a file cost: ``python -m benchmarks.engine.checks``.

The core's checks are done once more, by ``checks.cpp``, on the files of the table, and set against a whole
``zerocopy.load`` of the same file in the same minute.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch  # noqa: F401  loaded before zerocopy, so that nothing is imported while timing

import zerocopy

from ..data.files import Files, default_folder

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
ROUNDS = 101
FILES = ("bert.pt", "moe.pt", "lora.pt")
PARTS = ("directory", "headers", "geometry", "texts")


def build() -> Path:
    """Compile the program that repeats the checks."""
    configure = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        BUILD,
        "-Wno-dev",
        "-DZEROCOPY_BUILD_PYTHON=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    for command in (configure, ["cmake", "--build", BUILD, "--target", "bench_checks"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return BUILD / "bench_checks"


def ready_us(path: Path) -> float:
    """Return the median microseconds until ``zerocopy.load`` returns."""
    times = []
    gc.disable()
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        state = zerocopy.load(path)
        times.append((time.perf_counter() - begin) * 1e6)
        del state
    gc.enable()
    return statistics.median(times)


def main() -> int:
    """Print a line a file."""
    program = build()
    files = Files(default_folder(), 1)
    print(f"{'file':<10}{'ready':>12}" + "".join(f"{part:>12}" for part in PARTS) + f"{'at most':>12}")
    try:
        for name in FILES:
            path = files.path(name)
            ready = ready_us(path)
            spent = json.loads(subprocess.check_output([program, path, str(ROUNDS)]))
            share = sum(spent[part] for part in PARTS) / ready
            columns = "".join(f"{spent[part]:>9.1f} us" for part in PARTS)
            print(f"{name:<10}{ready:>9.1f} us{columns}{share:>12.1%}", flush=True)
    finally:
        files.delete_made()
    return 0


if __name__ == "__main__":
    sys.exit(main())
