"""A lazy tensor is the same, whatever is active where it is first used."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Saver
from equality import assert_same
from kinds.kind import has

import zerocopy

STATE = {
    "dense": torch.arange(6.0).view(2, 3),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "leaf": torch.ones(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
}


class Zeros(torch.overrides.TorchFunctionMode):
    """Makes every result a tensor of zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return torch.zeros_like(made) if type(made) is torch.Tensor else made


def _inside(manager: Callable[[], Any]) -> Callable[[Callable[[], None]], None]:
    def run(use: Callable[[], None]) -> None:
        with manager():
            use()

    return run


def _in_transform(transform: Any) -> Callable[[Callable[[], None]], None]:
    def run(use: Callable[[], None]) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            use()
            return (x * x).sum()

        transform(function)

    return run


ACTIVE: dict[str, Callable[[Callable[[], None]], None]] = {
    "nothing": _inside(contextlib.nullcontext),
    "inference mode": _inside(torch.inference_mode),
    "no gradients": _inside(torch.no_grad),
    "function mode": _inside(Zeros),
}
if has("torch.func.grad"):
    from torch._subclasses.fake_tensor import FakeTensorMode

    ACTIVE |= {
        "default device": _inside(lambda: torch.device("meta")),
        "fake tensors": _inside(FakeTensorMode),
        "grad": _in_transform(lambda f: torch.func.grad(f)(torch.ones(3))),
        "vmap": _in_transform(lambda f: torch.func.vmap(f)(torch.ones(2, 3))),
        "jvp": _in_transform(lambda f: torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),))),
        "grad of vmap": _in_transform(
            lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum())(torch.ones(2, 3))
        ),
    }


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("active", ACTIVE)
def test_first_use(active: str, dtype: torch.dtype | None, save: Saver) -> None:
    path = save(STATE)
    used, expected = (zerocopy.lazy_load(path, weights_only=False, dtype=dtype) for _ in range(2))
    made: dict[str, torch.Tensor] = {}
    ACTIVE[active](lambda: made.update((name, lazy.materialize()) for name, lazy in used.items()))
    assert_same(made, {name: lazy.materialize() for name, lazy in expected.items()})
    assert not any(tensor.is_inference() for tensor in made.values())


@pytest.mark.skipif(not has("torch.func.grad"), reason="torch.func came with 2.0")
def test_gradient_through_a_transform(save: Saver) -> None:
    lazy = zerocopy.lazy_load(save(STATE), weights_only=False)["parameter"]
    torch.func.grad(lambda x: (x * x * lazy).sum())(torch.ones(3)).sum().backward()
    assert lazy.grad.tolist() == [2, 2, 2]


def test_what_asks_for_the_storage_gets_an_error(save: Saver) -> None:
    module = torch.jit.script(torch.nn.BatchNorm1d(4))
    module.running_mean = zerocopy.lazy_load(save(module.state_dict()))["running_mean"]
    with pytest.raises(NotImplementedError, match=r"a lazy tensor that is not loaded: use materialize\(\)"):
        torch.jit.save(module, io.BytesIO())


def test_deep_copies_keep_ties_beside_a_parameter(save: Saver) -> None:
    base = torch.arange(20.0)
    state = {"parameter": torch.nn.Parameter(torch.ones(2)), "base": base, "view": base[3:6]}
    copied = copy.deepcopy(zerocopy.lazy_load(save(state)))
    copied["view"].fill_(7)
    assert copied["base"][3:6].tolist() == [7, 7, 7]
    assert type(copied["parameter"]) is torch.nn.Parameter


def test_parameters_are_made_within_modes(save: Saver) -> None:
    path = save({"weight": torch.ones(2)})
    made: list[torch.Tensor] = []
    for active in {"function mode", "default device"} & ACTIVE.keys():
        ACTIVE[active](lambda: made.append(torch.nn.Parameter(zerocopy.lazy_load(path)["weight"])))
    assert made and all(type(each) is torch.nn.Parameter and each.requires_grad for each in made)
