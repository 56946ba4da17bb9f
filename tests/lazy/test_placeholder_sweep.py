"""Every attribute and method of torch.Tensor does to a placeholder what it does to the tensor."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import saved_bytes
from lazily import Named, answer, assert_all, called, same_on_both

pytestmark = pytest.mark.filterwarnings("ignore")  # half of torch's names are on their way out

SQUARE = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 1.0], [0.5, 1.0, 2.0]])

SUBJECTS: dict[str, torch.Tensor] = {
    "float": SQUARE,
    "int": (SQUARE * 2).long(),
    "bool": SQUARE > 1,
    "complex": torch.complex(SQUARE, SQUARE.flip(0)),
    "parameter": torch.nn.Parameter(SQUARE.clone()),
    "double": SQUARE.double(),
    "0-dim": torch.tensor(2.5),
    "count": torch.tensor(2),
    "vector": torch.tensor([2, 0, 1]),
    "batch": torch.stack([SQUARE, SQUARE.t() + 1]),
}
FILES = {name: saved_bytes(tensor) for name, tensor in SUBJECTS.items()}

# Functions that take more than the tensor: the arguments made of `o`, another tensor like it. Where they come
# from `o`, the call is also made the other way round, on a plain tensor with a placeholder among the arguments.
Arguments = Callable[[Any], tuple[Any, ...]]
INDEX = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
ROWS = torch.tensor([2, 0])
MASK = torch.tensor([[True, False, True]] * 3)


def identity(t: torch.Tensor) -> torch.Tensor:
    return t


ARGUMENTS: tuple[tuple[str, Arguments], ...] = (
    (
        """__add__ __and__ __div__ __eq__ __floordiv__ __ge__ __gt__ __iadd__ __iand__ __idiv__ __ifloordiv__
            __ilshift__ __imod__ __imul__ __ior__ __ipow__ __irshift__ __isub__ __itruediv__ __ixor__ __le__
            __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __or__ __pow__ __radd__ __rand__ __rdiv__
            __rfloordiv__ __rlshift__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__ __rrshift__ __rshift__
            __rsub__ __rtruediv__ __rxor__ __sub__ __truediv__ __xor__ __contains__ add add_ allclose arctan2
            arctan2_ atan2 atan2_ bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_ bitwise_or
            bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ bmm cholesky_solve
            clamp_max clamp_max_ clamp_min clamp_min_ copy_ copysign copysign_ cross dist div div_ divide
            divide_ dot eq eq_ equal expand_as float_power float_power_ floor_divide floor_divide_ fmax fmin
            fmod fmod_ gcd gcd_ ge ge_ ger greater greater_ greater_equal greater_equal_ gt gt_ heaviside
            heaviside_ hypot hypot_ igamma igamma_ igammac igammac_ inner is_same_size is_set_to isclose kron
            lcm lcm_ ldexp ldexp_ le le_ less less_ less_equal less_equal_ logaddexp logaddexp2 logical_and
            logical_and_ logical_or logical_or_ logical_xor logical_xor_ lstsq lt lt_ matmul maximum minimum mm
            module_load mul mul_ multiply multiply_ ne ne_ new nextafter nextafter_ not_equal not_equal_ orgqr
            outer pow pow_ prelu remainder remainder_ reshape_as resize_as resize_as_ set_ smm solve sub sub_
            subtract subtract_ triangular_solve true_divide true_divide_ type_as vdot view_as xlogy xlogy_
            new_tensor backward""",
        lambda o: (o,),
    ),
    ("mv", lambda o: (o[0],)),
    ("addr addr_", lambda o: (o[0], o[0])),
    ("lerp lerp_", lambda o: (o + 1, 0.25)),
    ("where", lambda o: (MASK, o + 1)),
    ("masked_scatter masked_scatter_", lambda o: (MASK, o + 1)),
    ("masked_fill masked_fill_", lambda o: (MASK, 1)),
    ("masked_select", lambda o: (MASK,)),
    ("put put_", lambda o: (ROWS, o.flatten()[:2] + 1)),
    ("index_put index_put_", lambda o: ((ROWS,), o[:2] + 1)),
    ("index __getitem__ take", lambda o: (ROWS,)),
    ("__getitem__", lambda o: (o > 1,)),
    ("__setitem__", lambda o: (0, o[1])),
    ("__getitem__ __index__", lambda o: (0,)),
    ("index_add index_add_ index_copy index_copy_", lambda o: (0, ROWS, o[:2] + 1)),
    ("index_reduce index_reduce_", lambda o: (0, ROWS, o[:2] + 1, "amax")),
    ("index_fill index_fill_", lambda o: (0, ROWS, 7)),
    ("index_select", lambda o: (0, ROWS)),
    ("gather", lambda o: (0, INDEX)),
    ("take_along_dim", lambda o: (INDEX, 1)),
    ("scatter scatter_ scatter_add scatter_add_", lambda o: (0, INDEX, o + 1)),
    ("scatter_reduce scatter_reduce_", lambda o: (0, INDEX, o + 1, "sum")),
    ("as_strided as_strided_", lambda o: ((2, 2), (3, 1))),
    ("narrow narrow_copy", lambda o: (0, 1, 2)),
    ("select", lambda o: (0, 1)),
    ("unfold", lambda o: (0, 2, 1)),
    ("unflatten", lambda o: (0, (3, 1))),
    ("clamp clamp_ clip clip_", lambda o: (1, 2)),
    ("chunk unsafe_chunk tensor_split split unsafe_split hsplit repeat_interleave", lambda o: (3,)),
    ("split_with_sizes unsafe_split_with_sizes", lambda o: ([1, 2],)),
    (
        """cummax cummin cumprod cumprod_ cumsum cumsum_ logcumsumexp log_softmax softmax flip logsumexp
            unsqueeze unsqueeze_""",
        lambda o: (0,),
    ),
    ("movedim moveaxis swapaxes swapaxes_ swapdims swapdims_ transpose transpose_", lambda o: (0, 1)),
    ("permute", lambda o: (1, 0)),
    ("expand broadcast_to", lambda o: (2, 3, 3)),
    ("repeat tile", lambda o: (2, 1)),
    ("reshape view", lambda o: (9,)),
    ("resize resize_", lambda o: (1,)),
    ("view", lambda o: (torch.uint8,)),
    ("view", lambda o: (Named(dtype=torch.int16),)),
    ("sum", lambda o: (Named(dim=0, keepdim=True, dtype=torch.float64),)),
    ("add sub", lambda o: (Named(other=o, alpha=2),)),
    ("sum_to_size", lambda o: (1, 3)),
    ("roll", lambda o: (1, 0)),
    ("float_power_", lambda o: (2.0,)),
    ("quantile nanquantile", lambda o: (0.5,)),
    ("kthvalue topk", lambda o: (2,)),
    ("multinomial", lambda o: (2,)),
    ("fill_ fill_diagonal_", lambda o: (7,)),
    ("fill_", lambda o: (o.flatten()[0],)),
    ("bernoulli", lambda o: (0.5,)),
    ("as_subclass", lambda o: (torch.nn.Parameter,)),
    ("register_hook register_post_accumulate_grad_hook apply_", lambda o: (identity,)),
    ("map_", lambda o: (o, lambda a, b: a - b)),
    ("new_full", lambda o: ((2,), 7)),
    ("new_ones new_zeros", lambda o: ((2, 2),)),
    ("new_empty", lambda o: ((2,),)),
    ("new_empty_strided", lambda o: ((2, 2), (1, 2))),
    ("__array_wrap__", lambda o: (o.numpy() > 1,)),
    ("__setstate__", lambda o: ((o.storage(), 0, (1,), (1,)),)),
    ("__format__", lambda o: ("",)),
    ("__format__", lambda o: (".3f",)),
    ("__reduce_ex__ _reduce_ex_internal", lambda o: (2,)),
    ("__deepcopy__", lambda o: ({},)),
    ("__getattribute__", lambda o: ("shape",)),
    ("__setattr__", lambda o: ("note", "mine")),
    ("__setattr__", lambda o: ("requires_grad", True)),
    ("__delattr__", lambda o: ("note",)),
    ("to", lambda o: (torch.float64,)),
    ("to", lambda o: ("meta",)),
    ("to", lambda o: (o,)),
    ("type", lambda o: ("torch.DoubleTensor",)),
    ("requires_grad_", lambda o: (True,)),
    ("flatten", lambda o: (0, 1)),
    ("size stride", lambda o: (0,)),
    ("sum mean argmax", lambda o: (0,)),
    ("max min", lambda o: (0, True)),
    ("sort argsort", lambda o: (0, True)),
    ("norm", lambda o: (2, 0)),
    ("is_contiguous contiguous", lambda o: (torch.contiguous_format,)),
)

# Not compared here, and why.
LEFT_OUT: dict[str, str] = {
    name: reason
    for reason, names in {
        "of the class, not of a tensor": """__class__ __dict__ __dir__ __doc__ __init__ __init_subclass__
            __module__ __new__ __subclasshook__ __torch_dispatch__ __torch_function__ __weakref__
            __annotations__ __dlpack_c_exchange_api__""",
        "says that it is a placeholder, reading nothing": "__repr__ __str__",
        "of the object": "__getstate__ __hash__ __sizeof__",
        "an AttributeError, in other words": "__cuda_array_interface__",
        "a capsule, tried on its own": "__dlpack__",
        "an address, tried on its own": "const_data_ptr data_ptr",
    }.items()
    for name in names.split()
}

# The contents of their results are undefined.
UNINITIALIZED = {"new", "new_empty", "new_empty_strided", "resize", "resize_", "resize_as", "resize_as_"}
# Handles with a number that counts up.
HANDLES = {"register_hook", "register_post_accumulate_grad_hook"}


OF_EACH_CLASS = {"__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"}
NAMES = [
    name
    for name in sorted(set(dir(torch.Tensor)) - LEFT_OUT.keys() - OF_EACH_CLASS)
    if name.startswith("__") or not name.startswith("_")
]


def nothing(like: Any) -> tuple[Any, ...]:
    """Stand for a call without arguments."""
    return ()


def arguments_of(name: str) -> list[Arguments]:
    """Return the ways to call a method that are tried: what the table says, and nothing at all."""
    return [make for names, make in ARGUMENTS if name in names.split()] + [nothing]


def projected(name: str, result: Any) -> Any:
    """Return what of a result can be compared."""
    if name in UNINITIALIZED and isinstance(result, torch.Tensor):
        return type(result), result.shape, result.stride(), result.dtype, result.requires_grad
    if name == "to_mkldnn":
        return result.to_dense()
    return type(result) if name in HANDLES else result


def use(name: str, tensor: Any, make: Arguments, like: Any) -> Any:
    """Get an attribute, and call it where it can be called."""
    value = getattr(tensor, name)
    return projected(name, called(value, make(like))) if callable(value) else value


def plain(subject: str) -> torch.Tensor:
    """Return a fresh tensor with the numbers of a subject."""
    return SUBJECTS[subject].detach().clone()


def uses_other(make: Arguments) -> bool:
    """Return whether arguments are made of another tensor."""
    return any(instruction.argval == "o" for instruction in dis.get_instructions(make))


def tried(name: str, subject: str, make: Arguments) -> bool:
    """Use a name on a placeholder, and on a plain tensor with one among the arguments; say if it worked."""
    if make is nothing and len(arguments_of(name)) > 1 and needs_arguments(name, subject):
        return False  # in which words is Python's business
    succeeded = same_on_both(FILES[subject], lambda t: use(name, t, make, plain(subject))) == "value"
    if succeeded and uses_other(make):
        same_on_both(FILES[subject], lambda t: use(name, plain(subject), make, t))
    return succeeded


def needs_arguments(name: str, subject: str) -> bool:
    """Return whether a call without arguments fails."""
    return answer(lambda: use(name, plain(subject), nothing, None))[0] == "error"


def succeeds_on_some_subject(name: str) -> bool:
    """Assert that a name does the same on both, on every subject with all of its arguments."""
    return sum(tried(name, subject, make) for subject in SUBJECTS for make in arguments_of(name)) > 0


# All that fails with the same words counts as the same. Most names have to do something for some subject.
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(NAMES[::5], id="sample"),
        pytest.param(NAMES, id="all", marks=pytest.mark.slow("every name of torch.Tensor")),
    ],
)
def test_attributes_and_methods_of_a_placeholder_do_what_the_tensors_do(names: list[str]) -> None:
    assert_all(succeeds_on_some_subject, names, at_least=0.75)
