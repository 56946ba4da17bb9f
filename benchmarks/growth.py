"""How cost grows: ``python -m benchmarks.growth`` loads ever larger checkpoints, and fits a power to each series.

Tensors, bytes (holes in the file), depth of nesting, and processes that load the same file. It keeps
``benchmarks/results/growth.json`` and draws ``docs/images/growth.svg``.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

import zerocopy

from .data.sparse import write_checkpoint, write_sparse_checkpoint
from .engine.environment import describe
from .engine.measure import once
from .engine.memory import memory_now
from .engine.plot import write_svg
from .page import IMAGES, RESULTS, exponents

ROUNDS = 7
_MOST_FOR_TORCH = 100_000  # tensors: it takes a minute and a half for a million

Point = dict[str, float]


def main() -> int:
    """Measure, keep and draw; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=Path, help="where the measured files lie for a moment: some GB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.files) as name:
        folder = Path(name)
        content = {
            "environment": describe(folder),
            "series": {
                "tensors": list(_of_tensors(folder)),
                "bytes": list(_of_bytes(folder)),
                "depth": list(_of_depth(folder)),
                "processes": list(_of_processes(folder)),
            },
        }
    (RESULTS / "growth.json").write_text(json.dumps(content, indent=1) + "\n")
    draw(content["series"])
    for name, points in content["series"].items():
        print(name, *points, f"exponents {exponents(name, points)}", sep="\n  ")
    return 0


def _seconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median time of a call, the first left out."""
    found = []
    for _ in range(rounds + 1):
        gc.collect()
        found.append(once(call, "ready", None))
    return median(found[1:])


def _load_both(path: Path, *, torch_too: bool, rounds: int = ROUNDS) -> Point:
    point = {"zerocopy": _seconds(lambda: zerocopy.load(path), rounds)}
    if torch_too:
        mapped = {"mmap": True} if hasattr(torch.serialization, "set_default_mmap_options") else {}
        point["torch"] = _seconds(lambda: torch.load(path, weights_only=True, **mapped), min(rounds, 3))
    return point


def _of_tensors(folder: Path) -> Iterator[Point]:
    path = folder / "tensors.pt"
    for count in (10, 100, 1000, 10_000, 100_000, 1_000_000):
        write_checkpoint(path, ((f"layers.{i // 10}.part{i % 10}.weight", (4,)) for i in range(count)))
        rounds = ROUNDS if count <= 10_000 else 3
        yield {"tensors": count, **_load_both(path, torch_too=count <= _MOST_FOR_TORCH, rounds=rounds)}
    path.unlink()


def _of_bytes(folder: Path) -> Iterator[Point]:
    path = folder / "bytes.pt"
    for power in range(20, 41, 4):
        write_sparse_checkpoint(path, 1 << power, 512)  # no tensor of 4 GiB
        yield {"bytes": 1 << power, **_load_both(path, torch_too=False)}
        path.unlink()


def _of_depth(folder: Path) -> Iterator[Point]:
    path = folder / "depth.pt"
    for depth in (1, 4, 16, 64, 256):
        value: Any = torch.arange(4)
        for level in range(depth):
            value = {f"level{level}": value, "beside": torch.arange(4)}
        torch.save(value, path)
        yield {"depth": depth, **_load_both(path, torch_too=True)}


def _of_processes(folder: Path) -> Iterator[Point]:
    path = folder / "processes.pt"
    write_checkpoint(
        path, ((f"layers.{i}.weight", (1 << 20,)) for i in range(128)), pattern=b"numbers." * 4096
    )
    for count in (1, 2, 4, 8, 16, 32, 64):
        context = multiprocessing.get_context("fork")
        ready, results = context.Barrier(count + 1), context.Queue()
        workers = [context.Process(target=_one_of_many, args=(path, ready, results)) for _ in range(count)]
        for worker in workers:
            worker.start()
        ready.wait()
        start = time.perf_counter()
        private = [results.get() for _ in workers]
        elapsed = time.perf_counter() - start
        ready.wait()
        for worker in workers:
            worker.join()
        yield {
            "processes": count,
            "all have read every page": elapsed,
            "private MB of a process": median(private) / 1e6,
        }
    path.unlink()


def _one_of_many(path: Path, ready: Any, results: Any) -> None:
    zerocopy.load(path)  # what a first call of a process takes is not the matter
    before = memory_now()["Anonymous"]
    ready.wait()
    state = zerocopy.load(path)
    for tensor in state.values():
        tensor[::1024].sum()
    results.put(max(memory_now()["Anonymous"] - before, 1))
    ready.wait()  # until all have their pages


def draw(series: dict[str, list[Point]]) -> None:
    """Draw a panel for each series, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(2, 2).flat, series.items(), strict=True):
        for key, power in exponents(name, points).items():
            known = [(point[name], point[key]) for point in points if key in point]
            unit = "" if "MB" in key else ", s"
            axes.loglog(*zip(*known, strict=True), marker="o", label=f"{key}{unit}: {name}^{power:.2f}")
        axes.set_xlabel(name)
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    write_svg(figure, IMAGES / "growth.svg")


if __name__ == "__main__":
    raise SystemExit(main())
