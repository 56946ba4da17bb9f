"""Quantize a checkpoint layer by layer, in the memory of one layer.

Each weight is read, quantized to 8 bits with a scale per row, and written to the new checkpoint before the next one is
read. Only what stands for them is kept for the end, when the dict that holds them is saved: stock torch.load reads it.

    python examples/quantize_layer_by_layer.py [LAYERS [WIDTH]]
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import zerocopy


def write_checkpoint(path: Path, layers: int, width: int) -> None:
    """Save a state dict of so many square layers, the last of them tied to the first."""
    torch.manual_seed(0)
    state = {f"layers.{i}.weight": torch.randn(width, width) for i in range(layers)}
    torch.save({**state, "head.weight": state["layers.0.weight"]}, path)


def quantized(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return 8 bits for each element, and for each row what they are multiples of."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return {"values": (weight / scale).round_().to(torch.int8), "scale": scale}


def quantize(source: Path, target: Path) -> None:
    """Write the quantized checkpoint."""
    by_storage: dict[str, Any] = {}
    with zerocopy.open(source) as checkpoint, zerocopy.Writer(target) as writer:
        state = {}
        for info in checkpoint.tensors():
            if info.storage not in by_storage:
                by_storage[info.storage] = writer.store_early(quantized(checkpoint.get_tensor(info.name)))
            state[info.name] = by_storage[info.storage]
        writer.save(state)


def most_memory() -> int:
    """Return the most memory that this process has had at once since it started, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(layers: int = 12, width: int = 4096) -> None:
    """Write, quantize, compare."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.pt"), Path(folder, "model.int8.pt")
        # In a process of its own, which takes its memory with it.
        writer = multiprocessing.get_context("fork").Process(
            target=write_checkpoint, args=(source, layers, width)
        )
        writer.start()
        writer.join()
        quantized(torch.ones(2, 2))  # starts torch's threads
        before = most_memory()
        quantize(source, target)
        for path in (source, target):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        print(f"memory: {most_memory() - before} MB more than before")

        state, original = torch.load(target), zerocopy.load(source)
        largest = 0.0
        for name, weight in original.items():
            restored = state[name]["values"] * state[name]["scale"]
            largest = max(largest, ((weight - restored).abs() / state[name]["scale"]).max().item())
        print(f"largest error: {largest:.3f} steps")
        print("tied:", state["head.weight"] is state["layers.0.weight"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
