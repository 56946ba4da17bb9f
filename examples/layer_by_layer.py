"""Inference through a model whose checkpoint is larger than the memory that the process may use.

One layer is made, on the meta device. Each layer of the checkpoint in turn is assigned to it, does its part and makes
room for the next one: the process needs the memory of two. Prints the rate at which the weights went by, and that of
reading the same file from end to end.

    python examples/layer_by_layer.py [LAYERS [WIDTH]]
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import zerocopy


def write_checkpoint(path: Path, layers: int, width: int) -> None:
    """Write the state dict of so many linear layers to the disk."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(width, width) for _ in range(layers))})
    with path.open("wb") as file:
        torch.save(model.state_dict(), file)
        os.fsync(file.fileno())


def limit_memory(further: int) -> None:
    """Refuse this process more address space than it has now and so many bytes. Mappings count as all else does."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + further
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


@torch.no_grad()
def run(path: Path, layers: int, x: torch.Tensor) -> torch.Tensor:
    """Send `x` through the layers of the checkpoint."""
    layer = nn.Linear(x.shape[1], x.shape[1], device="meta")
    with zerocopy.open(path) as checkpoint:
        for index in range(layers):
            names = {name: f"layers.{index}.{name}" for name in ("weight", "bias")}
            zerocopy.assign(layer, {name: checkpoint.get_tensor(full) for name, full in names.items()})
            x = x + layer(x).tanh()
    return x


def read(path: Path) -> None:
    """Read the file from end to end."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def report(name: str, path: Path, work: Callable[[], object]) -> None:
    """Print how fast `work` goes through the file, which it has to take from the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    print(f"{name}: {seconds:.3f} s, {path.stat().st_size / seconds / 1e9:.2f} GB/s")


def main(layers: int = 64, width: int = 1024) -> None:
    """Write, limit, run, compare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        # In a process of its own: what is freed in this one can be used again, whatever the limit.
        writer = multiprocessing.get_context("fork").Process(
            target=write_checkpoint, args=(path, layers, width)
        )
        writer.start()
        writer.join()
        x = torch.ones(4, width)
        nn.Linear(width, width)(x)  # starts torch's threads, whose stacks take address space too
        limit_memory(path.stat().st_size // 2)
        print(f"a checkpoint of {path.stat().st_size / 1e6:.0f} MB; half as much memory")
        try:
            path.read_bytes()
        except MemoryError:
            print("all of it at once: MemoryError")
        print(f"result: {run(path, layers, x).norm().item():.6f}")
        report("layer by layer", path, lambda: run(path, layers, x))
        report("plain read", path, lambda: read(path))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
