"""Counts the instructions of the core's hot paths: ``python -m benchmarks.instructions [--update]``.

Instructions do not depend on what else the machine does, so a change of 3 % is a fact. callgrind counts a program
that loads a file three times, and once; a load is half of the difference, also on other threads. The counts of one
compiler are in ``results/instructions.json``; with another compiler nothing can be said (exit code 3).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import zerocopy

from .data import shapes

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "bench"
RECORDED = Path(__file__).with_name("results") / "instructions.json"
TOLERANCE = 0.03
UNKNOWN = 3

State = dict[str, torch.Tensor]


def _legacy(state: State, path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


def _converted(state: State, path: Path) -> None:
    zerocopy.save(state, path.with_suffix(".source"))
    zerocopy.convert(path.with_suffix(".source"), path)


# As zerocopy.save writes, whatever torch writes in its next release.
CASES: dict[str, tuple[str, Callable[[State, Path], object]]] = {
    "bert.pt": ("bert", zerocopy.save),
    "lora.pt": ("lora", zerocopy.save),
    "bert.legacy.pt": ("bert", _legacy),
    "bert.safetensors": ("bert", _converted),
    "lora.safetensors": ("lora", _converted),
    "bert.h5": ("bert", _converted),
}


def _state(model: str) -> State:
    """Return tensors of a model's names and numbers of dimensions, of one element each."""
    return {name: torch.zeros([1] * len(shape)) for name, shape in getattr(shapes, model)()}


def build() -> tuple[Path, str]:
    """Compile the program. Return its path and the compiler's name."""
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-Wno-dev", "-DZEROCOPY_BUILD_PYTHON=OFF"]
    for command in (
        [*configure, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", BUILD, "--target", "hot_paths"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cache = (BUILD / "CMakeCache.txt").read_text()
    (compiler,) = re.findall(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
    version = subprocess.check_output([compiler, "--version"], text=True).splitlines()[0]
    return BUILD / "hot_paths", version


def collected(program: Path, path: Path, times: int) -> int:
    """Return the instructions of a program that loads a file some times."""
    out = path.with_name("callgrind.out")
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, path, str(times)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (count,) = re.findall(r"Collected : (\d+)", done.stderr)
    return int(count)


def measured(program: Path) -> dict[str, int]:
    """Return the instructions of one load of each case."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, write) in CASES.items():
            path = Path(folder, name)
            write(_state(model), path)
            found[name] = (collected(program, path, 3) - collected(program, path, 1)) // 2
    return found


def main() -> int:
    """Compare, or record with ``--update``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--update", action="store_true", help="record the counts of this build")
    options = parser.parse_args()
    program, compiler = build()
    now = measured(program)
    if options.update:
        RECORDED.write_text(json.dumps({"compiler": compiler, "instructions": now}, indent=2) + "\n")
    recorded = json.loads(RECORDED.read_text())
    print(f"{'file':<20}{'recorded':>12}{'now':>12}{'ratio':>8}")
    for name, count in now.items():
        before = recorded["instructions"][name]
        print(f"{name:<20}{before:>12}{count:>12}{count / before:>8.3f}")
    if recorded["compiler"] != compiler:
        print(f"the counts are of another compiler: {recorded['compiler']}, and this is {compiler}")
        return UNKNOWN
    changed = [
        name for name, count in now.items() if abs(count / recorded["instructions"][name] - 1) > TOLERANCE
    ]
    if changed:
        print(f"more than {TOLERANCE:.0%} from what was recorded: {', '.join(changed)}.")
        print("If that is meant: python -m benchmarks.instructions --update, and say why in the commit")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
