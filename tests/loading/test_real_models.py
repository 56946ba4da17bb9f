"""Models as people use them, from the ``transformers`` library. Nothing is fetched from anywhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import pytest
import torch
from conftest import Saver, lies_in_mapping, stock_load
from equality import assert_same

import zerocopy

pytestmark = pytest.mark.slow("imports transformers")

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}


def bert(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    return transformers.BertModel(transformers.BertConfig(**SMALL)).eval()


def gpt2(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64)
    return transformers.GPT2LMHeadModel(config).eval()


def answer(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(1, 13).view(2, 6))[0]


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("make", [bert, gpt2])
def test_state_dict_assigned(save: Saver, make: Any, weights_only: bool) -> None:
    model, other = make(0), make(1)
    path = save(model.state_dict())
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))
    assert not torch.equal(answer(model), answer(other))
    other.load_state_dict(loaded, assign=True)
    assert torch.equal(answer(model), answer(other))
    assert all(lies_in_mapping(parameter.data_ptr(), path) for parameter in other.parameters())


def test_training_goes_on(save: Saver) -> None:
    model = bert(0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: Any, optimizer: Any) -> None:
        torch.manual_seed(7)  # dropout
        optimizer.zero_grad()
        model(torch.arange(1, 13).view(2, 6))[0].square().mean().backward()
        optimizer.step()

    step(model, optimizer)
    path = save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    loaded = zerocopy.load(path)
    again = bert(1).train()
    again.load_state_dict(loaded["model"], assign=True)
    again_optimizer = torch.optim.AdamW(again.parameters(), lr=1e-3)
    again_optimizer.load_state_dict(loaded["optimizer"])
    step(model, optimizer)
    step(again, again_optimizer)
    assert torch.equal(answer(model.eval()), answer(again.eval()))
