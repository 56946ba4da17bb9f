"""Parameters, buffers, Python attributes, and classes derived from Tensor."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from kinds.kind import Group, Kind


def with_attributes(tensor: Any) -> Any:
    """Give a tensor attributes of several types, a tensor among them."""
    tensor.tag, tensor.sizes, tensor.mask = "metre", {"rank": [0, 1]}, torch.tensor([True, False])
    return tensor


def parameter(**options: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.arange(3.0), **options)


def hooked() -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(print)
    return leaf


def after_backward() -> list[torch.nn.Parameter]:
    leaf = parameter()
    leaf.sum().backward()
    return [leaf, leaf.grad]


def non_leaf() -> torch.Tensor:
    """Return a result of a computation; torch.save warns nothing and forgets the graph."""
    return parameter() * 2


class Tagged(torch.Tensor):
    """The plainest subclass."""


class Slotted(torch.Tensor):
    """Its attribute is in a slot."""

    __slots__ = ("unit",)


class Defaulted(torch.Tensor):
    """Its class has a value for what an instance may lack, and a method that its state hides."""

    unit = None

    def scale(self) -> float:
        return 1.0


class WithState(torch.Tensor):
    """Writes its state itself."""

    def __setstate__(self, state: Any) -> None:
        self.unit = f"{state['unit']}!"

    def __getstate__(self) -> Any:
        return {"unit": self.unit}


class Reduced(torch.Tensor):
    """Says itself how it is made."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return remake, (self.as_subclass(torch.Tensor), getattr(self, "unit", None))


def remake(data: torch.Tensor, unit: str | None) -> Reduced:
    made = data.as_subclass(Reduced)
    made.unit = unit
    return made


class TaggedParameter(torch.nn.Parameter):
    """A subclass of Parameter."""


class Outer:
    """Holds a class whose qualified name has a dot."""

    class Inner(torch.Tensor):
        """A subclass inside of another class."""


class Pair(torch.Tensor):
    """A wrapper subclass: a shape, and two tensors that it is made of."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __repr__(self) -> str:
        return "Pair"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrapped(value: Any) -> Any:
            return value.a if isinstance(value, Pair) else value

        if func is torch.ops.aten.detach.default:
            return type(args[0])(args[0].a, args[0].b)
        return func(*map(unwrapped, args), **(kwargs or {}))


class ReducedPair(Pair):
    """A wrapper subclass that is pickled as its parts, as most libraries do it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return repair, (self.a, self.b)


def repair(a: torch.Tensor, b: torch.Tensor) -> ReducedPair:
    return ReducedPair(a, b)


def subclass(cls: type, **attributes: Any) -> Any:
    made = torch.arange(3.0).as_subclass(cls)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def quietly(made: Any, path: Any) -> None:
    """Save what torch.save warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(made, path)


FLAGS = Group(
    "Parameters, buffers, flags, attributes",
    (
        Kind("requires grad", lambda: torch.ones(2, requires_grad=True)),
        Kind("result of a computation", non_leaf),
        Kind("parameter", parameter),
        Kind("parameter that does not require grad", lambda: parameter(requires_grad=False)),
        Kind(
            "parameter of integers",
            lambda: torch.nn.Parameter(torch.arange(3), requires_grad=False),
        ),
        Kind("parameter of complex numbers", lambda: torch.nn.Parameter(torch.ones(2) * 1j)),
        Kind("parameter of a conjugate view", lambda: torch.nn.Parameter((torch.ones(2) * 1j).conj())),
        Kind("parameter after backward, and its grad", after_backward),
        Kind("parameter with attributes", lambda: with_attributes(parameter())),
        Kind("tensor with attributes", lambda: with_attributes(torch.ones(2))),
        Kind(
            "tensor with attributes that requires grad",
            lambda: with_attributes(torch.ones(2)).requires_grad_(),
        ),
        Kind("sparse tensor with attributes", lambda: with_attributes(torch.eye(2).to_sparse())),
        Kind(
            "quantized tensor with attributes",
            lambda: with_attributes(torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)),
        ),
        Kind("meta tensor with attributes", lambda: with_attributes(torch.empty(2, device="meta"))),
        Kind("tensor that is its own attribute", lambda: own_attribute()),
        Kind("tensor with a backward hook", hooked, write=quietly),
        Kind("buffer", lambda: torch.nn.Buffer(torch.ones(2)), needs="torch.nn.Buffer"),
        Kind(
            "buffer, not persistent",
            lambda: torch.nn.Buffer(torch.ones(2), persistent=False),
            needs="torch.nn.Buffer",
        ),
        Kind("uninitialized parameter", lambda: torch.nn.UninitializedParameter()),
        Kind("uninitialized buffer", lambda: torch.nn.parameter.UninitializedBuffer()),
    ),
)


def own_attribute() -> torch.Tensor:
    made = torch.ones(2)
    made.me = made
    return made


def dtensor() -> Any:
    """Return a DTensor of a mesh of one; the process group lives on, since loading one needs it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(torch.arange(6.0).view(2, 3), init_device_mesh("cpu", (1,)), [Replicate()])


def two_tensor() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.arange(3.0), torch.ones(3))


SUBCLASSES = Group(
    "Subclasses of Tensor",
    (
        Kind("subclass", lambda: subclass(Tagged)),
        Kind("subclass, allowed", lambda: subclass(Tagged), allow=lambda: [Tagged]),
        Kind("subclass with attributes", lambda: with_attributes(subclass(Tagged))),
        Kind(
            "subclass with attributes, allowed",
            lambda: with_attributes(subclass(Tagged)),
            allow=lambda: [Tagged],
        ),
        Kind(
            "subclass that requires grad", lambda: subclass(Tagged).requires_grad_(), allow=lambda: [Tagged]
        ),
        Kind("subclass with a slot", lambda: subclass(Slotted, unit="metre"), allow=lambda: [Slotted]),
        Kind(
            "subclass with defaults",
            lambda: subclass(Defaulted, unit="metre", scale=2.0),
            allow=lambda: [Defaulted],
        ),
        Kind("subclass with __setstate__", lambda: subclass(WithState, unit="m"), allow=lambda: [WithState]),
        Kind("subclass with __reduce_ex__", lambda: subclass(Reduced, unit="metre")),
        Kind(
            "subclass with __reduce_ex__, allowed",
            lambda: subclass(Reduced, unit="metre"),
            allow=lambda: [remake],
        ),
        Kind("subclass inside of a class", lambda: subclass(Outer.Inner)),
        Kind("subclass of Parameter", lambda: TaggedParameter(torch.ones(2))),
        Kind(
            "subclass of Parameter, allowed",
            lambda: TaggedParameter(torch.ones(2)),
            allow=lambda: [TaggedParameter],
        ),
        Kind("subclass, tied", lambda: [(made := subclass(Tagged)), made, made.as_subclass(torch.Tensor)]),
        Kind("wrapper subclass", lambda: Pair(torch.ones(2, 3), torch.zeros(2, 3))),
        Kind(
            "wrapper subclass, allowed",
            lambda: Pair(torch.ones(2, 3), torch.zeros(2, 3)),
            allow=lambda: [Pair],
        ),
        Kind("wrapper subclass with __reduce_ex__", lambda: ReducedPair(torch.ones(2), torch.zeros(2))),
        Kind(
            "wrapper subclass with __reduce_ex__, allowed",
            lambda: ReducedPair(torch.ones(2), torch.zeros(2)),
            allow=lambda: [repair],
        ),
        Kind("TwoTensor", two_tensor, needs="torch.testing._internal.two_tensor.TwoTensor"),
        Kind("DTensor", dtensor, needs="torch.distributed.tensor.DTensor"),
    ),
)
