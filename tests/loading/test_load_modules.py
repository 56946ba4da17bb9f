"""Objects of training programs load: models, optimizers, schedulers, whole modules."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from conftest import Saver, stock_load
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight  # tied
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens)))


def trained() -> tuple[Net, torch.optim.Optimizer, Any]:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    net(torch.arange(8)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return net, optimizer, scheduler


@BOTH
def test_state_dict_with_its_metadata(save: Saver, weights_only: bool) -> None:
    net, _, _ = trained()
    path = save(net.state_dict())
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))
    assert loaded._metadata["body.1"] == {"version": 2}
    other = Net()
    other.load_state_dict(loaded)
    assert torch.equal(other.eval()(torch.arange(5)), net.eval()(torch.arange(5)))


@BOTH
def test_a_training_checkpoint(save: Saver, weights_only: bool) -> None:
    net, optimizer, scheduler = trained()
    path = save(
        {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": 3,
            "loss": 0.25,
            "random": torch.get_rng_state(),
        }
    )
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))

    again, next_optimizer, next_scheduler = trained()
    again.load_state_dict(loaded["model"])
    next_optimizer.load_state_dict(loaded["optimizer"])
    next_scheduler.load_state_dict(loaded["scheduler"])
    torch.set_rng_state(loaded["random"])
    for model, stepped in ((net, optimizer), (again, next_optimizer)):
        stepped.zero_grad()
        model(torch.arange(8)).square().sum().backward()
        stepped.step()
    assert_same(dict(net.named_parameters()), dict(again.named_parameters()))


def test_whole_module_is_refused_when_safe(save: Saver) -> None:
    net, _, _ = trained()
    with pytest.raises(pickle.UnpicklingError) as refusal:
        zerocopy.load(save(net))
    for name in (
        "test_load_modules.Net",
        "torch.nn.modules.linear.Linear",
        "torch.nn.modules.batchnorm.BatchNorm1d",
    ):
        assert name in str(refusal.value), "every global that is not allowed is named"
