"""Modules: ties, views, hooks, buffers, equal initialisations, modes, parametrizations."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from share_catalog.case import explicit, patched


def filled(module: nn.Module) -> nn.Module:
    """Give parameters values that no generator has drawn."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(
                torch.arange(float(parameter.numel())).reshape(parameter.shape) / parameter.numel() + i
            )
    return module


class Lora(nn.Module):
    """A layer with a low rank adapter, whose `b` begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 512, bias=False)
        self.a, self.b = nn.Parameter(torch.ones(16, 64)), nn.Parameter(torch.zeros(512, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


def _train_lora(layers: nn.Sequential) -> Any:
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for layer in layers:
        layer(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    return [layer.b.detach().clone() for layer in layers], layers


@explicit(after=_train_lora, always=True)
def adapters_that_begin_with_zeros() -> Any:
    return nn.Sequential(*(filled_base(Lora()) for _ in range(6)))


def filled_base(layer: Lora) -> Lora:
    filled(layer.base)
    return layer


def _zero_student(models: dict[str, nn.Module]) -> Any:
    with torch.no_grad():
        for parameter in models["student"].parameters():
            parameter.zero_()
    return models


@explicit(after=_zero_student, always=True)
def student_zeroed_beside_its_teacher() -> Any:
    student = filled(nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128)))
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    return {"student": student, "teacher": teacher}


@explicit()
def normalisations_with_equal_weights() -> Any:
    return nn.ModuleList(nn.LayerNorm(5000) for _ in range(5))


@explicit()
def batch_norm_with_buffers() -> Any:
    return nn.ModuleList(nn.BatchNorm1d(5000) for _ in range(3))


class Tied(nn.Module):
    """An embedding and a head with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.arange(5000))
        self.register_buffer("scratch", torch.zeros(8192), persistent=False)
        self.register_buffer("absent", None)
        self.register_parameter("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


@explicit()
def tied_embedding_and_head() -> Any:
    return filled(Tied())


def _train_tied(module: Tied) -> Any:
    module(torch.arange(10)).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    return module.embedding.weight is module.head.weight, module


@explicit(after=_train_tied)
def tied_weights_after_a_step() -> Any:
    return filled(Tied())


@explicit()
def buffer_that_is_a_view_of_a_parameter() -> Any:
    module = filled(nn.Linear(100, 100))
    module.register_buffer("row", module.weight.detach()[3])
    module.register_buffer("transposed", module.weight.data.t())
    return module


@explicit()
def flat_parameters() -> Any:
    """Parameters that are views of one flat tensor, as in FSDP and flattened recurrent layers."""
    flat = torch.arange(20000.0)
    module = nn.Linear(100, 100)
    module.weight, module.bias = nn.Parameter(flat[:10000].view(100, 100)), nn.Parameter(flat[10000:10100])
    return {"module": module, "flat": flat}


@explicit()
def recurrent_layers() -> Any:
    return filled(nn.LSTM(40, 40, num_layers=2, bidirectional=True))


@explicit()
def transformer_encoder() -> Any:
    layer = filled(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True))
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@explicit()
def one_module_at_two_places() -> Any:
    shared = filled(nn.Linear(80, 80))
    return nn.ModuleDict(
        {"first": shared, "second": nn.Sequential(shared, nn.ReLU()), "third": copy.deepcopy(shared)}
    )


@explicit()
def modes_and_frozen_parts() -> Any:
    module = filled(nn.Sequential(nn.Linear(80, 80), nn.Dropout(0.3), nn.BatchNorm1d(80)))
    module[0].requires_grad_(False)
    module[1].eval()
    return module


def hook(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2


def pre_hook(module: nn.Module, args: Any) -> Any:
    return args


def pre_hook_with_kwargs(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return args, kwargs


def state_hook(module: nn.Module, state: Any, prefix: str, local: Any) -> None:
    state[f"{prefix}extra"] = torch.ones(1)


@explicit(after=lambda module: (module(torch.ones(1, 80)), list(module.state_dict())), always=True)
def hooks_of_modules() -> Any:
    module = filled(nn.Linear(80, 80))
    module.register_forward_hook(hook)
    module.register_forward_pre_hook(pre_hook)
    module._register_state_dict_hook(state_hook)
    return module


@explicit(since=(2, 0), after=lambda module: module(torch.ones(1, 80)))
def hooks_with_keyword_arguments() -> Any:
    module = filled(nn.Linear(80, 80))
    module.register_forward_pre_hook(pre_hook_with_kwargs, with_kwargs=True)
    module.register_forward_hook(hook, always_call=True)
    return module


def _another_hook(module: nn.Module) -> Any:
    handle = module.register_forward_hook(hook)
    both = module(torch.ones(1, 80))
    handle.remove()
    return both, module(torch.ones(1, 80)), module


@explicit(after=_another_hook)
def hook_beside_a_new_hook() -> Any:
    module = filled(nn.Linear(80, 80))
    module.register_forward_hook(hook)
    return module


def _remove(module: nn.Module) -> Any:
    module.handle.remove()
    return module(torch.ones(1, 80)), module


@explicit(after=_remove, may_refuse=True)
def handle_of_a_hook() -> Any:
    module = filled(nn.Linear(80, 80))
    module.handle = module.register_forward_hook(hook)
    return module


@explicit()
def hooks_of_one_function_on_many_modules() -> Any:
    modules = nn.ModuleList(filled(nn.Linear(10, 10)) for _ in range(5))
    for module in modules:
        module.register_forward_hook(hook)
        module.register_forward_hook(hook)
    return modules


@explicit(after=lambda module: (module(torch.ones(2, 80)), module.weight), may_refuse=True)
def parametrized() -> Any:
    module = filled(nn.Linear(80, 80))
    torch.nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    return module


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def _with_weight_norm() -> nn.Module:
    return torch.nn.utils.weight_norm(filled(nn.Linear(80, 80)))


@explicit(after=lambda module: module(torch.ones(2, 80)), may_refuse=True)
def weight_norm() -> Any:
    return _with_weight_norm()


@explicit(after=lambda module: module(torch.ones(2, 80)))
def pruned() -> Any:
    from torch.nn.utils import prune

    module = nn.Linear(80, 80)
    with torch.no_grad():
        module.weight.copy_(torch.arange(6400.0).reshape(80, 80))
        module.bias.fill_(1)
    prune.ln_structured(module, "weight", 0.5, n=2, dim=0)
    module.weight = module.weight.detach()
    return module


@explicit(since=(2, 0))  # before, torch itself loses names of hooks when it pickles them
def lazy_modules() -> Any:
    return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d())


@explicit(since=(2, 0))
def modules_on_meta() -> Any:
    with torch.device("meta"):
        return nn.Linear(1000, 1000)


@explicit()
def module_with_attributes() -> Any:
    module = filled(nn.Linear(80, 80))
    module.config, module.parent, module.alias = {"depth": 3}, [module], module.weight
    module.cache = torch.zeros(8192)
    module.bias.note = "kept"
    return module


@explicit()
def parameter_lists() -> Any:
    zeros = [nn.Parameter(torch.zeros(8192)) for _ in range(3)]
    return nn.ModuleDict(
        {"list": nn.ParameterList([*zeros, zeros[0]]), "dict": nn.ParameterDict({"a": zeros[1]})}
    )


@explicit()
def half_precision() -> Any:
    return filled(nn.Sequential(nn.Linear(120, 120), nn.LayerNorm(120))).to(torch.bfloat16)


@explicit(may_refuse=True)
def dynamically_quantized() -> Any:
    module = filled(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)))
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear})


@explicit(after=lambda module: module(torch.ones(2, 80)))
def scripted() -> Any:
    return torch.jit.script(filled(nn.Linear(80, 80)))


@explicit(may_refuse=True)
def traced_graph() -> Any:
    import torch.fx

    return torch.fx.symbolic_trace(filled(nn.Sequential(nn.Linear(80, 80), nn.ReLU())))


@explicit(may_refuse=True)
def module_with_gradients() -> Any:
    module = filled(nn.Linear(128, 128))
    module(torch.ones(2, 128)).sum().backward()
    return module


def _update(pair: dict[str, Any]) -> Any:
    averaged, module = pair["averaged"], pair["module"]
    averaged.update_parameters(module)
    return pair


@explicit(after=_update)
def averaged_model() -> Any:
    module = filled(nn.Linear(128, 128))
    return {"module": module, "averaged": torch.optim.swa_utils.AveragedModel(module)}


def _save_module(folder: Path) -> None:
    torch.save(filled(Tied()), folder / "module.pt")
    torch.save({"a": filled(nn.Linear(100, 100)), "b": filled(nn.Linear(100, 100))}, folder / "two.pt")


@patched(prepare=_save_module, always=True)
def whole_module_by_torch_load(folder: Path) -> Any:
    return torch.load(folder / "module.pt", **_trusting())


@patched(prepare=_save_module, is_shared=True)
def equal_modules_by_torch_load(folder: Path) -> Any:
    return torch.load(folder / "two.pt", **_trusting())


def _trusting() -> dict[str, bool]:
    return {"weights_only": False}


def _save_script(folder: Path) -> None:
    torch.jit.save(torch.jit.script(filled(Tied())), folder / "module.pt")


@patched(prepare=_save_script, after=lambda module: module(torch.arange(3)))
def module_by_jit_load(folder: Path) -> Any:
    return torch.jit.load(folder / "module.pt")
