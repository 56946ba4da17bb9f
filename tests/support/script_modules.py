"""Programs of many kinds for ``torch.jit.save``: each a module and what to call it with."""

# ruff: noqa: UP006, UP045  (torch.jit.script reads the annotations, and of 1.13 only these)
import enum
from collections.abc import Callable
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import torch

Program = tuple[Any, tuple[Any, ...]]


class Point(NamedTuple):
    x: torch.Tensor
    scale: float


@torch.jit.script
class Pair:
    def __init__(self, first: torch.Tensor, second: int):
        self.first = first
        self.second = second


class Attributes(torch.nn.Module):
    """All sorts of values beside the tensors; "0" is the key of a storage too."""

    table: Dict[str, torch.Tensor]
    numbered: Dict[int, List[float]]
    point: Point
    maybe: Optional[torch.Tensor]
    pair: Pair

    def __init__(self) -> None:
        super().__init__()
        self.name = "0"
        self.other_name = "1"
        self.table = {"0": torch.ones(2), "b": torch.arange(2.0)}
        self.numbered = {1: [1.0, 2.5], -7: []}
        self.point = Point(torch.full((2,), 3.0), 0.5)
        self.maybe = None
        self.pair = Pair(torch.full((2,), 0.25), 9)
        self.z = 1 + 2j
        self.large = 1 << 60
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, str, Dict[int, List[float]], int]:
        y = self.linear(x) + self.table["0"] * self.point.scale + self.point.x + self.pair.first
        if self.maybe is not None:
            y = y + 1
        return y, self.name + self.other_name, self.numbered, self.pair.second + self.large

    @torch.jit.export
    def times(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return self.linear(x) * n


class Tied(torch.nn.Module):
    """Two names of one parameter, and views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)
        self.other.weight = self.one.weight
        base = torch.arange(24.0)
        self.register_buffer("whole", base)
        self.register_buffer("part", base[4:20].view(4, 4).t())
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x) @ self.part + self.whole[:4] * self.frozen


class Types(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for dtype in (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.complex64,
            torch.int8,
            torch.int64,
            torch.bool,
            torch.uint8,
        ):
            self.register_buffer("of_" + str(dtype).partition(".")[2], torch.ones(3).to(dtype))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.qint8))
        self.register_buffer("strided", torch.arange(12.0).view(3, 4)[:, ::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            x * self.scalar + self.of_float64.sum() + self.of_int8.sum() + self.quantized.dequantize().sum()
        )


class Shade(enum.Enum):
    LIGHT = 1
    DARK = 2


class Odd(torch.nn.Module):
    """Values that torch.save writes differently: newer dtypes, lazy bits, enumerations."""

    def __init__(self) -> None:
        super().__init__()
        for name in (
            "complex32",
            "uint16",
            "uint32",
            "uint64",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e8m0fnu",
        ):
            if dtype := getattr(torch, name, None):
                width = torch.empty(0, dtype=dtype).element_size()
                self.register_buffer("of_" + name, torch.arange(width * 3, dtype=torch.uint8).view(dtype))
        self.register_buffer("conjugate", torch.tensor([1 + 2j, 3j]).conj())
        self.register_buffer("negative", torch.tensor([1 + 2j, 3j]).conj().imag)
        self.shade = Shade.DARK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conjugate.real.sum() + self.negative.sum() if self.shade == Shade.DARK else x


class Constants(torch.nn.Module):
    """Tracing makes constants of tensors that are not attributes. They have keys like parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.constants = [torch.full((3,), float(i + 1)) for i in range(3)]
        self.shared = self.constants[0][1:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for constant in self.constants:
            x = self.linear(x) + constant
        return x[:, 1:] + self.shared


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv1d(2, 3, 2),
        torch.nn.BatchNorm1d(3),
        torch.nn.Dropout(),
        torch.nn.Flatten(),
        torch.nn.Linear(9, 2),
    )


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + torch.tensor([0.5, 0.25])


def _quantized() -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4))
    return torch.jit.script(torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}))


X = torch.ones(2, 3)
IMAGE = torch.arange(16.0).view(2, 2, 4) / 16

PROGRAMS: dict[str, Callable[[], Program]] = {
    "scripted": lambda: (torch.jit.script(torch.nn.Linear(3, 2)), (X,)),
    "traced": lambda: (torch.jit.trace(torch.nn.Linear(3, 2), X), (X,)),
    "frozen": lambda: (torch.jit.freeze(torch.jit.script(network().eval())), (IMAGE,)),
    "frozen and traced": lambda: (torch.jit.freeze(torch.jit.trace(Constants().eval(), X)), (X,)),
    "evaluating": lambda: (torch.jit.script(network().eval()), (IMAGE,)),
    "optimized for inference": lambda: (
        torch.jit.optimize_for_inference(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2)).eval())),
        (X,),
    ),
    "constants beside parameters": lambda: (torch.jit.trace(Constants(), X), (X,)),
    "attributes": lambda: (torch.jit.script(Attributes()), (torch.ones(1, 2),)),
    "ties": lambda: (torch.jit.script(Tied()), (torch.ones(4, 4),)),
    "types": lambda: (torch.jit.script(Types()), (torch.ones(3),)),
    "odd types": lambda: (torch.jit.script(Odd()), (torch.ones(3),)),
    "quantized": lambda: (_quantized(), (X,)),
    "nothing but code": lambda: (torch.jit.script(torch.nn.ReLU()), (X,)),
    "a function": lambda: (torch.jit.script(double), (torch.ones(3, 2),)),
    "no code": lambda: (torch.jit.script(torch.nn.Module()), ()),
}
