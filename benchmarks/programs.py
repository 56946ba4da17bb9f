"""Whole programs under ``zerocopy run --share``: ``python -m benchmarks.programs`` runs those of ``tests/programs``.

Each runs plain, with an empty cache, and again with the cache of that run, in turn; the ratios are medians over the
rounds of plain by ours. Programs that write their own checkpoints do so in each run, so they never find a result.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from .engine.report import layout, quantity, times

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "programs"
#: With the package that each is about.
CASES = {
    "accelerate_checkpoint": "accelerate",
    "dataloader_workers": "torch",
    "hub_file_address": "torch",
    "lightning_resume": "pytorch_lightning",
    "resume_and_save": "torch",
    "transformers_pretrained": "transformers",
    "shared/transformers_models": "transformers",
    "shared/diffusers_parts": "diffusers",
}
HEADERS = ("program", "plain", "first", "ratio", "later", "ratio", "kept")
SHARED = ("-m", "zerocopy", "run", "--share")


def main() -> int:
    """Run, compare and print; return 1 if an output is different."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__.split("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="NAME", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows, is_same = [HEADERS], True
    for name in args.programs or CASES:
        if importlib.util.find_spec(CASES[name]) is None:
            print(f"{name}: {CASES[name]} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="zc.") as folder:
            row, is_equal = _measured(name, Path(folder), args.rounds)
        rows.append(row)
        is_same &= is_equal
        print(f"{name}: {'equal' if is_equal else 'DIFFERENT OUTPUT'}", file=sys.stderr)
    print(layout(rows))
    return 0 if is_same else 1


def _measured(name: str, folder: Path, rounds: int) -> tuple[tuple[str, ...], bool]:
    """Return a program's row, and whether all runs printed the same."""
    outputs: set[str] = set()
    seconds: list[tuple[float, float, float]] = []
    _run(name, folder)  # the programs in "shared" make their models in the first run
    for _ in range(rounds):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        runs = [_run(name, folder, *command) for command in ((), SHARED, SHARED)]
        outputs.update(output for output, _ in runs)
        plain, first, later = (taken for _, taken in runs)
        seconds.append((plain, first, later))
    kept = sum(1 for _ in folder.glob("cache/results/*/*"))
    plain, first, later = map(median, zip(*seconds, strict=True))
    ratios = [median(round[0] / round[side] for round in seconds) for side in (1, 2)]
    cells = quantity(first, "s"), times(ratios[0]), quantity(later, "s"), times(ratios[1])
    return (name, quantity(plain, "s"), *cells, str(kept)), len(outputs) == 1


def _run(name: str, folder: Path, *command: str) -> tuple[str, float]:
    """Run a program once; return its output, and how long it took."""
    place = folder / "place"
    if not name.startswith("shared/"):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(folder / "code"),
        "OMP_NUM_THREADS": "1",
        "ZEROCOPY_CACHE": str(folder / "cache"),
    }
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command, str(PROGRAMS / f"{name}.py"), str(place)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    taken = time.perf_counter() - begun
    if done.returncode != 0:
        raise RuntimeError(f"{name} has failed:\n{done.stderr}")
    return done.stdout, taken


if __name__ == "__main__":
    sys.exit(main())
