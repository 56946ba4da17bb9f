"""``zerocopy.assign`` and ``zerocopy.load_model``, against torch's own load_state_dict."""

from __future__ import annotations

import copy
import json
import types
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver, digest, lies_in_mapping, outcome
from torch import nn
from torch.nn.utils import parametrize

import zerocopy

SWAPS = hasattr(torch.utils, "swap_tensors")
LEFT_ON_META = "ignore:.*stay on the meta device"
TOKENS = torch.tensor([0, 1, 4])


class Net(nn.Module):
    """Parameters in a child, tied ones, buffers of both kinds."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4, device=device)
        self.body = nn.Sequential(nn.Linear(4, 4, device=device), nn.BatchNorm1d(4, device=device))
        self.head = nn.Linear(4, 5, bias=False, device=device)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1, device=device))
        self.register_buffer("passing", torch.zeros(3, device=device), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens))) * self.scale


@pytest.fixture
def trained() -> Net:
    """Return a net of which no tensor is as it was made."""
    net = Net()
    for _ in range(3):
        net(TOKENS)  # statistics of the batch norm
    net.scale.fill_(3)
    return net


def held(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's own tensors, those that its state dict leaves out too."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def assert_plain(module: nn.Module) -> None:
    """Every tensor of the module is of torch's own types, and in the container of its kind."""
    for each in module.modules():
        assert {type(tensor) for tensor in each._parameters.values()} <= {nn.Parameter, type(None)}
        assert {type(tensor) for tensor in each._buffers.values()} <= {torch.Tensor, type(None)}


def assert_same(module: nn.Module, other: nn.Module) -> None:
    mine, theirs = held(module), held(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]) and tensor.dtype == theirs[name].dtype, name
        assert tensor.stride() == theirs[name].stride(), name
        assert tensor.requires_grad == theirs[name].requires_grad, name


def assert_shares(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    for name, tensor in module.state_dict().items():
        assert tensor.data_ptr() == state_dict[name].data_ptr(), name


def assert_as_stock(
    make: Callable[[], nn.Module], state_dict: Mapping[str, Any], *, strict: bool = True
) -> nn.Module:
    """The answer or the error are those of load_state_dict, and so is what the module then holds. Return it."""
    torch.manual_seed(0)
    stock = make()
    torch.manual_seed(0)
    ours = make()
    expected = outcome(lambda: stock.load_state_dict(OrderedDict(state_dict), strict))
    found = outcome(lambda: zerocopy.assign(ours, state_dict, strict=strict))
    assert found == expected
    assert repr(found[1]) == repr(expected[1])
    assert_same(ours, stock)
    assert_plain(ours)
    return ours


# ------------------------------------------------------------------------ the answer and the errors


def without(state_dict: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state_dict.items() if name not in names}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: state, id="all matched"),
        pytest.param(lambda state: without(state, "body.0.bias", "scale"), id="missing"),
        pytest.param(lambda state: {**state, "stranger": torch.ones(1)}, id="unexpected"),
        pytest.param(lambda state: {**state, "passing": torch.ones(3)}, id="of a non-persistent buffer"),
        pytest.param(lambda state: {**state, "head.bias": torch.ones(5)}, id="of a parameter that is None"),
        pytest.param(lambda state: {**state, "body.0.weight": torch.ones(3, 4)}, id="size mismatch"),
        pytest.param(lambda state: {**state, "body.0.weight": [[1.0]]}, id="no tensor"),
        pytest.param(lambda state: {"body.0.weight": torch.ones(2), "other": 3}, id="many faults"),
        pytest.param(lambda state: {}, id="empty"),
        pytest.param(
            lambda state: {**state, "_extra_state": torch.ones(1)}, id="extra state that nobody wants"
        ),
        pytest.param(lambda state: {**state, "scale": torch.ones(1, device="meta")}, id="without data"),
        pytest.param(lambda state: {**state, "scale": torch.ones(1).to_sparse()}, id="sparse"),
        pytest.param(lambda state: {name: value.double() for name, value in state.items()}, id="doubles"),
        pytest.param(lambda state: {**state, "body.0.bias": torch.arange(4)}, id="integers"),
        pytest.param(
            lambda state: {**state, "body.0.weight": torch.rand(4, 4).t()}, id="in another order of strides"
        ),
    ],
)
def test_keys_messages_and_values_are_torchs(
    trained: Net, change: Callable[..., dict[str, Any]], strict: bool
) -> None:
    """Of valid tensors all are taken, also where others have faults."""

    def make() -> Net:
        net = Net()
        net.body[0].bias.requires_grad_(False)
        return net

    given = change(trained.state_dict())
    assert_as_stock(make, given, strict=strict)
    assert_as_stock(make, types.MappingProxyType(given), strict=strict)


def test_arguments_of_other_types_raise_type_error() -> None:
    for given in (None, 3, [("weight", torch.ones(1, 2))], nn.Linear(2, 1)):
        expected = outcome(lambda g=given: nn.Linear(2, 1).load_state_dict(g))
        assert expected[1] is TypeError
        assert outcome(lambda g=given: zerocopy.assign(nn.Linear(2, 1), g)) == expected
    for module in (None, {}, nn.Linear, Path("model.pt")):
        for call in (zerocopy.assign, zerocopy.load_model):
            with pytest.raises(TypeError, match=rf"to be a torch\.nn\.Module, got {type(module).__name__}"):
                call(module, {})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefix_before_every_key_gets_a_hint(trained: Net, save: Saver, prefix: str) -> None:
    path = save({prefix + name: tensor for name, tensor in trained.state_dict().items()})
    hint = f"Every key in state_dict begins with '{prefix}'"
    with pytest.raises(RuntimeError, match=rf'(?s)Missing key.*"{prefix}scale".*{hint}'):
        zerocopy.load_model(Net(), path)
    with pytest.warns(UserWarning, match=hint):
        found = zerocopy.load_model(Net(), path, strict=False)
    assert found == Net().load_state_dict(torch.load(path), strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zerocopy.load_model(nn.ModuleDict({"module": nn.ModuleDict({"net": Net()})}), path, strict=False)


# ------------------------------------------------------------------------ training goes on


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


class Rich(nn.Module):
    """Has all that refers to a parameter: tied and frozen ones, weight_norm, parametrize, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = Net()
        self.net.body[0].bias.requires_grad_(False)
        self.normed = nn.utils.weight_norm(nn.Linear(5, 5))
        self.doubled = nn.Linear(5, 5)
        parametrize.register_parametrization(self.doubled, "weight", Doubled())
        self.recurrent = nn.LSTM(5, 5)
        self.lazy = nn.LazyLinear(3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lazy(self.recurrent(self.doubled(self.normed(self.net(tokens)))[:, None])[0])


Loader = Callable[[nn.Module, Mapping[str, Any]], Any]


def history(load: Loader, make_optimizer: Callable[..., Any]) -> list[Any]:
    """Train, load, train on: return everything that a program can see of that."""
    module, seen = Rich(), list[Any]()
    module(TOKENS)
    state_dict = {name: tensor.clone() * 0.5 for name, tensor in module.state_dict().items()}
    optimizer = make_optimizer([each for each in module.parameters() if each.requires_grad])
    average = copy.deepcopy(module.state_dict())
    module.net.embed.weight.note = "mine"
    module.net.embed.weight.register_hook(lambda grad: seen.append(grad.clone()))
    before = {name: id(tensor) for name, tensor in held(module).items()}

    def step() -> None:
        module(TOKENS).square().sum().backward()
        optimizer.step()
        seen.append({name: tensor.detach().clone() for name, tensor in held(module).items()})

    step()
    seen.append(load(module, state_dict))
    seen += [module.net.embed.weight.note, module.net.head.weight is module.net.embed.weight]
    seen.append({name: each.grad.clone() for name, each in module.named_parameters() if each.requires_grad})
    step()
    optimizer.zero_grad()
    step()
    for name, tensor in module.state_dict().items():
        average[name].lerp_(tensor, 0.5) if tensor.is_floating_point() else average[name].copy_(tensor)
    assert before == {name: id(tensor) for name, tensor in held(module).items()}
    return [*seen, average, optimizer.state_dict()["state"]]


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore:.*(weight_norm|Lazy modules)")
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize(
    "make_optimizer",
    [lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), torch.optim.Adam],
    ids=["SGD", "Adam"],
)
def test_training_goes_on_after_load_as_with_torch(
    save: Saver, make_optimizer: Callable[..., Any], assign: bool
) -> None:
    digests = dict[Path, str]()

    def ours(module: nn.Module, state_dict: Mapping[str, Any]) -> Any:
        path = save(OrderedDict(state_dict))
        digests[path] = digest(path)
        found = zerocopy.load_model(module, path, assign=assign)
        assert assign == lies_in_mapping(module.net.embed.weight.data_ptr(), path)
        return found

    expected = history(lambda module, state_dict: module.load_state_dict(state_dict), make_optimizer)
    for one, other in zip(history(ours, make_optimizer), expected, strict=True):
        assert_equal(one, other)
    assert digests and all(digest(path) == before for path, before in digests.items())


def test_backward_through_a_graph_of_before_is_refused_as_by_torch() -> None:
    for load in (zerocopy.assign, nn.Module.load_state_dict):
        module = nn.Linear(2, 2)
        loss = module(module(torch.ones(1, 2))).sum()
        load(module, {"weight": torch.ones(2, 2), "bias": torch.ones(2)})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.filterwarnings("ignore:.*Lazy modules")
@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(1), lambda: nn.Sequential(nn.LazyBatchNorm1d())])
def test_uninitialized_modules_take_the_shapes(make: Callable[[], nn.Module]) -> None:
    initial, trained = make(), make()
    trained(torch.ones(3, 2))
    state_dict = trained.state_dict()
    assert_shares(assert_as_stock(make, state_dict), state_dict)
    for target in (make(), trained):
        expected = outcome(lambda target=target: target.load_state_dict(initial.state_dict()))
        assert outcome(lambda target=target: zerocopy.assign(target, initial.state_dict())) == expected


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_modes_of_autograd_leave_a_module_that_can_be_trained(save: Saver, mode: Any, device: str) -> None:
    module, path = nn.Linear(2, 1, device=device), save(nn.Linear(2, 1).state_dict())
    with mode():
        zerocopy.load_model(module, path)
        assert lies_in_mapping(module.weight.data_ptr(), path)
        given = {"weight": torch.ones(1, 2), "bias": torch.ones(1)}
        zerocopy.assign(module, given)
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad.tolist() == [[1, 1]] and module.weight.tolist() == [[1, 1]]
    assert torch.is_grad_enabled()


# ------------------------------------------------------------------------ what is copied, and what is not


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_dtype_is_that_of_the_module_unless_asked(save: Saver, device: str) -> None:
    trained = nn.Linear(3, 2)
    path = save(trained.state_dict())
    kept, taken = (nn.Linear(3, 2, device=device).double() for _ in range(2))
    optimizer = torch.optim.SGD([*kept.parameters(), *taken.parameters()], 1)
    if device == "cpu":
        taken(torch.ones(1, 3).double()).sum().backward()
    zerocopy.load_model(kept, path)
    zerocopy.load_model(taken, path, keep_dtype=False)
    assert_same(kept, copy.deepcopy(trained).double())
    assert_same(taken, trained)
    assert lies_in_mapping(taken.weight.data_ptr(), path)
    if device == "cpu" or SWAPS:
        taken(torch.ones(1, 3)).sum().backward()  # the gradient went along
        optimizer.step()
        assert torch.equal(taken.bias, trained.bias - (2 if device == "cpu" else 1))
    with pytest.raises(ValueError, match="keep_dtype=False needs assign=True"):
        zerocopy.load_model(kept, path, assign=False, keep_dtype=False)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_integers_cannot_require_gradients(device: str) -> None:
    """As by torch's own assign=True."""
    module = nn.Linear(2, 1, bias=False, device=device)
    state_dict = {"weight": torch.ones(1, 2, dtype=torch.int64)}
    message = r'While copying the parameter named "weight".*Only Tensors of floating point and complex dtype'
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=message):
        warnings.simplefilter("ignore")  # of torch, that its copy to a meta tensor does nothing
        zerocopy.assign(module, state_dict, keep_dtype=False)
    assert module.weight.dtype == torch.float32
    module.weight.requires_grad_(False)
    zerocopy.assign(module, state_dict, keep_dtype=False)
    assert module.weight.dtype == torch.int64


def test_tensors_of_a_module_over_one_memory_stay_so() -> None:
    module = nn.Module()
    module.w = nn.Parameter(torch.zeros(3))
    module.register_buffer("c", module.w.data, persistent=False)
    zerocopy.assign(module, {"w": torch.ones(3)})
    assert module.c.tolist() == [1, 1, 1]
    with torch.no_grad():
        module.w.add_(1)
    assert module.c.tolist() == [2, 2, 2]


def test_prefix_that_a_hook_removes_is_no_reason_to_warn() -> None:
    module = nn.Linear(2, 2)

    def strip(state_dict: dict[str, Any], *_: Any) -> None:
        for key in list(state_dict):
            state_dict[key.removeprefix("module.")] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(strip)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = zerocopy.assign(module, {f"module.{k}": v for k, v in nn.Linear(2, 2).state_dict().items()})
    assert not found.missing_keys and not found.unexpected_keys


def test_memory_that_others_share_stays_theirs() -> None:
    """The parts of a flat buffer, and shared memory, are written to."""
    flat, module = torch.zeros(6), nn.ParameterDict()
    module["first"], module["second"] = nn.Parameter(flat[:2]), nn.Parameter(flat[2:].view(2, 2))
    module["shared"] = nn.Parameter(torch.zeros(2).share_memory_())
    state_dict = {"first": torch.ones(2), "second": torch.full((2, 2), 2.0), "shared": torch.full((2,), 3.0)}
    zerocopy.assign(module, state_dict)
    assert flat.tolist() == [1, 1, 2, 2, 2, 2]
    assert module["shared"].is_shared() and module["shared"].tolist() == [3, 3]


def tied(device: str = "cpu") -> nn.ModuleList:
    module = nn.ModuleList(nn.Linear(2, 2, bias=False, device=device) for _ in range(3))
    for each in module:
        each.weight = module[0].weight
    return module


def test_ties_are_those_of_the_module() -> None:
    """The last tensor for a tied parameter counts, as by torch. Those of the state dict stay as they are."""
    first, second = torch.zeros(2, 2), torch.ones(2, 2)
    for third in (second.detach(), second.half()):
        module = assert_as_stock(tied, {"0.weight": first, "1.weight": first, "2.weight": third})
        assert module[0].weight is module[1].weight is module[2].weight
        assert first.sum() == 0
    untied = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    zerocopy.assign(untied, {"0.weight": first, "1.weight": first})
    with torch.no_grad():
        untied[0].weight.add_(1)
    assert untied[1].weight.sum() == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("present", [None, 0, 1, 2])
@pytest.mark.filterwarnings(LEFT_ON_META)
def test_tie_needs_one_key_only(present: int | None, device: str) -> None:
    """As copying does, which fills the one parameter that there is. Without any key, the tie stays."""
    module, tensor = tied(device), torch.ones(2, 2)
    before = module[0].weight
    given = {} if present is None else {f"{present}.weight": tensor}
    found = zerocopy.assign(module, given, strict=False)
    assert found.missing_keys == [f"{index}.weight" for index in range(3) if index != present]
    assert module[0].weight is module[1].weight is module[2].weight
    assert module[0].weight.data_ptr() == (before if present is None else tensor).data_ptr()


class Scalar(nn.Module):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0, device=device))
        self.register_buffer("count", torch.tensor(0, device=device))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scalars_of_long_ago(device: str) -> None:
    """Before PyTorch 0.4 scalars were tensors of one element."""
    state_dict, module = {"factor": torch.tensor([5.0]), "count": torch.tensor([7])}, Scalar(device)
    zerocopy.assign(module, state_dict)
    assert module.factor.shape == module.count.shape == ()
    assert_shares(module, state_dict)
    assert_as_stock(Scalar, {**state_dict, "factor": torch.tensor([5.0, 6.0])})


# ------------------------------------------------------------------------ modules on the meta device


class Marked(nn.Parameter):
    """A class of parameters as programs derive them, to keep attributes."""


def test_meta_parameters_keep_attributes_class_and_place() -> None:
    net = Net("meta")
    net.passing = torch.zeros(3)
    net.head.weight = net.embed.weight = Marked(net.embed.weight)
    net.embed.weight.shard, net.body[0].bias.requires_grad = 3, False
    before, state_dict = dict(net.named_parameters()), Net().state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zerocopy.assign(net, state_dict)
    assert_shares(net, {**state_dict, "embed.weight": state_dict["head.weight"]})
    assert type(net.embed.weight) is Marked and net.embed.weight.shard == 3
    assert net.head.weight is net.embed.weight
    assert net.embed.weight.requires_grad and not net.body[0].bias.requires_grad
    assert not SWAPS or all(net.get_parameter(name) is each for name, each in before.items())


def test_meta_recurrent_layer_is_filled() -> None:
    """Its weak references to its parameters keep these from being swapped."""
    trained, module = nn.LSTM(3, 4), nn.LSTM(3, 4, device="meta")
    zerocopy.assign(module, trained.state_dict())
    assert all(
        ours is module._parameters[name]
        for ours, name in zip(module._flat_weights, module._flat_weights_names, strict=True)
    )
    given = torch.rand(2, 1, 3)
    assert torch.equal(module(given)[0], trained(given)[0])


def test_tensors_left_on_meta_are_named(trained: Net, save: Saver) -> None:
    path = save(without(trained.state_dict(), "scale"))
    with pytest.warns(
        UserWarning, match="2 of 10 tensors .* meta device.*: scale, passing. Give them"
    ) as seen:
        zerocopy.load_model(Net("meta"), path, strict=False)
    assert [each.filename for each in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zerocopy.load_model(Net(), path, strict=False)
        net = Net()
        net.passing = None
        zerocopy.load_model(net, save(trained.state_dict()), device="meta")
    assert all(tensor.is_meta for tensor in held(net).values())


# ------------------------------------------------------------------------ modules with their own ways


class Renamed(nn.Module):
    """Reads what an older release of itself wrote, and forgives a missing key."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.child = nn.Linear(1, 1)
        self.seen: list[Any] = []
        self._register_load_state_dict_pre_hook(self._rename)
        self.register_load_state_dict_post_hook(self._forgive)

    def _rename(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        assert all(isinstance(value, torch.Tensor) for value in state_dict.values())
        for old in [key for key in state_dict if key.startswith(f"{prefix}old_")]:
            state_dict[prefix + old[len(prefix) + len("old_") :]] = state_dict.pop(old)

    @staticmethod
    def _forgive(module: Renamed, incompatible: Any) -> None:
        module.seen.append((module.weight.tolist(), list(incompatible.missing_keys)))
        incompatible.missing_keys.clear()


@pytest.mark.parametrize("prefix", ["", "0."])
def test_hooks_before_and_after(prefix: str) -> None:
    state_dict = {f"{prefix}old_weight": torch.ones(3), f"{prefix}old_child.weight": torch.full((1, 1), 2.0)}
    module = assert_as_stock(Renamed if not prefix else lambda: nn.Sequential(Renamed()), state_dict)
    assert module.state_dict()[f"{prefix}weight"].data_ptr() == state_dict[f"{prefix}old_weight"].data_ptr()
    assert (module[0] if prefix else module).seen == [([1, 1, 1], [f"{prefix}child.bias"])]


class Extra(nn.Linear):
    seen: Any = None

    def get_extra_state(self) -> Any:
        return "saved"

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def test_extra_state_is_given_to_the_module(save: Saver) -> None:
    for extra in ({"calls": torch.ones(2)}, torch.ones(2), None):
        module = nn.Sequential(Extra(2, 1))
        state_dict = {**nn.Sequential(Extra(2, 1)).state_dict(), "0._extra_state": extra}
        assert zerocopy.assign(module, state_dict) == ([], [])
        assert module[0].seen is extra
    assert_as_stock(lambda: nn.Sequential(Extra(2, 1)), without(state_dict, "0._extra_state"))
    zerocopy.load_model(module[0], save({"_extra_state": {"calls": torch.ones(2)}}), strict=False)
    assert module[0].seen["calls"].tolist() == [1, 1]


class OwnWay(nn.Module):
    """Holds a value that is neither parameter nor buffer, and one usual parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.packed: Any = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.packed = state_dict.pop(prefix + "packed") * 2
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.sum = state_dict[prefix + "weight"].sum()


class NoSuper(nn.Module):
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.packed = state_dict[prefix + "packed"]


def test_modules_that_load_in_their_own_way() -> None:
    state_dict = {"0.weight": torch.ones(2), "0.packed": torch.ones(4), "1.packed": torch.ones(5)}
    module = nn.Sequential(OwnWay(), NoSuper())
    zerocopy.assign(module, state_dict)
    assert module[0].weight.data_ptr() == state_dict["0.weight"].data_ptr()
    assert module[0].packed.tolist() == [2] * 4 and type(module[0].packed) is torch.Tensor
    assert module[0].sum == 2
    assert module[1].packed is state_dict["1.packed"]


class Wrapper(nn.Module):
    """Has a load_state_dict of before assign=, and one of its own names."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.net = Net(device)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        return super().load_state_dict({f"net.{name}": value for name, value in state_dict.items()}, strict)


@pytest.mark.filterwarnings(LEFT_ON_META)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_load_state_dict_that_knows_no_assign(trained: Net, device: str) -> None:
    module, state_dict = Wrapper(device), trained.state_dict()
    zerocopy.assign(module, state_dict)
    assert_shares(module.net, state_dict)
    with pytest.raises(RuntimeError, match="size mismatch"):
        zerocopy.assign(module, {**state_dict, "scale": torch.ones(2)})
    assert not any(each._load_state_dict_pre_hooks for each in module.modules()), "all taken away again"


def test_version_in_the_metadata() -> None:
    """The batch norm of version 1 has no count of batches. That key does not count as missing."""
    state_dict = nn.BatchNorm1d(3).state_dict()
    del state_dict["num_batches_tracked"]
    assert zerocopy.assign(nn.BatchNorm1d(3), state_dict, strict=False).missing_keys == [
        "num_batches_tracked"
    ]
    state_dict._metadata[""]["version"] = 1
    assert zerocopy.assign(nn.BatchNorm1d(3), state_dict) == ([], [])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net.eval(), TOKENS)])
def test_compiled_modules(trained: Net, compiled: Callable[[Net], nn.Module]) -> None:
    state_dict, module = trained.state_dict(), compiled(Net())
    zerocopy.assign(module, state_dict, strict=False)  # they forget which buffers are not persistent
    held = module.state_dict()
    for name, tensor in state_dict.items():
        assert held[name].data_ptr() == tensor.data_ptr(), name
    assert torch.equal(module.eval()(TOKENS), trained.eval()(TOKENS))


def test_modules_of_torch() -> None:
    for make in (
        lambda: torch.nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
        lambda: torch.nn.utils.spectral_norm(nn.Linear(3, 3)),
        lambda: nn.ParameterList([torch.rand(2), torch.rand(3)]),
        lambda: nn.ParameterDict({"first": torch.rand(2)}),
        lambda: nn.TransformerEncoderLayer(4, 2),
        lambda: torch.ao.quantization.FakeQuantize(),
    ):
        trained, module = make(), make()
        state_dict = trained.state_dict()
        zerocopy.assign(module, state_dict)
        for name, tensor in module.state_dict().items():
            assert tensor.data_ptr() == state_dict[name].data_ptr(), (type(module), name)
        assert_same(module, trained)
        assert_plain(module)


@pytest.mark.skipif(not SWAPS, reason="this release does not swap tensors")
def test_swap_of_tensors(trained: Net) -> None:
    net, state_dict = Net(), trained.state_dict()
    before = {name: id(tensor) for name, tensor in held(net).items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        zerocopy.assign(net, state_dict)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert before == {name: id(tensor) for name, tensor in held(net).items()}
    assert_shares(net, state_dict)
    assert_same(net, trained)


# ------------------------------------------------------------------------ files


def assert_in_file(module: nn.Module, path: Path) -> None:
    for name, tensor in module.state_dict().items():
        assert lies_in_mapping(tensor.data_ptr(), path), name


@pytest.mark.filterwarnings(LEFT_ON_META)
def test_placeholders_do_not_get_into_a_module(trained: Net, save: Saver) -> None:
    entries = {**trained.state_dict(), "embed.weight": nn.Parameter(trained.embed.weight.detach())}
    path, net = save(entries), Net("meta")
    zerocopy.assign(net, zerocopy.lazy_load(path))
    assert_plain(net)
    assert_in_file(net, path)
    assert net.head.weight is net.embed.weight


@pytest.mark.filterwarnings(LEFT_ON_META)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_load_model_maps_the_file(trained: Net, save: Saver, device: str) -> None:
    path, net = save(trained.state_dict()), Net(device)
    assert repr(zerocopy.load_model(net, path)) == "<All keys matched successfully>"
    assert_in_file(net, path)
    assert net.passing.device.type == device, "no checkpoint has it"
    assert_plain(net)
    net.passing = trained.passing
    assert_same(net, trained)
    assert torch.equal(net.eval()(TOKENS), trained.eval()(TOKENS))


@pytest.mark.parametrize("assign", [True, False])
def test_load_model_strict_or_not(trained: Net, save: Saver, assign: bool) -> None:
    path = save({**without(trained.state_dict(), "scale"), "stranger": torch.ones(1)})
    with pytest.raises(RuntimeError, match=r'(?s)Missing key.*"scale".*Unexpected key.*"stranger"'):
        zerocopy.load_model(Net(), path, assign=assign)
    net = Net()
    before = {name: tensor.data_ptr() for name, tensor in held(net).items()}
    assert zerocopy.load_model(net, path, assign=assign, strict=False) == (["scale"], ["stranger"])
    assert torch.equal(net.embed.weight, trained.embed.weight)
    assert assign or before == {name: tensor.data_ptr() for name, tensor in held(net).items()}


def test_load_model_not_strict_takes_what_shards_of_a_wrong_index_have(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1, 2)}, tmp_path / "a.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "a.bin", "bias": "a.bin"}}))
    with pytest.raises(zerocopy.FormatError, match="bias"):
        zerocopy.load_model(nn.Linear(2, 1), tmp_path)
    with pytest.warns(UserWarning, match="bias"):
        assert zerocopy.load_model(nn.Linear(2, 1), tmp_path, strict=False).missing_keys == ["bias"]


def test_load_model_arguments_are_those_of_load(trained: Net, save: Saver) -> None:
    path, net = save(trained.state_dict()), Net()
    zerocopy.load_model(net, path, backend="pread", map_location="cpu")
    assert not lies_in_mapping(net.embed.weight.data_ptr(), path)
    for safe in (True, False):
        with pytest.raises(TypeError, match=r"^load_model\(\) got an unexpected keyword argument 'stric'$"):
            zerocopy.load_model(net, path, stric=False, weights_only=safe)
    with pytest.raises(ValueError, match="device or map_location"):
        zerocopy.load_model(net, path, device="cpu", map_location="cpu")
    assert zerocopy.load_model(Net(), path.read_bytes(), weights_only=False, encoding="latin1") == ([], [])
    with path.open("rb") as file:
        zerocopy.load_model(net, file)
    assert_in_file(net, path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_without_cuda_the_error_names_the_argument(save: Saver, tmp_path: Path) -> None:
    path = tmp_path / "cuda.pt"
    with zipfile.ZipFile(save(nn.Linear(2, 1).state_dict())) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"))
    checkpoint = zerocopy.open(path)
    for call in (
        lambda: zerocopy.load_model(nn.Linear(2, 1), path),
        lambda: checkpoint.get_tensor("weight"),
        lambda: checkpoint.get_slice("weight")[:1],
        lambda: zerocopy.lazy_load(path)["weight"] + 1,
        lambda: zerocopy.lazy_load(path, weights_only=False)["weight"] + 1,
    ):
        with pytest.raises(RuntimeError, match=r'CUDA.*please use device="cpu" to map'):
            call()
    with pytest.raises(RuntimeError, match="map_location"):
        zerocopy.load(path)
    for name in ("device", "map_location"):
        assert zerocopy.load_model(nn.Linear(2, 1), path, **{name: "cpu"}) == ([], [])


@pytest.mark.parametrize("assign", [True, False])
def test_load_model_of_other_objects_says_what_they_are(save: Saver, assign: bool) -> None:
    net = Net()
    before = {name: tensor.clone() for name, tensor in held(net).items()}
    for content, message in (
        (torch.ones(3), "checkpoint.pt: expected a state dict .*Tensor"),
        ([("weight", torch.ones(3))], "expected a state dict .*list"),
        ({0: torch.ones(3)}, "expected a state dict .*dict"),
        ({"model": Net().state_dict(), "epoch": 3}, "mappings that may contain one: 'model'. Load the file"),
        (nn.Linear(2, 1), r"expected a state dict, found a whole module; give its state_dict\(\)"),
    ):
        path = save(content)
        with pytest.raises(TypeError, match=message):
            zerocopy.load_model(net, path, assign=assign, strict=False, weights_only=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in held(net).items())


# ----------------------------------------------------------------------------- ties of .safetensors


@pytest.mark.filterwarnings("ignore:.*meta")
@pytest.mark.parametrize("shards", [None, 300])
def test_load_model_tied_safetensors_loads(
    trained: Net, tmp_path: Path, save: Saver, shards: int | None
) -> None:
    """convert writes a tied tensor once, under one of its names."""
    path = tmp_path / ("shards" if shards else "model.safetensors")
    zerocopy.convert(save(trained.state_dict()), path, max_shard_size=shards)
    for device, assign in (("cpu", True), ("cpu", False), ("meta", True)):
        net = Net(device)
        assert zerocopy.load_model(net, path, assign=assign) == ([], [])
        assert net.head.weight is net.embed.weight and torch.equal(net.head.weight, trained.head.weight)


def test_load_model_other_formats_miss_a_tied_name(trained: Net, save: Saver) -> None:
    path = save(without(trained.state_dict(), "head.weight"))
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        zerocopy.load_model(Net(), path)
