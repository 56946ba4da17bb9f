"""Results keep how their parts refer to each other: bound methods, hooks of optimizers, weak references, ties."""

from __future__ import annotations

import functools
import gc
import os
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch

from zerocopy import UnsupportedError, share


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("share")) as place:
        yield place


Pair = tuple[torch.nn.Linear, torch.optim.Optimizer]


def _model_and_optimizer() -> Pair:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def with_step_hook() -> Pair:
    model, optimizer = _model_and_optimizer()

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    optimizer.register_step_pre_hook(clip)
    return model, optimizer


def with_replaced_step() -> Pair:
    model, optimizer = _model_and_optimizer()
    step: Any = optimizer.step

    def clipped() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        step()

    optimizer.step = clipped  # type: ignore[assignment, method-assign]
    return model, optimizer


def _trained(pair: Pair) -> torch.Tensor:
    model, optimizer = pair
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 3)) * 10).pow(2).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("make", [with_step_hook, with_replaced_step])
def test_optimizer_keeps_what_happens_in_its_step(make: Any) -> None:
    if make is with_step_hook and not hasattr(torch.optim.Optimizer, "register_step_pre_hook"):
        pytest.skip("this torch has no hooks of optimizers")
    assert torch.equal(_trained(share.load(make)), _trained(make()))


def with_scheduler() -> tuple[Any, ...]:
    model, optimizer = _model_and_optimizer()
    return torch.optim.lr_scheduler.StepLR(optimizer, 1), optimizer, model


@pytest.mark.filterwarnings("error")
def test_scheduler_sees_the_steps_of_its_optimizer() -> None:
    scheduler, optimizer, model = share.load(with_scheduler)
    assert scheduler.optimizer is optimizer
    assert optimizer.param_groups[0]["params"][0] is model.weight
    optimizer.step()
    scheduler.step()  # which warns if the optimizer made no step that it saw


class Shifted(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 7


def with_forward_of_another_name() -> torch.nn.Module:
    def other(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias[0].item() * 0

    return _with_forward(other)


def with_forward_of_the_same_name() -> torch.nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 100

    return _with_forward(forward)


def with_forward_of_another_class() -> torch.nn.Module:
    return _with_forward(Shifted.forward)


def with_wrapped_forward() -> torch.nn.Module:
    model: Any = torch.nn.Linear(2, 2)
    before = model.forward

    @functools.wraps(before)
    def forward(x: torch.Tensor) -> torch.Tensor:
        return before(x) * 0 + 3  # type: ignore[no-any-return]

    model.forward = forward
    return model  # type: ignore[no-any-return]


def _with_forward(function: Any) -> torch.nn.Module:
    model: Any = torch.nn.Linear(2, 2)
    model.forward = types.MethodType(function, model)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "make",
    [
        with_forward_of_another_name,
        with_forward_of_the_same_name,
        with_forward_of_another_class,
        with_wrapped_forward,
    ],
)
def test_replaced_method_is_the_one_that_was_set(make: Any) -> None:
    found = share.load(make)
    assert torch.equal(found(torch.ones(2)), make()(torch.ones(2)))
    if isinstance(found.forward, types.MethodType):
        assert found.forward.__self__ is found
    else:
        assert found.forward.__wrapped__.__self__ is found


@functools.lru_cache
def cached(x: int) -> int:
    return x


def found_by_name() -> tuple[Any, ...]:
    return cached, torch.nn.Linear.forward, Shifted(2, 2).forward


def test_functions_with_a_name_are_the_programs_own() -> None:
    function, forward, method = share.load(found_by_name)
    assert function is cached and forward is torch.nn.Linear.forward
    assert method.__func__ is Shifted.forward


class Family(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = 1
        self.child = torch.nn.Linear(2, 2)
        self.child.__dict__["parent"] = weakref.proxy(self)
        self.child.__dict__["reference"] = weakref.ref(self)
        self.gone = weakref.ref(Family.__new__(Family))


def test_weak_references_refer_to_the_result() -> None:
    family = share.load(Family)
    proxy = vars(family.child)["parent"]
    family.number = 2
    assert type(proxy) is weakref.CallableProxyType and proxy.number == 2
    assert vars(family.child)["reference"]() is family
    assert family.gone() is None
    reference = vars(family.child)["reference"]
    del family
    gc.collect()
    assert reference() is None


class Key:
    """An object that weak references can refer to."""


def weak_collections() -> tuple[Any, ...]:
    one, other = Key(), Key()
    of_values = weakref.WeakValueDictionary({"one": one, "other": other})
    return one, other, weakref.WeakKeyDictionary({one: 1, other: 2}), of_values, weakref.WeakSet([one, other])


def test_weak_collections_let_go_of_what_is_gone() -> None:
    one, other, by_key, by_value, members = share.load(weak_collections)
    assert by_key[one] == 1 and by_value["one"] is one and one in members
    del other
    gc.collect()
    assert (len(by_key), len(by_value), len(members)) == (1, 1, 1)


def lost_proxy() -> Any:
    return weakref.proxy(Family())


def test_proxy_of_an_object_that_is_gone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="weak proxy"):
        share.load(lost_proxy)


# ------------------------------------------------------------------------------------ inference mode


def trainable() -> torch.nn.Module:
    """Return a module with ordinary parameters, also within inference mode."""
    with torch.inference_mode(False):
        return torch.nn.Linear(2, 2)


def mixed() -> tuple[torch.Tensor, ...]:
    with torch.inference_mode(False):
        normal = torch.ones(2)
    return normal, torch.ones(2)


@pytest.mark.parametrize("mode", [False, True], ids=["out", "in"])
@pytest.mark.parametrize("make", [trainable, mixed])
def test_inference_mode_makes_what_it_makes_in_the_call(make: Any, mode: bool) -> None:
    with torch.inference_mode(mode):
        for _ in range(2):
            found, wanted = share.load(make), make()
            for one, other in zip(_tensors(found), _tensors(wanted), strict=True):
                assert one.is_inference() == other.is_inference()
                assert one.requires_grad == other.requires_grad


def _tensors(obj: Any) -> list[torch.Tensor]:
    return list(obj.parameters()) if isinstance(obj, torch.nn.Module) else list(obj)


# ------------------------------------------------------------------------------- ties of two arguments


def couple(one: Any, other: Any) -> dict[str, Any]:
    return {"one": one, "other": other}


def is_one_memory(one: Any, other: Any) -> bool:
    return bool(one.weight.data_ptr() == other.weight.data_ptr())


def a_module(_: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(40, 40))


def test_changed_result_stays_tied_to_an_unchanged_one() -> None:
    one, other = share.load(a_module, 1)[0], share.load(a_module, 2)
    one = share.load(a_module, 1)
    other[0].weight = one[0].weight
    both = share.load(couple, one, other)
    assert both["one"][0].weight is both["other"][0].weight
    assert both["one"][0].bias is not both["other"][0].bias
    assert share.load(is_one_memory, one[0], other[0])


def test_part_of_a_result_beside_it_is_its_part() -> None:
    one = share.load(a_module, 3)
    both = share.load(couple, one, one[0])
    assert both["one"][0] is both["other"]
    both = share.load(couple, one[0].weight, one)
    assert both["other"][0].weight is both["one"]


def test_unrelated_arguments_leave_a_result_its_name() -> None:
    one = share.load(a_module, 4)
    assert share.load(couple, one, torch.ones(3))["one"] is one


# -------------------------------------------------------------------------- what decides about a result


class Odd:
    def __init__(self) -> None:
        self.weight = torch.ones(3)


def test_variables_of_weights_only_are_part_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.fspath(tmp_path / "odd.pt")
    torch.save(Odd(), path)

    def kind(**options: Any) -> str:
        try:
            return type(share.load(torch.load, path, **options)).__name__
        except Exception as error:
            return type(error).__name__

    def plain(**options: Any) -> str:
        try:
            return type(torch.load(path, **options)).__name__
        except Exception as error:
            return type(error).__name__

    default, trusted = plain(), plain(weights_only=False)
    for name in "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD":
        monkeypatch.setenv(name, "1")
        assert (kind(), kind(weights_only=False)) == (plain(), plain(weights_only=False))
        monkeypatch.delenv(name)
        assert (kind(), kind(weights_only=False)) == (default, trusted)


def doubled(number: float) -> list[float]:
    return torch.full((2,), number).mul(2.0).tolist()


def test_denormal_numbers_are_treated_as_in_the_program() -> None:
    assert share.load(doubled, 1e-42) == doubled(1e-42) != [0.0, 0.0]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        assert share.load(doubled, 1e-42) == doubled(1e-42) == [0.0, 0.0]
    finally:
        torch.set_flush_denormal(False)


def plugged() -> str:
    import plugged_in_by_an_odd_path  # type: ignore[import-not-found]

    return str(plugged_in_by_an_odd_path.VALUE)


@pytest.mark.parametrize("entry", ["{}/", "{}//", "./plugins", "plugins/"])
def test_sys_path_may_name_a_folder_in_any_way(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "plugged_in_by_an_odd_path.py").write_text("VALUE = 'here'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(entry.format(folder))
    assert share.load(plugged) == share.load(plugged) == "here"
