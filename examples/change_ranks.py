"""A job that trains on some ranks, saves one plain file, and resumes on another number of ranks with equal losses.

Each rank holds a part of every parameter and of its momentum (DTensor). Every rank writes and reads only its own parts
of the file, which torch.load reads too.

    python examples/change_ranks.py [RANKS_BEFORE] [RANKS_AFTER]
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from zerocopy.distributed import CheckpointReader, CheckpointWriter

STEPS, LEARNING_RATE = 4, 0.02
SHAPES = {"up": (24, 10), "bias": (24,), "down": (3, 24)}


def loss_of(weights: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    """Return the loss of one step; every rank has the same batch."""
    x = torch.sin(torch.arange(80.0).view(8, 10) + step)
    y = torch.relu(x @ weights["up"].T + weights["bias"]) @ weights["down"].T
    return (y - x[:, :3].cumsum(1)).square().mean()


def first_state(mesh: Any) -> dict[str, Any]:
    """Return random weights and no momentum, split over the ranks."""
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) / 3 for name, shape in SHAPES.items()}
    momentum = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for tensors in (weights, momentum):
        tensors.update({name: distribute_tensor(each, mesh, [Shard(0)]) for name, each in tensors.items()})
    return {"weights": weights, "momentum": momentum, "step": 0}


def train(state: dict[str, Any], steps: int) -> list[float]:
    """Take some steps of gradient descent. Every rank updates its own rows."""
    losses = []
    for _ in range(steps):
        state["step"] += 1
        whole = {name: part.full_tensor().requires_grad_() for name, part in state["weights"].items()}
        loss = loss_of(whole, state["step"])
        losses.append(loss.item())
        for name, gradient in zip(whole, torch.autograd.grad(loss, list(whole.values())), strict=True):
            weight, momentum = state["weights"][name].to_local(), state["momentum"][name].to_local()
            mine = distribute_tensor(gradient, state["weights"][name].device_mesh, [Shard(0)]).to_local()
            momentum.mul_(0.9).add_(mine)
            weight.sub_(LEARNING_RATE * momentum)
    return losses


def rank_main(rank: int, ranks: int, source: str, target: str, steps: int) -> None:
    """Resume from `source`, unless that is empty, train, and save to `target`."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{target}.store", rank=rank, world_size=ranks)
    state = first_state(init_device_mesh("cpu", (ranks,)))
    if source:
        dcp.load(state, storage_reader=CheckpointReader(source))
    losses = train(state, steps)
    dcp.save(state, storage_writer=CheckpointWriter(target))
    if rank == 0:
        Path(f"{target}.losses").write_text(" ".join(map(str, losses)))
    # The process ends here. In PyTorch 2.6, destroy_process_group() sometimes waits for ever.


def job(ranks: int, source: str, target: str, steps: int) -> list[float]:
    """Run a job of so many ranks and return its losses."""
    arguments = (ranks, source, target, steps)  # forked: a start of Python with torch takes seconds
    torch.multiprocessing.start_processes(rank_main, arguments, nprocs=ranks, start_method="fork")
    return [float(loss) for loss in Path(f"{target}.losses").read_text().split()]


def main() -> None:
    """Compare a job that changes its ranks with one that does not."""
    before, after = (int(number) for number in (sys.argv[1:] or (2, 3)))
    with tempfile.TemporaryDirectory() as folder:
        straight = job(before, "", f"{folder}/straight.pt", 2 * STEPS)
        first = job(before, "", f"{folder}/first.pt", STEPS)
        second = job(after, f"{folder}/first.pt", f"{folder}/second.pt", STEPS)
        step = torch.load(f"{folder}/second.pt")["step"]
    for label, losses in ((before, first), (after, second), (f"throughout {before}", straight)):
        print(f"{label} ranks: {' '.join(f'{loss:.6f}' for loss in losses)}")
    torch.testing.assert_close(torch.tensor(first + second), torch.tensor(straight))
    print(f"steps: {step}; equal losses")


if __name__ == "__main__":
    main()
