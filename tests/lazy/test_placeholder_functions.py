"""Functions of torch, torch.nn.functional, torch.linalg, ... take placeholders: by position, by name, in lists."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.overrides
from lazily import Named, answer, assert_all, called, same_on_both
from test_placeholder_sweep import FILES, INDEX, MASK, ROWS, SUBJECTS

pytestmark = pytest.mark.filterwarnings("ignore")  # half of torch's names are on their way out

Arguments = Callable[[Any], tuple[Any, ...]]

OF_LAYER = (True, 1, 0.0, False, False, False)  # of a recurrent layer: biases, one of it, ...

# Arguments that suit most functions, on the first subject that they accept.
USUAL: tuple[Arguments, ...] = (
    lambda t: (t,),
    lambda t: (t, t),
    lambda t: (t, 1),
    lambda t: (t, t, t),
    lambda t: ([t, t],),
    lambda t: (t, (3, 3)),
    lambda t: (t, 0, 1),
)

# Arguments of the others: subject, names, arguments. A name may stand for functions of several modules.
MORE: tuple[tuple[str, str, Arguments], ...] = (
    ("batch", "bmm conv1d", lambda t: (t, t)),
    ("batch", "baddbmm bilinear", lambda t: (t, t, t)),
    ("batch", "addbmm", lambda t: (t[0], t, t)),
    (
        "batch",
        "conv2d conv_transpose2d",
        lambda t: (t[None], t[None].transpose(0, 1)[:, :1].expand(2, 2, 3, 3)),
    ),
    (
        "batch",
        "batch_norm instance_norm",
        lambda t: (t, None, None, None, None, True, 0.1, 1e-5, False),
    ),
    ("batch", "lstm", lambda t: (t, (t[:1], t[:1]), gates(t, 4), *OF_LAYER)),
    ("float", "masked_fill", lambda t: (t, MASK, 1)),
    ("float", "masked_scatter", lambda t: (t, MASK, t)),
    ("float", "masked_select", lambda t: (t, MASK)),
    ("float", "embedding_bag multilabel_margin_loss take take_along_dim", lambda t: (t, INDEX)),
    ("float", "embedding embedding_bag", lambda t: (t, INDEX)),
    ("float", "embedding embedding_bag", lambda t: (INDEX, t)),
    ("float", "embedding_bag", lambda t: (t, INDEX[0], ROWS.new_tensor([0, 2]))),
    ("float", "gather", lambda t: (t, 0, INDEX)),
    ("float", "index_select", lambda t: (t, 0, ROWS)),
    ("float", "scatter scatter_add", lambda t: (t, 0, INDEX, t)),
    ("float", "scatter_reduce", lambda t: (t, 0, INDEX, t, "sum")),
    ("float", "index_add index_copy", lambda t: (t, 0, ROWS, t[:2])),
    ("float", "index_fill", lambda t: (t, 0, ROWS, 7.0)),
    ("float", "index_put", lambda t: (t, (ROWS,), t[:2])),
    ("float", "as_strided_copy as_strided", lambda t: (t, (2, 2), (1, 1))),
    ("float", "batch_norm", lambda t: (t, t[0], t[1])),
    ("float", "flip tile", lambda t: (t, (0,))),
    ("float", "binary_cross_entropy", lambda t: (t / 4, t / 4)),
    ("float", "nll_loss multi_margin_loss", lambda t: (t, ROWS.new_tensor([2, 0, 1]))),
    ("float", "narrow narrow_copy", lambda t: (t, 0, 1, 2)),
    (
        "float",
        "split_with_sizes split_with_sizes_copy unsafe_split_with_sizes",
        lambda t: (t, [1, 2]),
    ),
    ("float", "stft", lambda t: (t, 4, 1, None, None, True, "reflect", False, True, True)),
    ("float", "unflatten", lambda t: (t, 0, (3, 1))),
    ("complex", "imag view_as_real view_as_real_copy", lambda t: (t,)),
    ("int", "bitwise_not one_hot", lambda t: (t,)),
    (
        "int",
        "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm",
        lambda t: (t, t),
    ),
    ("vector", "bincount cartesian_prod combinations meshgrid", lambda t: (t,)),
    ("vector", "dot ger outer vdot", lambda t: (t, t)),
    ("vector", "polygamma special_polygamma", lambda t: (1, t)),
    ("float", "permute permute_copy", lambda t: (t, (1, 0))),
)


def gates(t: torch.Tensor, count: int) -> tuple[Any, ...]:
    """Return a recurrent layer's parameters."""
    return t[0].repeat(count, 1), t[0].repeat(count, 1), t[0, 0].repeat(count), t[0, 0].repeat(count)


# Not compared, and why.
LEFT_OUT: dict[str, str] = {
    name: reason
    for reason, names in {
        "their result is uninitialized": "empty_like",
        "not the same twice, with real tensors": "linalg_lstsq",
        "of programs, not of tensors": "autocast sym_ite sym_max sym_min cond while_loop",
        "instructions that not every processor has": """fbgemm_linear_fp16_weight
            fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight
            fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
            fbgemm_pack_quantized_matrix""",
    }.items()
    for name in names.split()
}


def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that ask ``__torch_function__``, by their full names."""
    found = {}
    for namespace, overridable in torch.overrides.get_overridable_functions().items():
        if not isinstance(namespace, types.ModuleType):
            continue  # torch.Tensor
        for function in overridable:
            name = getattr(function, "__name__", "_")
            if not name.startswith("_") and name not in LEFT_OUT:
                found[f"{namespace.__name__}.{name}"] = function
    return found


FUNCTIONS = functions()


def ways(name: str) -> list[tuple[str, Arguments]]:
    """Return what to call a function with: what the table says, or what most take."""
    said = [(subject, make) for subject, names, make in MORE if name in names.split()]
    return said + [("float", make) for make in USUAL]


def apply(function: Callable[..., Any], make: Arguments, t: torch.Tensor) -> Any:
    return called(function, make(t))


def succeeds(function: Callable[..., Any], subject: str, make: Arguments) -> bool:
    """Return whether a function takes the arguments that are made of a plain tensor."""
    return answer(lambda: apply(function, make, SUBJECTS[subject].clone()))[0] == "value"


def named(function: Callable[..., Any], make: Arguments, t: torch.Tensor) -> tuple[Any, ...]:
    """Return the same arguments by name, after those that torch has for testing."""
    signature = inspect.signature(torch.overrides.get_testing_overrides()[function])
    names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return (Named(zip(names, make(t), strict=False)),)


def takes_some_arguments(full_name: str) -> bool:
    """Call with the first arguments that suit a function, and with the same by name where it has names for them."""
    function, name = FUNCTIONS[full_name], full_name.rpartition(".")[2]
    for subject, make in ways(name):
        if succeeds(function, subject, make):
            assert same_on_both(FILES[subject], functools.partial(apply, function, make)) == "value"
            by_name = functools.partial(named, function, make)
            if succeeds(function, subject, by_name):
                same_on_both(FILES[subject], functools.partial(apply, function, by_name))
            return True
    same_on_both(FILES["float"], function)
    return False


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(FUNCTIONS)[::5], id="sample"),
        pytest.param(list(FUNCTIONS), id="all", marks=pytest.mark.slow("every function of torch")),
    ],
)
def test_functions_take_placeholders_as_they_take_tensors(names: list[str]) -> None:
    assert_all(takes_some_arguments, names, at_least=0.7)
