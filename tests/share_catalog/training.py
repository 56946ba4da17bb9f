"""States of training: optimizers, schedulers, scalers, resumed runs."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from share_catalog.case import explicit, patched
from share_catalog.modules import Tied, filled


def _trained(kind: Any = torch.optim.AdamW, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = filled(nn.Linear(100, 100))
    optimizer = kind(module.parameters(), lr=0.01, **options)
    for _ in range(2):
        module(torch.ones(3, 100)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return module, optimizer


def _steps(made: Any) -> Any:
    module, optimizer = made["module"], made["optimizer"]
    for _ in range(2):
        optimizer.zero_grad()
        module(torch.ones(2, 100)).sum().backward()
        optimizer.step()
    tied = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return module, optimizer.state_dict(), {id(parameter) for parameter in module.parameters()} == tied


@explicit(after=_steps, always=True)
def module_and_its_optimizer() -> Any:
    """The optimizer steps the parameters of the module, after the server too."""
    module, optimizer = _trained()
    return {"module": module, "optimizer": optimizer}


@explicit(after=_steps)
def optimizer_with_momentum() -> Any:
    module, optimizer = _trained(torch.optim.SGD, momentum=0.9)
    return {"module": module, "optimizer": optimizer}


@explicit(after=_steps)
def optimizer_before_its_first_step() -> Any:
    module = filled(nn.Linear(100, 100))
    return {"optimizer": torch.optim.Adam(module.parameters()), "module": module}


@explicit()
def optimizer_with_groups() -> Any:
    module = filled(nn.Linear(100, 100))
    groups = [
        {"params": [module.weight], "lr": 0.1, "name": "w"},
        {"params": [module.bias], "weight_decay": 0.5},
    ]
    return {"module": module, "optimizer": torch.optim.AdamW(groups, lr=0.01)}


@explicit()
def state_of_an_optimizer() -> Any:
    module, optimizer = _trained()
    return {"model": module.state_dict(), "optimizer": optimizer.state_dict()}


@explicit()
def state_of_an_optimizer_with_equal_moments() -> Any:
    """Moments of zeros, one for each parameter."""
    parameters = [nn.Parameter(torch.ones(8192)) for _ in range(4)]
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros(8192)
    optimizer.step()
    return optimizer.state_dict()


@explicit()
def optimizer_of_tied_weights() -> Any:
    module = filled(Tied())
    return {"module": module, "optimizer": torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)}


@explicit(may_refuse=True)
def optimizer_with_a_scheduler() -> Any:
    module, optimizer = _trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {"scheduler": scheduler.state_dict(), "optimizer": optimizer, "module": module}


@explicit(may_refuse=True)
def scheduler_itself() -> Any:
    _, optimizer = _trained(torch.optim.SGD)
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@explicit(may_refuse=True)
def module_and_gradients_and_optimizer() -> Any:
    module, optimizer = _trained()
    module(torch.ones(3, 100)).sum().backward()
    return {"module": module, "optimizer": optimizer, "gradients": [p.grad for p in module.parameters()]}


@explicit()
def average_beside_its_model() -> Any:
    module, _ = _trained()
    average = copy.deepcopy(module).requires_grad_(False)
    return {"model": module.state_dict(), "ema": average.state_dict(), "step": 7}


@explicit()
def states_of_generators() -> Any:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    return {"torch": generator.get_state(), "seed": generator.initial_seed()}


def _draw(generator: Any) -> Any:
    return torch.rand(5, generator=generator), generator


@explicit(after=_draw, may_refuse=True)
def generator_as_a_result() -> Any:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    return generator


@explicit()
def batches_of_a_data_set() -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(6000.0).reshape(1000, 6), torch.arange(1000))
    return {
        "data": data,
        "parts": [torch.utils.data.Subset(data, range(10)), torch.utils.data.Subset(data, [5])],
    }


def _checkpoint(folder: Path) -> None:
    torch.manual_seed(3)
    module, optimizer = _trained()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save({**state, "rng": torch.get_rng_state()}, folder / "checkpoint.pt")


@patched(prepare=_checkpoint, is_shared=True, always=True)
def resumed_training(folder: Path) -> Any:
    state = torch.load(folder / "checkpoint.pt")
    module = nn.Linear(100, 100)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.rand(3, 100)).sum().backward()
        optimizer.step()
    return {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": state["epoch"]}


@patched(prepare=_checkpoint, since=(2, 1))
def resumed_training_with_assignment(folder: Path) -> Any:
    first, second = (torch.load(folder / "checkpoint.pt")["model"] for _ in range(2))
    models = [nn.Linear(100, 100), nn.Linear(100, 100)]
    for model, state in zip(models, (first, second), strict=True):
        model.load_state_dict(state, assign=True)
    with torch.no_grad():
        models[0].weight.zero_()
    return models


def _copy(folder: Path) -> Path:
    """Return a copy of the checkpoint, which a run may overwrite: the next run begins with the same."""
    return Path(shutil.copy(folder / "checkpoint.pt", folder / "copy.pt"))


@patched(prepare=_checkpoint, always=True)
def resumed_and_saved_to_the_same_path(folder: Path) -> Any:
    """The file that the tensors lie in is overwritten while they are used."""
    path = _copy(folder)
    state = torch.load(path)
    state["epoch"] += 1
    torch.save(state, path)
    again = torch.load(path)
    return state, again


@patched(prepare=_checkpoint)
def resumed_and_saved_many_times(folder: Path) -> Any:
    path = _copy(folder)
    for _ in range(3):
        state = torch.load(path)
        state["model"]["weight"] += 1
        torch.save(state, path)
    return torch.load(path)


@patched(prepare=_checkpoint)
def weights_written_after_the_load(folder: Path) -> Any:
    first = torch.load(folder / "checkpoint.pt")
    first["model"]["weight"].zero_()
    return torch.load(folder / "checkpoint.pt"), first
