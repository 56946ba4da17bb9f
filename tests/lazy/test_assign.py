"""``zerocopy.assign`` and ``zerocopy.load_model``, against torch's own load_state_dict."""

from __future__ import annotations

import inspect
import itertools
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver, digest, lies_in_mapping, outcome
from torch import nn

import zerocopy

STOCK_ASSIGNS = "assign" in inspect.signature(nn.Module.load_state_dict).parameters
stock_assigns = pytest.mark.skipif(not STOCK_ASSIGNS, reason="load_state_dict has no assign= in this release")


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


TOKENS = torch.tensor([0, 1, 4])


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
        assert tensor.requires_grad == theirs[name].requires_grad, name


def assert_as_stock(
    make: Callable[[], nn.Module], state_dict: Mapping[str, Any], *, strict: bool = True
) -> nn.Module:
    """The answer or the error are those of load_state_dict, and so is what the module then holds. Return it."""
    stock, ours = make(), make()
    expected = outcome(lambda: stock.load_state_dict(OrderedDict(state_dict), strict))
    found = outcome(lambda: zerocopy.assign(ours, state_dict, strict=strict))
    assert found == expected
    assert repr(found[1]) == repr(expected[1])
    if STOCK_ASSIGNS:
        assigned = make()
        assert (
            outcome(lambda: assigned.load_state_dict(OrderedDict(state_dict), strict, assign=True))
            == expected
        )
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
    ],
)
def test_keys_and_messages_are_torchs(
    trained: Net, change: Callable[..., dict[str, Any]], strict: bool
) -> None:
    initial = Net().state_dict()

    def make() -> Net:
        net = Net()
        net.load_state_dict(initial)
        return net

    assert_as_stock(make, change(trained.state_dict()), strict=strict)


def test_arguments_of_other_types_raise_type_error() -> None:
    for given in (None, 3, [("weight", torch.ones(1, 2))], nn.Linear(2, 1)):
        expected = outcome(lambda g=given: nn.Linear(2, 1).load_state_dict(g))
        assert expected[1] is TypeError
        assert outcome(lambda g=given: zerocopy.assign(nn.Linear(2, 1), g)) == expected
    for module in (None, {}, nn.Linear, Path("model.pt")):
        for call in (zerocopy.assign, zerocopy.load_model):
            with pytest.raises(TypeError, match=rf"to be a torch\.nn\.Module, got {type(module).__name__}"):
                call(module, {})


def test_integers_cannot_require_gradients() -> None:
    """As torch's own assign=True; copying would have cast them."""
    state_dict = {"weight": torch.ones(1, 2, dtype=torch.int64)}
    message = r'While copying the parameter named "weight".*Only Tensors of floating point and complex dtype'
    module = nn.Linear(2, 1, bias=False)
    with pytest.raises(RuntimeError, match=message):
        zerocopy.assign(module, state_dict)
    assert module.weight.dtype == torch.float32
    module.weight.requires_grad_(False)
    zerocopy.assign(module, state_dict)
    assert module.weight.dtype == torch.int64


# ------------------------------------------------------------------------ which tensors a module has


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_byte_is_copied(trained: Net, device: str) -> None:
    state_dict, net = trained.state_dict(), Net(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zerocopy.assign(net, state_dict)
    for name, tensor in net.state_dict().items():
        assert tensor.data_ptr() == state_dict[name].data_ptr(), name
    assert net.scale is state_dict["scale"]
    assert net.passing.device.type == device, "no checkpoint has it"
    assert_plain(net)
    net.passing = trained.passing
    assert_same(net, trained)
    assert torch.equal(net.eval()(TOKENS), trained.eval()(TOKENS))


def test_requires_grad_is_that_of_the_module() -> None:
    for kind, wanted, given in itertools.product((torch.Tensor, nn.Parameter), (True, False), (True, False)):
        module = nn.Linear(2, 1).requires_grad_(wanted)
        state_dict = {
            name: nn.Parameter(tensor, given) if kind is nn.Parameter else tensor.requires_grad_(given)
            for name, tensor in {"weight": torch.ones(1, 2), "bias": torch.ones(1)}.items()
        }
        zerocopy.assign(module, state_dict)
        assert [parameter.requires_grad for parameter in module.parameters()] == [wanted, wanted]
        if kind is nn.Parameter:
            assert module.weight is state_dict["weight"] and module.bias is state_dict["bias"]
        assert_plain(module)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("count", torch.tensor(0))


def test_scalars_of_long_ago() -> None:
    """Before PyTorch 0.4 scalars were tensors of one element."""
    state_dict = {"factor": torch.tensor([5.0]), "count": torch.tensor([7])}
    module = assert_as_stock(Scalar, state_dict)
    assert module.factor.shape == module.count.shape == ()
    assert module.factor.data_ptr() == state_dict["factor"].data_ptr()


# ------------------------------------------------------------------------ tied parameters


def tied(*, count: int = 2) -> nn.ModuleList:
    module = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(count))
    for each in module:
        each.weight = module[0].weight
    return module


def test_ties_stay_where_the_memory_is_the_same(trained: Net, save: Saver) -> None:
    path = save(trained.state_dict())
    for state_dict in (trained.state_dict(), zerocopy.load(path), torch.load(path)):
        assert state_dict["head.weight"] is not state_dict["embed.weight"]
        net = Net("meta")
        zerocopy.assign(net, state_dict)
        assert net.head.weight is net.embed.weight
        assert len(list(net.parameters())) == len(list(trained.parameters()))
    with torch.no_grad():
        net.embed.weight[0] = 9
    assert net.head.weight[0].tolist() == [9] * 4


def test_ties_are_those_of_module_and_state_dict() -> None:
    """As torch's own assign=True: different tensors end a tie, and none is lost."""
    module, parameter = tied(count=3), nn.Parameter(torch.ones(2, 2))
    zerocopy.assign(module, {f"{index}.weight": parameter for index in range(3)})
    assert module[0].weight is module[1].weight is module[2].weight is parameter
    first, second = torch.zeros(2, 2), torch.ones(2, 2)
    zerocopy.assign(module, {"0.weight": first, "1.weight": second, "2.weight": second.detach()})
    assert [each.weight.data_ptr() for each in module] == [t.data_ptr() for t in (first, second, second)]
    assert module[1].weight is module[2].weight
    untied = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    zerocopy.assign(untied, {"0.weight": first, "1.weight": first})
    assert untied[0].weight is not untied[1].weight
    assert untied[0].weight.data_ptr() == untied[1].weight.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("present", [None, 0, 1, 2])
def test_tie_needs_one_key_only(present: int | None) -> None:
    """As copying does, which fills the one parameter that there is. Without any key, the tie stays."""
    module, tensor = tied(count=3), torch.ones(2, 2)
    before = module[0].weight
    given = {} if present is None else {f"{present}.weight": tensor}
    found = zerocopy.assign(module, given, strict=False)
    assert found.missing_keys == [f"{index}.weight" for index in range(3) if index != present]
    assert module[0].weight is module[1].weight is module[2].weight
    assert module[0].weight.data_ptr() == (before if present is None else tensor).data_ptr()


def test_tied_buffers() -> None:
    module = nn.ModuleList([nn.Module(), nn.Module()])
    buffer = torch.zeros(3)
    for each in module:
        each.register_buffer("mask", buffer)
    given = torch.ones(3)
    zerocopy.assign(module, {"0.mask": given, "1.mask": given[:]})
    assert module[0].mask is module[1].mask is given


# ------------------------------------------------------------------------ modules with their own ways


class Renamed(nn.Module):
    """Reads what an older release of itself wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.child = nn.Linear(1, 1)
        self._register_load_state_dict_pre_hook(self._rename)

    def _rename(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        assert all(isinstance(value, torch.Tensor) for value in state_dict.values())
        for old in [key for key in state_dict if key.startswith(f"{prefix}old_")]:
            state_dict[prefix + old[len(prefix) + len("old_") :]] = state_dict.pop(old)


@pytest.mark.parametrize("prefix", ["", "0."])
def test_hooks_that_rename(prefix: str) -> None:
    state_dict = {
        f"{prefix}old_weight": torch.ones(3),
        f"{prefix}old_child.weight": torch.full((1, 1), 2.0),
        f"{prefix}child.bias": torch.full((1,), 3.0),
    }
    module = assert_as_stock(Renamed if not prefix else lambda: nn.Sequential(Renamed()), state_dict)
    assert module.state_dict()[f"{prefix}weight"].data_ptr() == state_dict[f"{prefix}old_weight"].data_ptr()


class Extra(nn.Linear):
    seen: Any = None

    def get_extra_state(self) -> Any:
        return {"calls": torch.ones(2), "name": "x"}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def test_extra_state_is_given_to_the_module(save: Saver) -> None:
    for extra in ({"calls": torch.ones(2)}, torch.ones(2), None):
        state_dict = nn.Sequential(Extra(2, 1)).state_dict()
        state_dict["0._extra_state"] = extra
        module = nn.Sequential(Extra(2, 1))
        assert zerocopy.assign(module, state_dict) == ([], [])
        assert module[0].seen is extra
    state_dict.pop("0._extra_state")
    assert_as_stock(lambda: nn.Sequential(Extra(2, 1)), state_dict, strict=False)
    module = Extra(2, 1)
    zerocopy.load_model(module, save({"_extra_state": {"calls": torch.ones(2)}}), strict=False)
    assert module.seen["calls"].tolist() == [1, 1]


class OwnWay(nn.Module):
    """Holds a value that is neither parameter nor buffer, and one usual parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.packed: Any = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.packed = state_dict.pop(prefix + "packed") * 2
        super()._load_from_state_dict(state_dict, prefix, *rest)


class NoSuper(nn.Module):
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.packed = state_dict[prefix + "packed"]


def test_modules_that_load_in_their_own_way() -> None:
    state_dict = {"0.weight": torch.ones(2), "0.packed": torch.ones(4), "1.packed": torch.ones(5)}
    module = nn.Sequential(OwnWay(), NoSuper())
    zerocopy.assign(module, state_dict)
    assert module[0].weight.data_ptr() == state_dict["0.weight"].data_ptr()
    assert module[0].packed.tolist() == [2] * 4 and type(module[0].packed) is torch.Tensor
    assert module[1].packed is state_dict["1.packed"]


class Wrapper(nn.Module):
    """Has a load_state_dict of before assign=."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.net = Net(device)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        return super().load_state_dict({f"net.{name}": value for name, value in state_dict.items()}, strict)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_load_state_dict_that_knows_no_assign(trained: Net, device: str) -> None:
    module, state_dict = Wrapper(device), trained.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zerocopy.assign(module, state_dict)
    assert module.net.embed.weight.data_ptr() == state_dict["embed.weight"].data_ptr()
    assert module.net.head.weight is module.net.embed.weight
    assert_plain(module)
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


def test_recurrent_layers() -> None:
    """They keep a list of their parameters beside them."""
    trained, module = nn.LSTM(3, 4), nn.LSTM(3, 4)
    zerocopy.assign(module, trained.state_dict())
    assert all(
        ours is module._parameters[name]
        for ours, name in zip(module._flat_weights, module._flat_weights_names, strict=True)
    )
    given = torch.rand(2, 1, 3)
    assert torch.equal(module(given)[0], trained(given)[0])


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


@stock_assigns
def test_swap_of_tensors(trained: Net) -> None:
    """The module's tensors stay the objects that they are, and optimizers go on with them."""
    net, state_dict = Net(), trained.state_dict()
    before = {name: id(tensor) for name, tensor in held(net).items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        zerocopy.assign(net, state_dict)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert before == {name: id(tensor) for name, tensor in held(net).items()}
    assert net.embed.weight.data_ptr() == state_dict["embed.weight"].data_ptr()
    assert net.head.weight is net.embed.weight
    assert_same(net, trained)


# ------------------------------------------------------------------------ state dicts of other kinds


def test_placeholders_do_not_get_into_a_module(trained: Net, save: Saver) -> None:
    entries = {**trained.state_dict(), "embed.weight": nn.Parameter(trained.embed.weight.detach())}
    path, net = save(entries), Net("meta")
    lazy = zerocopy.lazy_load(path)
    zerocopy.assign(net, lazy)
    assert_plain(net)
    assert_in_file(net, path)
    assert net.head.weight is net.embed.weight is lazy["embed.weight"].materialize()
    assert net.scale is lazy["scale"].materialize()


def test_any_mapping(trained: Net) -> None:
    assert_as_stock(Net, types.MappingProxyType(trained.state_dict()))


# ------------------------------------------------------------------------ files


def assert_in_file(module: nn.Module, path: Path) -> None:
    for name, tensor in module.state_dict().items():
        assert lies_in_mapping(tensor.data_ptr(), path), name


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_load_model_maps_the_file(trained: Net, save: Saver, device: str) -> None:
    path, net = save(trained.state_dict()), Net(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(zerocopy.load_model(net, path)) == "<All keys matched successfully>"
    assert_in_file(net, path)
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
    zerocopy.load_model(net, save(trained.state_dict()), device="meta")
    assert not assign or all(tensor.is_meta for tensor in net.state_dict().values())


def test_load_model_passes_arguments_on(trained: Net, save: Saver) -> None:
    path, net = save(trained.state_dict()), Net()
    zerocopy.load_model(net, path, backend="pread")
    assert not lies_in_mapping(net.embed.weight.data_ptr(), path)
    with pytest.raises(TypeError, match="nonsense"):
        zerocopy.load_model(net, path, nonsense=1)
    assert zerocopy.load_model(Net(), path.read_bytes()) == ([], [])
    with path.open("rb") as file:
        zerocopy.load_model(net, file)
    assert_in_file(net, path)


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


def test_training_leaves_the_file_alone(trained: Net, save: Saver) -> None:
    path, net = save(trained.state_dict()), Net("meta")
    before = digest(path)
    zerocopy.load_model(net, path)
    for each in (net, trained):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.5)
        each(TOKENS).square().sum().backward()
        optimizer.step()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name
    assert_in_file(net, path)
    assert digest(path) == before
    assert not torch.equal(net.embed.weight, zerocopy.load(path)["embed.weight"])


# ----------------------------------------------------------------------------- ties of .safetensors


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
