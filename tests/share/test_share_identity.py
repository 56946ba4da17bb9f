"""The model server keeps what is one memory one, what is independent apart, and all facts of a tensor."""

from __future__ import annotations

import copy
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch

from zerocopy import UnsupportedError, share
from zerocopy.share.client import load_call


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("share")) as place:
        yield place


LARGE = 20_000  # elements: more than the server compares


def equal_tensors() -> dict[str, torch.Tensor]:
    return {str(i): torch.zeros(LARGE) for i in range(5)}


def two_loads(path: str) -> dict[str, Any]:
    return {"model": torch.load(path), "ema": torch.load(path)}


def teacher_and_student() -> dict[str, torch.nn.Module]:
    student = torch.nn.Linear(200, 200)
    return {"student": student, "teacher": copy.deepcopy(student)}


def overlapping() -> tuple[torch.Tensor, ...]:
    buffer = bytearray(8 * LARGE)
    whole = torch.frombuffer(buffer, dtype=torch.float32)
    return (
        whole,
        torch.frombuffer(buffer, dtype=torch.float32, offset=400),
        torch.frombuffer(bytearray(buffer), dtype=torch.float32),
    )


def two_dtypes() -> tuple[torch.Tensor, torch.Tensor]:
    tensor = torch.arange(LARGE)
    return tensor, tensor.view(torch.int32)


def address_of(tensor: torch.Tensor) -> int:
    return tensor.storage().data_ptr()


@pytest.mark.parametrize("attempt", [1, 2])
def test_equal_tensors_written_to_one_leave_the_others(attempt: int) -> None:
    found = share.load(equal_tensors)
    assert len({address_of(tensor) for tensor in found.values()}) == 5
    found["0"].fill_(attempt)
    assert all(not found[str(i)].any() for i in range(1, 5))


def test_two_loads_of_a_file_are_independent(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(LARGE), "b": torch.ones(LARGE)}, tmp_path / "x.pt")
    for _ in range(2):
        found = share.load(two_loads, str(tmp_path / "x.pt"))
        found["model"]["a"].zero_()
        assert bool(found["ema"]["a"].all()) and bool(found["model"]["b"].all())


def test_deep_copy_of_a_module_is_independent() -> None:
    for _ in range(2):
        found = share.load(teacher_and_student)
        before = found["teacher"].weight.detach().clone()
        with torch.no_grad():
            found["student"].weight.zero_()
        assert torch.equal(found["teacher"].weight, before)


def test_equal_bytes_cost_memory_once() -> None:
    share.unload("*")
    share.load(equal_tensors)
    assert sharing.entries()[0]["memory"] < 2 * 4 * LARGE


def test_overlapping_storages_stay_one_memory() -> None:
    for _ in range(2):
        whole, part, other = share.load(overlapping)
        part[0] = 7
        assert whole[100] == 7 and address_of(part) == address_of(whole) + 400
        assert not other.any()


class Scaled(torch.nn.Module):
    """A hook that is a nested function, and refers to its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))
        self.calls: list[int] = []

        def hook(module: Any, arguments: Any, result: torch.Tensor) -> torch.Tensor:
            self.calls.append(1)
            return result * self.scale

        self.inner.register_forward_hook(hook)


def counter() -> tuple[Any, Any, list[int], Any]:
    count, seen = 0, [0]

    def add() -> None:
        nonlocal count
        count += 1
        seen.append(count)

    def with_default(values: list[int] = seen) -> list[int]:
        return values

    with_default.seen = seen  # type: ignore[attr-defined]
    return add, lambda: count, seen, with_default


FACTOR = 2


def nested() -> tuple[Any, ...]:
    tensor = torch.ones(2)

    @functools.lru_cache(maxsize=7)
    def cached() -> torch.Tensor:
        return tensor

    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    def scaled(x: int, *, by: Any = tensor) -> Any:
        """Scale."""
        return x * FACTOR * by

    if tensor is None:
        undefined = 0
    return tensor, cached, factorial, scaled, lambda: undefined, threading.RLock()


def test_nested_functions_are_those_of_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        tensor, cached, factorial, scaled, unassigned, lock = share.load(nested)
        assert cached() is tensor and cached.cache_parameters()["maxsize"] == 7
        assert factorial(5) == 120
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5)
        tensor[0] = 3
        assert scaled(1).tolist() == [15, 5] and scaled.__doc__ == "Scale."
        assert scaled.__qualname__ == "nested.<locals>.scaled" and scaled.__kwdefaults__ == {"by": tensor}
        monkeypatch.undo()
        with pytest.raises(NameError):
            unassigned()
        assert lock.acquire(blocking=False)


def of_a_nested_class() -> Any:
    class Scaled(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)

        def forward(self, x: Any) -> Any:
            return x * FACTOR

        @functools.cached_property
        def factor(self) -> int:
            return FACTOR

        @classmethod
        def named(cls) -> tuple[Any, ...]:
            return FACTOR, cls.__name__, __class__.__name__  # type: ignore[name-defined]

    return Scaled()


def test_methods_of_nested_classes_are_those_of_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        module = share.load(of_a_nested_class)
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5)
        assert (module(1), module.factor, module.named()) == (5, 5, (5, "Scaled", "Scaled"))
        monkeypatch.undo()
        assert module(1) == FACTOR


def with_optimizer() -> Any:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1)
    return parameter, lambda: optimizer.zero_grad()


def test_function_that_refers_to_an_optimizer() -> None:
    parameter, zero_grad = share.load(with_optimizer)
    parameter.grad = torch.ones(2)
    zero_grad()
    assert parameter.grad is None or not parameter.grad.any()


def test_what_functions_refer_to_is_what_the_rest_of_the_result_has() -> None:
    for _ in range(2):
        module = share.load(Scaled)
        (hook,) = module.inner._forward_hooks.values()
        assert hook.__closure__[0].cell_contents is module
        module.scale.fill_(10)
        assert torch.equal(
            module.inner(torch.zeros(1, 2)), 10 * module.inner.bias[None]
        ) and module.calls == [1]
        add, count, seen, with_default = share.load(counter)
        add()
        assert count() == 1 and seen == [0, 1] and with_default() is with_default.seen is seen


def mapped_arrays(path: str) -> Any:
    import numpy as np

    changeable, values = np.load(path, mmap_mode="c"), np.arange(float(LARGE))
    masked = np.ma.masked_array(values, values > 5, fill_value=7)
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", int), ("b", float)])
    return np.load(path, mmap_mode="r"), changeable, changeable[2:], values, masked, records, records["b"]


def test_mapped_and_masked_arrays_stay_views(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    np.save(tmp_path / "a.npy", np.arange(float(LARGE)))
    for _ in range(2):
        fixed, changeable, part, values, masked, records, column = share.load(
            mapped_arrays, str(tmp_path / "a.npy")
        )
        column[0] = 9
        assert records[0].b == 9 and type(records) is np.recarray
        assert type(fixed) is type(part) is np.memmap and not fixed.flags.writeable
        changeable[2] = values[3] = -1
        assert part[0] == -1 and fixed[2] == 2 and np.load(tmp_path / "a.npy")[2] == 2
        assert masked[3] == -1 and masked.fill_value == 7 and masked.mask.sum() == LARGE - 6


class Marked(torch.nn.Parameter):
    """A parameter of a class of its own, which torch's pickle forgets."""


def marked() -> Any:
    return Marked(torch.ones(3))


def uncoalesced() -> Any:
    return [torch.sparse_coo_tensor(torch.arange(LARGE).repeat(2, 1), torch.ones(LARGE), (LARGE, LARGE))]


def test_parameter_keeps_its_class_and_torch_notes_no_sparse_tensor() -> None:
    for _ in range(2):
        assert type(share.load(marked)) is Marked
        assert share.load(uncoalesced)[0].layout is torch.sparse_coo
        assert not torch._utils._sparse_tensors_to_validate


def rest_of(file: Any) -> Any:
    return file.read()


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_open_file_is_refused_and_stays_where_it_stands(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.txt").write_text("0123456789")
    with (tmp_path / "a.txt").open(mode) as file:
        file.read(3)
        with pytest.raises(UnsupportedError, match="belongs to its process: pass its path"):
            share.load(rest_of, file)
        assert file.tell() == 3


def zero() -> tuple[int, ...]:
    import time

    return tuple(time.localtime(0))


def test_time_zone_is_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for zone in ("Asia/Tokyo", "America/New_York", "Asia/Tokyo"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert share.load(zero) == zero()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_storage_of_two_dtypes_is_one_storage() -> None:
    for _ in range(2):
        longs, ints = share.load(two_dtypes)
        assert longs.storage()._cdata == ints.storage()._cdata
        ints[0] = 5
        assert longs[0] == 5


def test_more_equal_tensors_than_mappings_are_independent() -> None:
    found = share.load(many_equal)
    found[3].fill_(1)
    assert sum(int(tensor.any()) for tensor in found) == 1


def many_equal() -> list[torch.Tensor]:
    return [torch.zeros(1 << 12) for _ in range(700)]


# ------------------------------------------------------------------------------------- facts of tensors


def with_gradient(cls: Any) -> Any:
    tensor = (
        cls(torch.ones(5), requires_grad=True)
        if cls is torch.nn.Parameter
        else torch.ones(5, requires_grad=True)
    )
    (tensor * 2).sum().backward()
    return tensor


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def made_for_inference() -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return {"tensor": torch.ones(3), "parameter": torch.nn.Parameter(torch.ones(2))}


def computed() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter])
def test_a_gradient_is_kept(cls: type) -> None:
    for _ in range(2):
        found = share.load(with_gradient, cls)
        assert found.grad is not None and found.grad.tolist() == [2.0] * 5 and found.is_leaf


def test_gradients_of_a_module_and_its_optimizer_are_kept() -> None:
    model, optimizer = share.load(trained)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_inference_tensors_stay_inference_tensors() -> None:
    for _ in range(2):
        found = share.load(made_for_inference)
        assert all(tensor.is_inference() for tensor in found.values())
        assert found["parameter"].requires_grad and found["tensor"].tolist() == [1.0] * 3


def test_a_computed_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="autograd computed"):
        share.load(computed)


class Tagged(torch.Tensor):
    """A subclass without any state of its own."""


def tagged() -> Tagged:
    found = torch.ones(3).as_subclass(Tagged)
    found.tag = "a"  # type: ignore[attr-defined]
    return found


def test_subclasses_keep_class_and_attributes() -> None:
    for _ in range(2):
        found = share.load(tagged)
        assert type(found) is Tagged and vars(found) == {"tag": "a"} and found.tolist() == [1.0] * 3
        assert type(share.load(torch.Tensor.as_subclass, torch.ones(2), Tagged)) is Tagged


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,)).coalesce()


def test_a_coalesced_tensor_stays_coalesced() -> None:
    for _ in range(2):
        found = share.load(sparse)
        assert found.is_coalesced() and found.to_dense().tolist() == [1.0, 1.0, 0.0]


@pytest.mark.filterwarnings("error")
def test_a_sparse_tensor_comes_without_a_warning() -> None:
    share.load(sparse)


def storages() -> list[Any]:
    tensor = torch.arange(5.0)
    return [tensor, getattr(tensor, "untyped_storage", tensor.storage().untyped)()]


def test_an_untyped_storage_stays_untyped() -> None:
    for _ in range(2):
        tensor, storage = share.load(storages)
        assert type(storage) is type(storages()[1])
        tensor[0] = 3
        assert bytes(storage)[:4] == bytes(tensor.storage().untyped())[:4]


def named() -> torch.Tensor:
    return torch.ones(2, names=("a",))


@pytest.mark.skipif(not hasattr(torch.Tensor, "names"), reason="this torch has no named tensors")
def test_a_named_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        share.load(named)


def write_to_a_parameter(module: sharing.Module) -> None:
    with torch.no_grad():
        module.frozen[0] = 5


def end_a_tie(module: sharing.Module) -> None:
    module.second.weight = torch.nn.Parameter(module.first.weight.detach().clone())


def tie(module: sharing.Module) -> None:
    module.second.bias = module.first.bias


def name_another(module: sharing.Module) -> None:
    module.note["name"] = "another"


def require_gradients(module: sharing.Module) -> None:
    module.frozen.requires_grad_()


def in_another_process(work: Any) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def pass_as_argument() -> None:
    module = share.load(sharing.Module)
    assert share.load(sharing.box, module).things[0] is module


def test_result_that_another_process_passed_is_known_without_a_fresh_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_another_process(pass_as_argument)
    monkeypatch.setattr(load_call, "_attached_again", lambda _: pytest.fail("it attaches again"))
    pass_as_argument()
    in_another_process(pass_as_argument)


@pytest.mark.parametrize(
    "change",
    [write_to_a_parameter, end_a_tie, tie, name_another, require_gradients],
    ids=lambda f: f.__name__,
)
def test_result_that_was_changed_is_never_taken_for_what_another_process_passed(change: Any) -> None:
    in_another_process(pass_as_argument)
    module = share.load(sharing.Module)
    change(module)
    found = share.load(sharing.box, module).things[0]
    assert found is not module
    assert found.frozen.tolist() == module.frozen.tolist()
    assert found.note == module.note and found.frozen.requires_grad == module.frozen.requires_grad
    for one, other in (("first.weight", "second.weight"), ("first.bias", "second.bias")):
        tied = [made.get_parameter(one) is made.get_parameter(other) for made in (found, module)]
        assert tied[0] == tied[1]
    pass_as_argument()
