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
    ("count", "is_nonzero sym_float sym_int sym_not", lambda t: (t,)),
    ("batch", "instance_norm", lambda t: (t,)),
    ("batch", "glu", lambda t: (t, 0)),
    ("batch", "channel_shuffle native_channel_shuffle", lambda t: (t, 3)),
    ("batch", "bmm conv1d", lambda t: (t, t)),
    ("batch", "baddbmm bilinear", lambda t: (t, t, t)),
    ("batch", "addbmm", lambda t: (t[0], t, t)),
    ("batch", "lp_pool2d", lambda t: (t, 2.0, 1)),
    ("batch", "conv_tbc", lambda t: (t, t, t[0, 0])),
    (
        "batch",
        """channel_shuffle dsplit max_pool2d adaptive_avg_pool3d adaptive_max_pool2d
            adaptive_max_pool2d_with_indices avg_pool2d interpolate local_response_norm max_pool2d_with_indices
            unfold pixel_shuffle pixel_unshuffle upsample upsample_nearest""",
        lambda t: (t, 1),
    ),
    (
        "batch",
        """adaptive_max_pool3d adaptive_max_pool3d_with_indices avg_pool3d max_pool3d max_pool3d_with_indices
            fractional_max_pool2d_with_indices""",
        lambda t: (t[None], 1),
    ),
    ("batch", "fractional_max_pool2d fractional_max_pool2d_with_indices", lambda t: (t, 1, 1)),
    ("batch", "fractional_max_pool3d fractional_max_pool3d_with_indices", lambda t: (t[None], 1, 1)),
    ("batch", "lp_pool3d", lambda t: (t[None], 2.0, 1)),
    (
        "batch",
        "conv2d conv_transpose2d",
        lambda t: (t[None], t[None].transpose(0, 1)[:, :1].expand(2, 2, 3, 3)),
    ),
    ("batch", "conv3d conv_transpose3d", lambda t: (t[None, None], t[None, None])),
    ("batch", "conv_transpose1d", lambda t: (t, t.expand(2, 3, 3).transpose(0, 1).expand(3, 2, 3))),
    ("batch", "convolution", lambda t: (t, t, None, (1,), (0,), (1,), False, (0,), 1)),
    ("batch", "grid_sample", lambda t: (t[None], t[:1, :, None, :2])),
    ("batch", "grid_sampler grid_sampler_2d", lambda t: (t[None], t[:1, :, None, :2], 0, 0, False)),
    ("batch", "grid_sampler_3d", lambda t: (t[None, None], t[None, None, :1, :, :], 0, 0, False)),
    ("batch", "affine_grid affine_grid_generator", lambda t: (t[:, :2], (2, 1, 2, 2), False)),
    ("batch", "fold", lambda t: (t.reshape(2, 9, 1)[:, :9], (3, 3), (3, 3))),
    (
        "batch",
        "batch_norm instance_norm",
        lambda t: (t, None, None, None, None, True, 0.1, 1e-5, False),
    ),
    ("batch", "native_group_norm", lambda t: (t, None, None, 2, 3, 3, 3, 1e-5)),
    ("batch", "rnn_tanh rnn_relu", lambda t: (t, t[:1], gates(t, 1), *OF_LAYER)),
    ("batch", "gru", lambda t: (t, t[:1], gates(t, 3), *OF_LAYER)),
    ("batch", "lstm", lambda t: (t, (t[:1], t[:1]), gates(t, 4), *OF_LAYER)),
    ("batch", "view_as_complex view_as_complex_copy", lambda t: (t[:, :, :2].contiguous(),)),
    ("float", "addmv", lambda t: (t[0], t, t[1])),
    ("float", "masked_fill", lambda t: (t, MASK, 1)),
    ("float", "lp_pool1d", lambda t: (t, 2.0, 1)),
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
    ("float", "index_reduce", lambda t: (t, 0, ROWS, t[:2], "amax")),
    ("float", "put", lambda t: (t, ROWS, t[0, :2])),
    ("float", "gru_cell rnn_relu_cell rnn_tanh_cell", lambda t: (t, t, t.repeat(3, 1), t.repeat(3, 1))),
    ("float", "rnn_relu_cell rnn_tanh_cell", lambda t: (t, t, t, t)),
    ("float", "lstm_cell", lambda t: (t, (t, t), t.repeat(4, 1), t.repeat(4, 1))),
    ("float", "as_strided_copy as_strided", lambda t: (t, (2, 2), (1, 1))),
    ("float", "as_strided_scatter", lambda t: (t, t[0], (3,), (1,))),
    (
        "float",
        "bucketize diagonal_scatter linalg_householder_product linalg_tensorsolve mv orgqr prelu",
        lambda t: (t, t[0]),
    ),
    ("float", "ormqr", lambda t: (t, t[0], t)),
    ("float", "addr", lambda t: (t, t[0], t[0])),
    ("float", "batch_norm", lambda t: (t, t[0], t[1])),
    ("float", "native_batch_norm", lambda t: (t, t[0], t[1], t[0].clone(), t[1].clone(), True, 0.1, 1e-5)),
    ("float", "native_layer_norm", lambda t: (t, (3,), t[0], t[1], 1e-5)),
    ("float", "cosine_embedding_loss", lambda t: (t, t, INDEX[0])),
    ("float", "flip tile", lambda t: (t, (0,))),
    (
        "float",
        "alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout",
        lambda t: (t, 0.5, True),
    ),
    ("float", "binary_cross_entropy", lambda t: (t / 4, t / 4)),
    ("float", "poisson_nll_loss", lambda t: (t, t, True, False, 1e-8, 1)),
    ("float", "nll_loss multi_margin_loss", lambda t: (t, ROWS.new_tensor([2, 0, 1]))),
    ("float", "narrow narrow_copy", lambda t: (t, 0, 1, 2)),
    ("float", "nonzero_static", lambda t: (t, Named(size=2))),
    ("float", "renorm", lambda t: (t, 1, 0, 2)),
    ("float", "select_scatter", lambda t: (t, t[0], 0, 1)),
    ("float", "slice_scatter", lambda t: (t, t[:1], 0, 1, 2, 1)),
    (
        "float",
        "split_with_sizes split_with_sizes_copy unsafe_split_with_sizes",
        lambda t: (t, [1, 2]),
    ),
    ("float", "stft", lambda t: (t, 4, 1, None, None, True, "reflect", False, True, True)),
    ("complex", "istft", lambda t: (t, 4)),
    ("float", "unflatten", lambda t: (t, 0, (3, 1))),
    ("float", "unfold_copy", lambda t: (t, 0, 2, 1)),
    ("float", "lu_solve", lambda t: (t, t, torch.tensor([1, 2, 3], dtype=torch.int32))),
    ("float", "lu_unpack", lambda t: (t, torch.tensor([1, 2, 3], dtype=torch.int32))),
    (
        "float",
        "linalg_lu_solve linalg_ldl_solve",
        lambda t: (t, torch.tensor([1, 2, 3], dtype=torch.int32), t),
    ),
    ("float", "quantize_per_tensor", lambda t: (t, 0.5, 0, torch.qint8)),
    ("float", "quantize_per_tensor_dynamic", lambda t: (t, torch.qint8, False)),
    ("float", "quantize_per_channel", lambda t: (t, t[0], torch.zeros(3), 0, torch.qint8)),
    ("float", "fake_quantize_per_tensor_affine", lambda t: (t, 0.5, 0, 0, 255)),
    (
        "float",
        "fake_quantize_per_channel_affine",
        lambda t: (t, t[0], torch.zeros(3, dtype=torch.int32), 0, 0, 255),
    ),
    ("float", "saddmm hspmm smm hsmm sspaddmm", lambda t: (torch.eye(3).to_sparse(), t)),
    ("float", "choose_qparams_optimized", lambda t: (t[0], 3, 2, 0.1, 8)),
    ("float", "multi_head_attention_forward", lambda t: attention(t)),
    (
        "float",
        "ctc_loss",
        lambda t: (
            t[:, None].log_softmax(2),
            ROWS.new_ones(1, 2),
            ROWS.new_tensor([3]),
            ROWS.new_tensor([1]),
        ),
    ),
    ("complex", "imag view_as_real view_as_real_copy", lambda t: (t,)),
    ("int", "bitwise_not one_hot", lambda t: (t,)),
    (
        "int",
        "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm",
        lambda t: (t, t),
    ),
    ("int", "unravel_index", lambda t: (t, (9, 9))),
    ("vector", "bincount cartesian_prod combinations meshgrid", lambda t: (t,)),
    ("vector", "dot ger outer vdot", lambda t: (t, t)),
    ("vector", "polygamma special_polygamma", lambda t: (1, t)),
    ("float", "permute permute_copy", lambda t: (t, (1, 0))),
    ("batch", "max_unpool1d", lambda t: (t, INDEX.expand(2, 3, 3), 1)),
    ("batch", "max_unpool2d", lambda t: (t, torch.arange(9).view(1, 3, 3).expand(2, 3, 3), 1)),
    ("batch", "max_unpool3d", lambda t: (t[None], torch.arange(18).view(1, 2, 3, 3), 1)),
    ("batch", "linalg_solve_triangular", lambda t: (t, t, Named(upper=True))),
    ("vector", "segment_reduce", lambda t: (t.float(), "sum", Named(lengths=t))),
    ("float", "slice_copy", lambda t: (t, 0, 1, 2, 1)),
)


def gates(t: torch.Tensor, count: int) -> tuple[Any, ...]:
    """Return a recurrent layer's parameters."""
    return t[0].repeat(count, 1), t[0].repeat(count, 1), t[0, 0].repeat(count), t[0, 0].repeat(count)


def attention(t: torch.Tensor) -> tuple[Any, ...]:
    """Return what multi_head_attention_forward takes, of one head."""
    return (*(t, t, t, 3, 1, t.repeat(3, 1), t.flatten()[:9], None, None, False, 0.0, t, t[0]),)


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
    assert_all(takes_some_arguments, names, at_least=0.8)
