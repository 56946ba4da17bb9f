"""Objects of accelerate and bitsandbytes, which do not pickle as they should, as kept results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from zerocopy import share

pytestmark = pytest.mark.slow("packages that take seconds to import")

ODD = """
import torch

def accelerated():
    from accelerate import dispatch_model
    from accelerate.hooks import ModelHook, add_hook_to_module
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    add_hook_to_module(model[1], Doubling())
    dispatch_model(model, {"0": "cpu", "1": "cpu", "2": "cpu"}, force_hooks=True)
    return model

try:
    from accelerate.hooks import ModelHook
except ImportError:
    ModelHook = object

class Doubling(ModelHook):
    calls = 0
    def pre_forward(self, module, *args, **kwargs):
        self.calls += 1
        return (args[0] * 2,), kwargs

def four_bits():
    import bitsandbytes
    torch.manual_seed(0)
    plain = torch.nn.Linear(64, 32)
    four = bitsandbytes.nn.Linear4bit(64, 32, quant_type="nf4")
    four.load_state_dict(plain.state_dict())
    eight = bitsandbytes.nn.Linear8bitLt(64, 32, has_fp16_weights=False)
    eight.load_state_dict(plain.state_dict())
    return torch.nn.ModuleDict({"four": four.to("cpu"), "eight": eight.to("cpu")}).eval()
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_objects.py").write_text(ODD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("ZEROCOPY_CACHE", str(folder / "cache"))
        yield __import__("odd_objects")
    sys.modules.pop("odd_objects")


def test_hooks_of_accelerate(odd: Any) -> None:
    """They are there, they run, and they can be taken away."""
    hooks = pytest.importorskip("accelerate.hooks")
    expected, made = odd.accelerated(), share.load(odd.accelerated)
    x = torch.randn(3, 64)
    assert torch.equal(made(x), expected(x))
    kinds = [type(getattr(module, "_hf_hook", None)).__name__ for module in made.modules()]
    assert kinds == [type(getattr(module, "_hf_hook", None)).__name__ for module in expected.modules()]
    assert made.hf_device_map == expected.hf_device_map
    for model in (made, expected):
        hooks.remove_hook_from_module(model, recurse=True)
    assert [sorted(vars(module)) for module in made.modules()] == [
        sorted(vars(module)) for module in expected.modules()
    ]
    assert torch.equal(made(x), expected(x))


def test_bitsandbytes(odd: Any) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    made, expected = share.load(odd.four_bits), odd.four_bits()
    assert type(made["four"].weight) is bitsandbytes.nn.Params4bit
    assert type(made["eight"].weight) is bitsandbytes.nn.Int8Params
    x = torch.randn(3, 64)
    for name in expected:
        assert torch.equal(made[name](x), expected[name](x)), name
    assert torch.equal(made["four"].weight.quant_state.absmax, expected["four"].weight.quant_state.absmax)
