"""Objects that training saves: state dicts, optimizers, schedulers, scalers, whole modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kinds.kind import REPACKED, Group, Kind


class Net(torch.nn.Module):
    """Embedding, normalization, tied weights, buffers of three sorts, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        self.register_parameter("nothing", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens)))


class WithExtraState(torch.nn.Linear):
    """Values that are not tensors, as quantization libraries keep them."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return {"step": 7, "scale": torch.tensor([0.5]), "recipe": "e4m3"}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def stepped(make: Callable[[Any], torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer after one step."""
    net = Net()
    optimizer = make(net.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(torch.arange(8)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return optimizer


def sparse_adam() -> Any:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    embedding(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.AdamW([{"params": [first], "lr": 0.5}, {"params": rest}], amsgrad=True, lr=0.01)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW of two groups": groups,
    "Adam, lr a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
}
_NEEDS = {"Adafactor": "torch.optim.Adafactor"}


def scheduled(make: Callable[[Any], Any]) -> dict[str, Any]:
    optimizer = stepped(OPTIMIZERS["SGD with momentum"])
    scheduler = make(optimizer)
    optimizer.step()
    scheduler.step(*(0.5,) * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))
    return scheduler.state_dict()


def in_sequence(optimizer: Any) -> Any:
    lrs = torch.optim.lr_scheduler
    parts = [lrs.ConstantLR(optimizer, total_iters=2), lrs.ExponentialLR(optimizer, 0.9)]
    return lrs.SequentialLR(optimizer, parts, milestones=[2])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=9),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    "SequentialLR": in_sequence,
}


def scaler() -> dict[str, Any]:
    made = torch.amp.GradScaler("cpu")
    made.scale(torch.ones(1))
    return made.state_dict()


def averaged() -> Any:
    made = torch.optim.swa_utils.AveragedModel(Net())
    made.update_parameters(Net())
    return made.state_dict()


def quantized_linear() -> Any:
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(4, 2)))


def checkpoint() -> dict[str, Any]:
    """Return what a training script writes."""
    optimizer = stepped(OPTIMIZERS["Adam"])
    return {
        "model": Net().state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduled(SCHEDULERS["StepLR"]),
        "epoch": 3,
        "random": torch.Generator().get_state(),
        "args": {"lr": 0.1, "layers": [1, 2], "resume": None, "amp": True},
    }


def weight_norm() -> torch.nn.Module:
    return torch.nn.utils.weight_norm(torch.nn.Linear(3, 2))


def orthogonal() -> torch.nn.Module:
    return torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3))


STATE = Group(
    "State of modules, optimizers and schedulers",
    (
        Kind("state_dict", lambda: Net().state_dict()),
        Kind("state_dict with extra state", lambda: torch.nn.Sequential(WithExtraState(2, 3)).state_dict()),
        Kind("state_dict of half precision", lambda: Net().half().state_dict()),
        Kind("state_dict of parameters (keep_vars)", lambda: Net().state_dict(keep_vars=True)),
        Kind("state_dict of weight_norm", lambda: weight_norm().state_dict()),
        Kind("state_dict of a parametrized module", lambda: orthogonal().state_dict()),
        Kind("state_dict of a dynamically quantized module", lambda: quantized_linear().state_dict()),
        Kind("state_dict of AveragedModel", averaged),
        *(
            Kind(
                f"optimizer: {name}", lambda make=make: stepped(make).state_dict(), needs=_NEEDS.get(name, "")
            )
            for name, make in OPTIMIZERS.items()
        ),
        Kind("optimizer: SparseAdam", sparse_adam),
        *(Kind(f"scheduler: {name}", lambda make=make: scheduled(make)) for name, make in SCHEDULERS.items()),
        Kind("GradScaler", scaler, needs="torch.amp.GradScaler"),
        Kind("checkpoint of a training script", checkpoint),
    ),
)


def with_hooks() -> torch.nn.Module:
    made = Net()
    made.head.register_forward_hook(hook)
    made.register_forward_pre_hook(hook)
    return made


def hook(*arguments: Any) -> None:
    """Stand for what a user registers."""


def seeded(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return make()


def same_quantized(loaded: Any, expected: Any) -> None:
    """Compare modules whose weights only fbgemm or qnnpack can read."""
    assert repr(loaded) == repr(expected)
    data = torch.arange(8.0).view(2, 4)
    assert torch.equal(loaded(data), expected(data))


def parameter_containers() -> torch.nn.Module:
    parameters = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(3)]
    return torch.nn.ModuleList(
        [torch.nn.ParameterList(parameters), torch.nn.ParameterDict({"a": parameters[0]})]
    )


def whole() -> list[Any]:
    net = Net()
    return [net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)]


def traced() -> torch.nn.Module:
    return torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))


def same_graph(loaded: Any, expected: Any) -> None:
    """Compare two traced modules; their graphs are rebuilt from code when they are loaded."""
    assert type(loaded).__name__ == type(expected).__name__ and loaded.code == expected.code
    from equality import assert_same

    assert_same(loaded.state_dict(), expected.state_dict())


MODULES = Group(
    "Whole modules",
    (
        Kind("module of one's own", Net),
        Kind("module, in training, with grads", lambda: stepped(OPTIMIZERS["SGD"]).param_groups),
        Kind(
            "Sequential",
            lambda: seeded(lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())),
        ),
        Kind("LSTM", lambda: seeded(lambda: torch.nn.LSTM(3, 4, 2, bidirectional=True))),
        Kind(
            "Conv2d in channels_last", lambda: torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        ),
        Kind("MultiheadAttention", lambda: torch.nn.MultiheadAttention(4, 2)),
        Kind("Transformer", lambda: torch.nn.Transformer(8, 2, 1, 1, 16)),
        Kind(
            "EmbeddingBag and BatchNorm",
            lambda: torch.nn.ModuleList([torch.nn.EmbeddingBag(5, 3), torch.nn.BatchNorm2d(3)]),
        ),
        Kind("ParameterList and ParameterDict", lambda: parameter_containers()),
        Kind("module with hooks", with_hooks),
        Kind("module with weight_norm", weight_norm),
        Kind("parametrized module", orthogonal),
        Kind("lazy module", lambda: torch.nn.LazyLinear(3)),
        Kind("dynamically quantized module", quantized_linear, placed=REPACKED, same=same_quantized),
        Kind("module traced by torch.fx", traced, same=same_graph),
        Kind("module compiled by torch.jit, in torch.save", lambda: torch.jit.script(torch.nn.Linear(2, 2))),
        Kind("loss and activation", lambda: [torch.nn.CrossEntropyLoss(torch.ones(3)), torch.nn.GELU()]),
        Kind("whole optimizer", lambda: stepped(OPTIMIZERS["Adam"])),
        Kind("whole model and optimizer", lambda: whole()),
    ),
)
