"""A layer of a transformer computed by several processes, each of which reads its own part of the weights only.

The first matrix is cut into rows and the second into columns, as Megatron does it: each process computes some of the
hidden units and what they add to the output, and the sum over the processes is the output.

    python examples/tensor_parallel.py [PROCESSES]
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch

import zerocopy

WIDTH, HIDDEN = 512, 2048


def write_checkpoint(path: Path) -> None:
    """Write the two matrices, and the bias of the first."""
    torch.manual_seed(0)
    state = {
        "mlp.up.weight": torch.randn(HIDDEN, WIDTH) / WIDTH**0.5,
        "mlp.up.bias": torch.randn(HIDDEN),
        "mlp.down.weight": torch.randn(WIDTH, HIDDEN) / HIDDEN**0.5,
    }
    torch.save(state, path)


def mlp(x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Compute the layer, or what some of its hidden units add to it."""
    return torch.relu(x @ up.T + bias) @ down.T


def part(path: Path, rank: int, processes: int, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return what this process adds to the output, and the bytes of weights that it took for that."""
    mine = slice(HIDDEN * rank // processes, HIDDEN * (rank + 1) // processes)
    with zerocopy.open(path) as checkpoint:
        up = checkpoint.get_slice("mlp.up.weight")[mine]
        bias = checkpoint.get_slice("mlp.up.bias")[mine]
        down = checkpoint.get_slice("mlp.down.weight")[:, mine]
        taken = sum(tensor.numel() * tensor.element_size() for tensor in (up, bias, down))
        return mlp(x, up, bias, down), taken


def main() -> None:
    """Compute in parts and as a whole, and compare."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    x = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        write_checkpoint(path)
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parts = pool.starmap(part, [(path, rank, processes, x) for rank in range(processes)])
        for rank, (_, taken) in enumerate(parts):
            print(f"process {rank}: {taken / 1e6:.2f} of {path.stat().st_size / 1e6:.2f} MB")
        output = torch.stack([added for added, _ in parts]).sum(0)
        whole = mlp(x, *zerocopy.load(path).values())
    print(f"largest difference to the whole: {(output - whole).abs().max():.1e}")
    torch.testing.assert_close(output, whole)


if __name__ == "__main__":
    main()
