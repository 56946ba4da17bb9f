"""Private memory of copies of a checkpoint, counted by the kernel in a process of its own.

Run as a program it loads copies, keeps them all, and prints what it found; `private_memory` runs it.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..data.objects import spans_of
from ..rows import LOADERS
from .kernels import load_kernels

FIELDS = ("Anonymous", "Private_Dirty", "Private_Clean", "Shared_Clean", "Rss", "VmPTE")


def private_memory(loader: str, path: Path, copies: int, *, touch: bool = False) -> dict[str, Any]:
    """Load ``copies`` in a fresh process; return its memory before, after the first and after the last one.

    Parameters
    ----------
    loader : str
        A name of `rows.LOADERS`.
    path : Path
        The file.
    copies : int
        At least 2.
    touch : bool
        Also read a byte of each page of each copy.

    Returns
    -------
    dict
        ``before``, ``first``, ``last``: bytes by field of smaps_rollup, and of the page tables.
        ``per_copy``: bytes of anonymous memory (private to the process, backed by no file) that each copy
        after the first took.
    """
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.engine.memory",
        loader,
        str(path),
        str(copies),
    ]
    command += ["--touch"] if touch else []
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def memory_now() -> dict[str, int]:
    """Return the bytes this process holds, by kind."""
    text = Path("/proc/self/smaps_rollup").read_text() + Path("/proc/self/status").read_text()
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    return {name: int(kilobytes[name]) * 1024 for name in FIELDS}


def _load_copies(loader: str, path: str, copies: int, touch: bool) -> dict[str, Any]:
    load = LOADERS[loader].load
    kernels = load_kernels() if touch else None
    import_for(loader)
    gc.collect()
    alive, found = [], {"before": memory_now(), "copies": copies}
    for i in range(copies):
        alive.append(load(path))
        if kernels is not None:
            kernels.touch(*kernels.prepare(spans_of(alive[-1])))
        if i == 0:
            found["first"] = memory_now()
    found["last"] = memory_now()
    found["per_copy"] = (found["last"]["Anonymous"] - found["first"]["Anonymous"]) / max(1, copies - 1)
    return found


def import_for(loader: str) -> None:
    """Import what the loader would import on its first call: no copy is charged with it."""
    for module in LOADERS[loader].modules:
        importlib.import_module(module)


def main() -> None:
    """Load copies as told and print the result as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.engine.memory", description=__doc__)
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("path")
    parser.add_argument("copies", type=int)
    parser.add_argument("--touch", action="store_true")
    args = parser.parse_args()
    print(json.dumps(_load_copies(args.loader, args.path, args.copies, args.touch)))


if __name__ == "__main__":
    main()
