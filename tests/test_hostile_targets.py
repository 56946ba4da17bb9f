"""Pickles that change what they must not: the threat list, §7.2."""

import pickle

import assembler as a
import hostile
import pytest
import torch
from assembler import Code, build, call, checkpoint, name, ordered_dict, tensor

import zerocopy


def od():
    return name("collections", "OrderedDict")


def hooks():
    return ordered_dict((0, od()))


def layout(kind="sparse_coo"):
    return call(name("torch.serialization", "_get_layout"), f"torch.{kind}")


def sparse():
    indices = tensor(a.storage("1", "LongStorage", numel=2), 0, (1, 2), (2, 1))
    return call(
        name("torch._utils", "_rebuild_sparse_tensor"), layout(), (indices, tensor(None, 0, (2,)), (16,))
    )


def meta():
    rebuild = name("torch._utils", "_rebuild_meta_tensor_no_storage")
    return call(rebuild, name("torch", "float32"), (4,), (1,), False)


def parameter(state):
    rebuild = name("torch._utils", "_rebuild_parameter_with_state")
    return call(rebuild, tensor(), False, ordered_dict(), state)


def typed(state):
    rebuild = name("torch._tensor", "_rebuild_from_type_v2")
    arguments = (a.storage(), 0, (16,), (1,), False, ordered_dict())
    return call(
        rebuild, name("torch._utils", "_rebuild_tensor_v2"), name("torch", "Tensor"), arguments, state
    )


STORAGES = {"0": a.DATA, "1": bytes(8) + b"\1" + bytes(7)}

REFUSED = {
    "SETITEM on a tensor": lambda: Code(tensor() + a.code(0) + a.code(1.0) + a.SETITEM),
    "SETITEMS on a tensor": lambda: Code(tensor() + a.MARK + a.code(0) + a.code(1.0) + a.SETITEMS),
    "SETITEM on a storage": lambda: Code(a.storage() + a.code(0) + a.code(1.0) + a.SETITEM),
    "SETITEM on a list": lambda: Code(a.code([1]) + a.code(0) + a.code(2) + a.SETITEM),
    "SETITEM on a class": lambda: Code(name("torch", "Tensor") + a.code("x") + a.code(2) + a.SETITEM),
    "SETITEM on OrderedDict's class": lambda: Code(od() + a.code("x") + a.code(2) + a.SETITEM),
    "SETITEM on a sparse tensor": lambda: Code(sparse() + a.code(0) + a.code(1.0) + a.SETITEM),
    "APPEND on a dict": lambda: Code(a.EMPTY_DICT + a.code(1) + a.APPEND),
    "APPEND on a tensor": lambda: Code(tensor() + a.code(1) + a.APPEND),
    "APPEND on a sparse tensor": lambda: Code(sparse() + a.code(1) + a.APPEND),
    "APPEND on a tuple": lambda: Code(a.code((1,)) + a.code(1) + a.APPEND),
    "APPENDS on OrderedDict": lambda: Code(ordered_dict() + a.MARK + a.code(1) + a.APPENDS),
    "ADDITEMS on a list": lambda: Code(a.EMPTY_LIST + a.MARK + a.code(1) + a.ADDITEMS),
    "ADDITEMS on a frozenset": lambda: Code(b"(\x91" + a.MARK + a.code(1) + a.ADDITEMS),
    "BUILD on a dict": lambda: build({}, {"x": 1}),
    "BUILD on a list": lambda: build([], {"x": 1}),
    "BUILD on None": lambda: build(None, {"x": 1}),
    "BUILD on an allowed function": lambda: build(name("torch._utils", "_rebuild_tensor_v2"), {"x": 1}),
    "BUILD on a class": lambda: build(name("torch", "Tensor"), {"__add__": 1}),
    "BUILD on a class, slots": lambda: build(name("torch", "Tensor"), (None, {"__add__": 1})),
    "BUILD on OrderedDict's class": lambda: build(od(), {"items": 1}),
    "BUILD shadows .items": lambda: build(ordered_dict(), {"items": 1}),
    "BUILD shadows __class__": lambda: build(ordered_dict(), {"__class__": name("torch", "Tensor")}),
    "BUILD of a huge integer": lambda: build(ordered_dict(), {10**100: 1}),
    "BUILD twice": lambda: build(build(ordered_dict(), {"a": 1}), {"b": 1}),
    "parameter state __class__": lambda: parameter({"__class__": name("torch", "Tensor")}),
    "parameter state dunder": lambda: parameter({"__anything__": 1}),
    "parameter state data": lambda: parameter({"data": 1}),
    "parameter state _backward_hooks": lambda: parameter({"_backward_hooks": hooks()}),
    "parameter state, slots": lambda: parameter((None, {"__class__": name("torch", "Tensor")})),
    "typed state __class__": lambda: typed({"__class__": name("torch.nn.parameter", "Parameter")}),
    "typed state _backward_hooks": lambda: typed({"_backward_hooks": hooks()}),
    "hooks filled": lambda: tensor(None, 0, (16,), (1,), True, hooks()),
    "hooks filled, Parameter": lambda: call(
        name("torch._utils", "_rebuild_parameter"), tensor(), True, hooks()
    ),
    "hooks no dict": lambda: tensor(None, 0, (16,), (1,), True, od()),
    "hooks a list": lambda: tensor(None, 0, (16,), (1,), True, [od()]),
    "hooks with a state": lambda: tensor(None, 0, (16,), (1,), True, build(ordered_dict(), {"x": 1})),
}
#: torch calls Tensor.__setstate__ here, which sets hooks, or lays the tensor over any storage.
STATES = {
    "hooks": lambda: (True, None, {0: od()}),
    "storage": lambda: (a.storage(), 0, (16,), (1,)),
    "out of bounds": lambda: (a.storage(), 10**6, (16,), (1,)),
    "data": lambda: (tensor(), True, ordered_dict(), False, ordered_dict()),
    "a dict": lambda: {"x": 1},
    "None": lambda: None,
}
TARGETS = {"tensor": lambda: tensor(), "parameter": lambda: parameter({}), "typed": lambda: typed({})}
TARGETS |= {"sparse": sparse, "meta": meta, "layout": layout}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(REFUSED[case]()), STORAGES))
    assert type(error) is pickle.UnpicklingError


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("state", STATES)
def test_state_of_a_tensor_is_refused(target, state, tmp_path):
    data = checkpoint(a.pickle(build(TARGETS[target](), STATES[state]())), STORAGES)
    error = hostile.refusal(tmp_path / "x.pt", data)
    assert isinstance(error, (pickle.UnpicklingError, zerocopy.FormatError)), repr(error)


@pytest.mark.parametrize("function", ["_rebuild_tensor_v2", "_rebuild_sparse_tensor"])
def test_new_of_a_function(function, tmp_path):
    error = hostile.refusal(tmp_path / "x.pt", checkpoint(a.pickle(a.new(name("torch._utils", function)))))
    assert isinstance(error, (pickle.UnpicklingError, zerocopy.FormatError)), repr(error)


def test_parameter_of_something_else(tmp_path):
    data = checkpoint(
        a.pickle(call(name("torch._utils", "_rebuild_parameter"), layout(), False, ordered_dict()))
    )
    assert isinstance(hostile.refusal(tmp_path / "x.pt", data), hostile.CLEAN)


def test_layout_by_name_imports_nothing(tmp_path):
    """``torch.__getattr__`` imports some of its submodules on first use."""
    script = "import sys; print(sorted(m for m in sys.modules if m.startswith('torch._inductor')))"
    data = checkpoint(a.pickle(layout("_inductor")))
    (tmp_path / "x.pt").write_bytes(data)
    outcome, modules = hostile.in_child(
        f"print(hostile.describe({str(tmp_path / 'x.pt')!r})[0])\n{script}"
    ).splitlines()
    assert outcome in ("FormatError", "UnpicklingError")
    assert modules == "[]"


def test_state_of_an_ordered_dict_loads(tmp_path):
    state = {"_metadata": ordered_dict(("", {"version": 1}))}
    (tmp_path / "x.pt").write_bytes(checkpoint(a.pickle(build(ordered_dict(("weight", tensor())), state))))
    loaded = zerocopy.load(tmp_path / "x.pt")
    assert torch.equal(loaded["weight"], torch.arange(16.0))
    assert loaded._metadata == {"": {"version": 1}}
