"""Objects that do not pickle as they should, through the model server: parameters of their own class, hooks, ..."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import lies_in_mapping

import zerocopy
from zerocopy import share
from zerocopy.share.objects import custom_reducers

ODD = '''
import functools
import torch

class Quantized(torch.nn.Parameter):
    """Of the shape of those of bitsandbytes: a constructor that converts, and a state beside the data."""

    def __new__(cls, data, requires_grad=False, scale=None):
        self = torch.Tensor._make_subclass(cls, (data / scale).to(torch.int8), requires_grad)
        self.scale, self.state = scale, {"codes": torch.arange(16.0), "self": None}
        return self

    def __getstate__(self):
        raise AssertionError("it expects __setstate__")

    def __setstate__(self, state):
        raise AssertionError("it expects what __getstate__ returns")

    def __deepcopy__(self, memo):
        raise AssertionError

class Linear(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 64)
        self.register_parameter("weight", Quantized(torch.full((64, 64), 4.0), scale=2))
        self.weight.module, self.tied = self, self.weight

    def forward(self, x):
        return x @ (self.weight.data.float() * self.weight.scale) + self.bias

def quantized():
    return torch.nn.Sequential(Linear(), torch.nn.ReLU()).eval()

def nested(amount):
    def add(x):
        return x + amount
    class Local:
        def __init__(self):
            self.add, self.weight = add, torch.ones(2000)
    model = torch.nn.Linear(4, 4)
    model.register_forward_hook(lambda module, args, result: add(result))
    return Local(), model

class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(torch.nn.Linear(64, 64).eval())
        self.scale = torch.nn.Parameter(torch.full((), 3.0))

    def forward(self, x):
        return self.inner(x) * self.scale

def scripted():
    torch.manual_seed(0)
    return Scripted()

def compiled():
    return torch.compile(torch.nn.Linear(2, 2))

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
'''


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_objects.py").write_text(ODD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("ZEROCOPY_SOCKET", str(folder / "s"))
        yield __import__("odd_objects")
        share.shutdown()
    sys.modules.pop("odd_objects")


def test_parameters_keep_their_class_and_state(odd: Any) -> None:
    made = share.load(odd.quantized)
    weight = made[0].weight
    assert type(weight) is odd.Quantized and weight.dtype is torch.int8 and not weight.requires_grad
    assert (weight.scale, weight.module, made[0].tied) == (2, made[0], weight)
    assert torch.equal(weight.state["codes"], torch.arange(16.0))
    assert [name for name, _ in made.named_parameters()] == ["0.weight", "0.bias"]
    x = torch.randn(3, 64)
    expected = torch.relu(x @ torch.full((64, 64), 4.0) + made[0].bias)
    assert torch.equal(made(x), expected)
    weight.data.zero_()  # of this process only
    assert share.load(odd.quantized)[0].weight.data.unique().tolist() == [2]


def test_functions_within_functions(odd: Any) -> None:
    pytest.importorskip("dill")
    local, model = share.load(odd.nested, 2.5)
    assert local.add(1) == 3.5 and type(local).__name__ == "Local" and local.weight.sum() == 2000
    x = torch.ones(1, 4)
    assert torch.equal(model(x), torch.nn.functional.linear(x, model.weight, model.bias) + 2.5)


def test_torchscript_goes_through_a_buffer(odd: Any) -> None:
    """It is mapped there: its weights lie in the server's memory, not in the client's."""
    made, expected = share.load(odd.scripted), odd.scripted()
    x = torch.randn(3, 64)
    assert torch.equal(made(x), expected(x)) and type(made) is odd.Scripted
    assert isinstance(made.inner, torch.jit.ScriptModule) and not made.inner.training
    assert made.inner.weight.requires_grad and made.inner.graph is not None
    assert lies_in_mapping(made.inner.weight.data_ptr(), Path("/memfd:zerocopy (deleted)"))
    with torch.no_grad():
        made.inner.weight.zero_()
    assert torch.equal(share.load(odd.scripted)(x), expected(x))


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with 2.0")
def test_compiled_modules_are_refused(odd: Any) -> None:
    with pytest.raises(
        zerocopy.UnsupportedError, match=r"torch\.compile belongs to its process; share the module"
    ):
        share.load(odd.compiled)
    # The effects of module.compile() and torch.compile(function), without importing the compiler for seconds.
    in_place, function = torch.nn.Linear(2, 2), lambda x: x
    assert custom_reducers.reduced(in_place) is custom_reducers.reduced(function) is NotImplemented
    in_place._compiled_call_impl = function._torchdynamo_orig_callable = function
    for compiled in (in_place, function):
        with pytest.raises(zerocopy.UnsupportedError, match=r"torch\.compile"):
            custom_reducers.reduced(compiled)


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
