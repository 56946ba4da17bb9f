"""Tensors of every kind: dtypes, layouts, views, flags, subclasses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from share_catalog.case import explicit, patched


def numbers(size: int = 5000) -> torch.Tensor:
    """Return a tensor of more than 16 KiB, the size from which equal contents used to be merged."""
    return torch.arange(float(size))


@explicit(always=True)
def dtypes() -> Any:
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    names += ("complex64", "complex128")
    return {name: torch.arange(3000).remainder(100).to(getattr(torch, name)) for name in names}


@explicit(since=(2, 3))
def dtypes_of_later_releases() -> Any:
    found = {name: torch.arange(64).to(getattr(torch, name)) for name in ("uint16", "uint32", "uint64")}
    return found | {
        "float8": torch.ones(20000).to(torch.float8_e4m3fn),
        "scale": torch.ones(4).to(torch.float8_e5m2),
    }


@explicit()
def small_tensors() -> Any:
    return [torch.full((i,), float(i)) for i in range(40)]


@explicit()
def scalars() -> Any:
    return [torch.tensor(3), torch.tensor(2.5), torch.tensor(True), torch.tensor(1j)]


@explicit()
def views_of_one_storage() -> Any:
    base = numbers(6000)
    return [base, base[10:], base[::3], base.view(60, 100).t(), base[:0], base[5:5], base.view(2, 3000)[1]]


@explicit()
def view_without_its_base() -> Any:
    return numbers(6000)[1000:2000]


@explicit()
def views_apart_in_different_containers() -> Any:
    base = numbers()
    return {"a": base[:100], "nested": [{"b": base[50:150]}], "c": (base.view(50, 100)[3],)}


@explicit()
def expanded() -> Any:
    base = torch.arange(3.0)
    return [base.expand(4000, 3), base[:1].expand(10000), torch.tensor(1.0).expand(2, 2)]


@explicit(always=True)
def as_strided_with_overlap() -> Any:
    base = numbers()
    return [base.as_strided((100, 100), (10, 1)), base.as_strided((10, 10), (0, 1), 7), base]


@explicit()
def one_storage_under_two_dtypes() -> Any:
    base = torch.arange(8192, dtype=torch.int32)
    return [base, base.view(torch.float32), base.view(torch.uint8), base.view(torch.int16)[3:]]


@explicit()
def storages_as_results() -> Any:
    base = numbers()
    storage = base.untyped_storage() if hasattr(base, "untyped_storage") else base.storage().untyped()
    return {"untyped": storage, "typed": base.storage(), "tensor": base, "other": numbers().storage()}


@explicit(may_refuse=True)
def frombuffer_storages_that_overlap() -> Any:
    buffer = bytearray(range(256)) * 128
    return [
        torch.frombuffer(buffer, dtype=torch.uint8),
        torch.frombuffer(buffer, dtype=torch.float32, offset=1024, count=100),
        torch.frombuffer(buffer, dtype=torch.int16, offset=20000),
    ]


@explicit(may_refuse=True)
def tensor_and_array_of_one_memory() -> Any:
    tensor = numbers()
    return [tensor, tensor.numpy(), tensor.numpy()[100:200]]


@explicit(always=True)
def equal_contents_apart() -> Any:
    """Equal bytes are not one storage."""
    return [torch.zeros(8192), torch.zeros(8192), torch.zeros(8192), numbers(), numbers().clone()]


@explicit(always=True)
def equal_contents_with_ties() -> Any:
    first, second = numbers(), numbers()
    return {"a": first, "b": second, "tie of a": first, "view of b": second[100:], "c": numbers()}


@explicit()
def equal_contents_of_two_dtypes() -> Any:
    return [torch.zeros(8192), torch.zeros(8192, dtype=torch.int32), torch.zeros(4096, dtype=torch.float64)]


@explicit()
def part_with_the_bytes_of_another() -> Any:
    whole = numbers(16384)
    return [whole, whole[4096:8192].clone(), whole[:4096].clone()]


@explicit()
def many_equal_tensors() -> Any:
    return [torch.ones(64, 64) for _ in range(300)]


@explicit()
def sparse_coo() -> Any:
    indices, values = torch.tensor([[0, 0, 2], [1, 1, 3]]), torch.tensor([1.0, 2.0, 3.0])
    uncoalesced = torch.sparse_coo_tensor(indices, values, (5000, 5))
    coalesced = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 1, 3]]), values, (5000, 5)).coalesce()
    return [uncoalesced, coalesced, torch.sparse_coo_tensor((5, 5))]


@explicit()
def sparse_csr() -> Any:
    return torch.eye(100).to_sparse_csr()


@explicit()
def sparse_with_shared_values() -> Any:
    values, indices = numbers(), torch.arange(5000)[None]
    one = torch.sparse_coo_tensor(indices, values, (5000,))
    return [one, values, indices]


@explicit()
def quantized() -> Any:
    scales, points = torch.rand(64).fill_(0.25), torch.zeros(64, dtype=torch.int64)
    base = torch.arange(64 * 300.0).reshape(64, 300).remainder(20)
    return [
        torch.quantize_per_tensor(base, 0.5, 3, torch.qint8),
        torch.quantize_per_channel(base, scales, points, 0, torch.quint8),
        torch.quantize_per_tensor(base, 0.5, 0, torch.qint32),
    ]


@explicit()
def quantized_tied() -> Any:
    base = torch.quantize_per_tensor(numbers(), 2.0, 0, torch.qint32)
    return [base, base[:100], base]


@explicit()
def conjugate_and_negative() -> Any:
    base = torch.complex(numbers(), numbers().flip(0))
    return [base, base.conj(), base.conj().imag, base[10:].conj(), base.imag, base.real]


@explicit()
def zero_sized() -> Any:
    return [torch.empty(0), torch.empty(3, 0, 2), torch.empty(0, dtype=torch.int64), torch.ones(5)[2:2]]


@explicit()
def meta_tensors() -> Any:
    return [torch.empty(1000, 1000, device="meta"), torch.nn.Parameter(torch.empty(3, device="meta"))]


@explicit()
def channels_last() -> Any:
    return torch.arange(2 * 3 * 40 * 40.0).reshape(2, 3, 40, 40).contiguous(memory_format=torch.channels_last)


@explicit()
def requires_grad_in_all_forms() -> Any:
    return [
        torch.ones(8192, requires_grad=True),
        torch.nn.Parameter(torch.ones(8192)),
        torch.nn.Parameter(torch.ones(8192), requires_grad=False),
        torch.nn.Buffer(torch.ones(3)) if hasattr(torch.nn, "Buffer") else None,
    ]


@explicit()
def parameter_and_its_data() -> Any:
    parameter = torch.nn.Parameter(numbers())
    return [parameter, parameter.data, parameter.detach()[5:], parameter]


@explicit(may_refuse=True, always=True)
def gradients_of_leaves() -> Any:
    """``.grad`` used to be lost."""
    weight, tied = torch.nn.Parameter(numbers()), torch.ones(3, requires_grad=True)
    (weight.sum() * 3 + tied.sum()).backward()
    return {"weight": weight, "tied": tied, "gradient": weight.grad}


@explicit(may_refuse=True)
def gradients_with_ties() -> Any:
    first, second = torch.nn.Parameter(numbers()), torch.nn.Parameter(numbers())
    first.grad = second.grad = numbers() * 2
    return [first, second]


@explicit(may_refuse=True)
def gradient_that_requires_grad() -> Any:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3, requires_grad=True)
    return weight


@explicit(may_refuse=True, always=True)
def non_leaf_tensors() -> Any:
    weight = torch.ones(5000, requires_grad=True)
    return {"weight": weight, "output": weight * 2, "view": weight[3:]}


@explicit(may_refuse=True)
def non_leaf_tensor_that_retains_its_gradient() -> Any:
    weight = torch.ones(3, requires_grad=True)
    output = weight * 2
    output.retain_grad()
    output.sum().backward()
    return [weight, output]


@explicit(may_refuse=True, always=True)
def inference_tensors() -> Any:
    with torch.inference_mode():
        return {"inference": torch.ones(5000), "small": torch.ones(2) * 2}


@explicit(may_refuse=True)
def inference_tensor_beside_plain_tensor() -> Any:
    plain = numbers()
    with torch.inference_mode():
        made = numbers()
        view = plain[5:]
    return [plain, made, view]


@explicit(may_refuse=True)
def parameters_made_in_inference_mode() -> Any:
    with torch.inference_mode():
        return torch.nn.Linear(4, 4).apply(_fill)


def _fill(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5)


@explicit()
def attributes_of_tensors() -> Any:
    tensor = numbers()
    tensor.note, tensor.other = {"made": "here"}, torch.ones(3)
    tensor.itself = [tensor]
    parameter = torch.nn.Parameter(torch.ones(8192))
    parameter.is_hot = True
    return [tensor, parameter, tensor.other]


@explicit()
def hooks_of_tensors() -> Any:
    tensor = torch.ones(5, requires_grad=True)
    tensor.register_hook(doubled)
    return tensor


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


class Marked(torch.Tensor):
    """A subclass without memory of its own."""


class MarkedParameter(torch.nn.Parameter):
    """A parameter's subclass."""


class Logged(torch.Tensor):
    """A subclass that has its say in every function."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, kinds, args, kwargs or {})


@explicit()
def subclasses() -> Any:
    base = numbers()
    return [base.as_subclass(Marked), MarkedParameter(torch.ones(8192)), base.as_subclass(Logged), base]


@explicit()
def subclasses_with_attributes() -> Any:
    tensor, parameter = numbers().as_subclass(Marked), MarkedParameter(torch.ones(3))
    tensor.scale, parameter.note = torch.tensor(2.0), "kept"
    return [tensor, tensor.scale, copy.copy(tensor), parameter]


@explicit()
def subclass_within_itself() -> Any:
    tensor = numbers().as_subclass(Marked)
    tensor.shared = {"tensor": tensor}
    return tensor


@explicit(since=(2, 4))
def nested_tensors() -> Any:
    parts = [torch.ones(3, 4), torch.ones(5, 4)]
    return [torch.nested.nested_tensor(parts), torch.nested.nested_tensor(parts, layout=torch.jagged)]


@explicit(may_refuse=True)
def named_tensors() -> Any:
    return torch.ones(3, 4, names=("rows", "columns"))


@explicit()
def big_tensors() -> Any:
    big = torch.arange(3_000_000, dtype=torch.int32)
    return {
        "big": big,
        "half": big[1_500_000:],
        "other": torch.zeros(2_000_000),
        "again": torch.zeros(2_000_000),
    }


@explicit()
def storage_larger_than_its_tensor() -> Any:
    return [numbers(100_000)[99_990:], torch.zeros(100_000)[::50_000]]


@explicit(may_refuse=True)
def uninitialized_parameters() -> Any:
    return torch.nn.parameter.UninitializedParameter()


def _two_files(folder: Path) -> None:
    torch.save({"w": numbers(), "z": torch.zeros(8192)}, folder / "a.pt")
    torch.save({"w": numbers(), "z": torch.zeros(8192)}, folder / "b.pt")


def _path(folder: Path) -> tuple[str]:
    return (str(folder / "a.pt"),)


@explicit(prepare=_two_files, arguments=_path, always=True)
def model_and_average_of_one_file(path: str) -> Any:
    """One file, loaded twice: the same place of it under two storages."""
    return {"model": torch.load(path), "ema": torch.load(path)}


@explicit(prepare=_two_files, arguments=lambda folder: (str(folder / "a.pt"), str(folder / "b.pt")))
def two_files_of_equal_contents(first: str, second: str) -> Any:
    return [torch.load(first), torch.load(second)]


@explicit(prepare=_two_files, arguments=_path)
def file_beside_its_clone(path: str) -> Any:
    state = torch.load(path)
    return {"state": state, "clone": {name: value.clone() for name, value in state.items()}}


@explicit(prepare=_two_files, arguments=_path)
def file_changed_in_place(path: str) -> Any:
    state = torch.load(path)
    state["w"][7] = -1.0
    return [state, torch.load(path)]


@explicit(prepare=_two_files, arguments=_path)
def file_with_ties_loaded_twice(path: str) -> Any:
    state = torch.load(path)
    return [state["w"], state["w"][5:], torch.load(path)["w"][5:], state["z"], state]


@patched(prepare=_two_files, is_shared=True, always=True)
def torch_load(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@patched(prepare=_two_files)
def torch_load_twice(folder: Path) -> Any:
    """Two calls give two objects, as the server's answer is another one each time."""
    return [torch.load(folder / "a.pt"), torch.load(folder / "a.pt"), torch.load(folder / "b.pt")]


@patched(prepare=_two_files, since=(2, 1))
def torch_load_mapped(folder: Path) -> Any:
    return torch.load(folder / "a.pt", mmap=True)


@patched(prepare=_two_files)
def torch_load_with_map_location(folder: Path) -> Any:
    return [
        torch.load(folder / "a.pt", map_location=where)
        for where in ("cpu", torch.device("cpu"), {"cpu": "cpu"})
    ]


@patched(prepare=_two_files)
def torch_load_with_function_as_map_location(folder: Path) -> Any:
    return torch.load(folder / "a.pt", map_location=lambda storage, location: storage)


@patched(prepare=_two_files, since=(2, 1))
def torch_load_to_meta(folder: Path) -> Any:
    return torch.load(folder / "a.pt", map_location="meta")


def _safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": numbers(), "z": torch.zeros(8192), "y": torch.zeros(8192)}, folder / "a.safetensors")


@patched(prepare=_safetensors, needs=("safetensors",), is_shared=True, always=True)
def safetensors_load_file(folder: Path) -> Any:
    from safetensors import torch as library

    return library.load_file(folder / "a.safetensors")


@patched(prepare=_safetensors, needs=("safetensors",))
def safetensors_load_file_twice(folder: Path) -> Any:
    from safetensors import torch as library

    return [library.load_file(folder / "a.safetensors"), library.load_file(str(folder / "a.safetensors"))]
