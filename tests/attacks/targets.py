"""Pickles that change what they must not: items and states of wrong targets, hooks."""

from collections import OrderedDict

from assembler import (
    ADDITEMS,
    APPEND,
    APPENDS,
    BUILD,
    DATA,
    EMPTY_DICT,
    EMPTY_SET,
    MARK,
    SETITEM,
    SETITEMS,
    Code,
    build,
    call,
    checkpoint,
    code,
    name,
    new,
    ordered_dict,
    pickle,
    storage,
    tensor,
)

from attacks.attack import Attack, Expected, Family, good

UTILS = "torch._utils"
TENSOR = name("torch", "Tensor")
ORDERED_DICT = name("collections", "OrderedDict")
LAYOUT = call(name("torch.serialization", "_get_layout"), "torch.sparse_coo")
STORAGES = {"0": DATA, "1": bytes(8) + b"\1" + bytes(7)}


def attack(what, made, expected=Expected.REFUSED, **more):
    return Attack(what, lambda: checkpoint(pickle(made), STORAGES), expected, **more)


def hooks():
    """Return hooks that ``backward()`` would call."""
    return ordered_dict((0, ORDERED_DICT))


def sparse():
    indices = tensor(storage("1", "LongStorage", numel=2), 0, (1, 2), (2, 1))
    return call(name(UTILS, "_rebuild_sparse_tensor"), LAYOUT, (indices, tensor(None, 0, (2,)), (16,)))


def meta():
    rebuild = name(UTILS, "_rebuild_meta_tensor_no_storage")
    return call(rebuild, name("torch", "float32"), (4,), (1,), False)


def parameter(state=None, over=None, hooks=None):
    """A Parameter; with a state, as releases since 2.0 write one that has attributes."""
    over, hooks = tensor() if over is None else over, ordered_dict() if hooks is None else hooks
    if state is None:
        return call(name(UTILS, "_rebuild_parameter"), over, True, hooks)
    return call(name(UTILS, "_rebuild_parameter_with_state"), over, True, hooks, state)


def typed(state):
    """A tensor with attributes, as releases since 1.9 write one."""
    rebuild = name("torch._tensor", "_rebuild_from_type_v2")
    arguments = (storage(), 0, (16,), (1,), False, ordered_dict())
    return call(rebuild, name(UTILS, "_rebuild_tensor_v2"), TENSOR, arguments, state)


def setitem(target, key=0, value=1.0):
    return Code(code(target) + code(key) + code(value) + SETITEM)


def setitems(target):
    return Code(code(target) + MARK + code(0) + code(1.0) + SETITEMS)


def append(target):
    return Code(code(target) + code(1) + APPEND)


def appends(target):
    return Code(code(target) + MARK + code(1) + APPENDS)


def additems(target):
    return Code(code(target) + MARK + code(1) + ADDITEMS)


_FROZENSET = Code(b"(\x91")
_SET = Code(EMPTY_SET)

_ITEMS = (
    attack("SETITEM on a tensor", setitem(tensor())),
    attack("SETITEMS on a tensor", setitems(tensor())),
    attack("SETITEM on a tensor, far outside", setitem(tensor(), 10**9)),
    attack("SETITEM on a tensor of a dict", {"weight": setitem(tensor())}),
    attack("SETITEM on a Parameter", setitem(parameter())),
    attack("SETITEM on a sparse tensor", setitem(sparse())),
    attack("SETITEM on a meta tensor", setitem(meta())),
    attack("SETITEM on a storage", setitem(storage())),
    attack("SETITEMS on a storage", setitems(storage())),
    attack("SETITEM on a list", setitem([1], 0, 2)),
    attack("SETITEM on an empty list", setitem([], 0, 2)),
    attack("SETITEM on a tuple", setitem((1,), 0, 2)),
    attack("SETITEM on a set", setitem(_SET)),
    attack("SETITEM on None", setitem(None)),
    attack("SETITEM on text", setitem("text")),
    attack("SETITEM on a bytearray", setitem(call(name("builtins", "bytearray"), b"ab"), 0, 1)),
    attack("SETITEM on a Size", setitem(call(name("torch", "Size"), (1,)), 0, 2)),
    attack("SETITEM on a class", setitem(TENSOR, "x", 2)),
    attack("SETITEM on OrderedDict's class", setitem(ORDERED_DICT, "x", 2)),
    attack("SETITEM on a function", setitem(name(UTILS, "_rebuild_tensor_v2"), "x", 2)),
    attack("APPEND on a dict", append({})),
    attack("APPEND on a tensor", append(tensor())),
    attack("APPEND on a sparse tensor", append(sparse())),
    attack("APPEND on a storage", append(storage())),
    attack("APPEND on a tuple", append((1,))),
    attack("APPEND on a set", append(_SET)),
    attack("APPEND on a class", append(TENSOR)),
    attack("APPENDS on an OrderedDict", appends(ordered_dict())),
    attack("APPENDS on a bytearray", appends(call(name("builtins", "bytearray"), b"ab"))),
    attack("APPENDS of nothing on a dict", Code(EMPTY_DICT + MARK + APPENDS)),
    attack("ADDITEMS on a list", additems([])),
    attack("ADDITEMS on a dict", additems({})),
    attack("ADDITEMS on a frozenset", additems(_FROZENSET)),
    attack("ADDITEMS on a tensor", additems(tensor())),
)  # fmt: skip

_SLOTS = (None, {"__add__": 1})

_STATES = (
    attack("BUILD on a dict", build({}, {"x": 1})),
    attack("BUILD on a list", build([], {"x": 1})),
    attack("BUILD on a tuple", build((), {"x": 1})),
    attack("BUILD on None", build(None, {"x": 1})),
    attack("BUILD on text", build("text", {"x": 1})),
    attack("BUILD on a set", build(_SET, {"x": 1})),
    attack("BUILD on a storage", build(storage(), {"x": 1})),
    attack("BUILD on an allowed function", build(name(UTILS, "_rebuild_tensor_v2"), {"x": 1})),
    attack("BUILD on an allowed function, its code", build(name(UTILS, "_rebuild_tensor"), {"__code__": 1})),
    attack("BUILD on a class", build(TENSOR, {"__add__": 1})),
    attack("BUILD on a class, slots", build(TENSOR, _SLOTS)),
    attack("BUILD on a storage class", build(name("torch", "FloatStorage"), {"dtype": 1})),
    attack("BUILD on OrderedDict's class", build(ORDERED_DICT, {"items": 1})),
    attack("BUILD on a dtype", build(name("torch", "float32"), {"itemsize": 1})),
    attack("BUILD on a device", build(call(name("torch", "device"), "cpu"), {"type": "cuda"})),
    attack("BUILD on a Size", build(call(name("torch", "Size"), (1,)), {"numel": 1})),
    attack("BUILD on a Counter", build(call(name("collections", "Counter"), {}), {"items": 1})),
    attack("BUILD that shadows .items", build(ordered_dict(), {"items": 1})),
    attack("BUILD that shadows .keys", build(ordered_dict(), {"keys": ORDERED_DICT})),
    attack("BUILD that shadows .get, slots", build(ordered_dict(), (None, {"get": 1}))),
    attack("BUILD that sets __class__", build(ordered_dict(), {"__class__": TENSOR})),
    attack("BUILD that sets __dict__", build(ordered_dict(), {"__dict__": {}})),
    attack("BUILD that sets any dunder", build(ordered_dict(), {"__anything__": 1})),
    attack("BUILD with an integer for a name", build(ordered_dict(), {1: 1})),
    attack("BUILD with a huge integer for a name", build(ordered_dict(), {10**100: 1})),
    attack("BUILD twice", build(build(ordered_dict(), {"a": 1}), {"b": 1})),
    attack("BUILD of _metadata, as each state_dict has it",
           build(ordered_dict(("weight", tensor())), {"_metadata": ordered_dict(("", {"version": 1}))}),
           Expected.EQUAL,
           value=lambda: _with_metadata(OrderedDict(good()), OrderedDict([("", {"version": 1})]))),
    attack("BUILD of nothing", Code(ordered_dict(("weight", tensor())) + EMPTY_DICT + BUILD), Expected.EQUAL,
           value=lambda: OrderedDict(good())),
    attack("parameter state with __class__", parameter({"__class__": TENSOR})),
    attack("parameter state with __dict__", parameter({"__dict__": {}})),
    attack("parameter state with any dunder", parameter({"__anything__": 1})),
    attack("parameter state with .data", parameter({"data": tensor()})),
    attack("parameter state with .grad", parameter({"grad": 1})),
    attack("parameter state that shadows a method", parameter({"backward": 1})),
    attack("parameter state with _backward_hooks", parameter({"_backward_hooks": hooks()})),
    attack("parameter state with slots", parameter((None, {"__class__": TENSOR}))),
    attack("typed state with __class__", typed({"__class__": name("torch.nn.parameter", "Parameter")})),
    attack("typed state with any dunder", typed({"__anything__": 1})),
    attack("typed state with _backward_hooks", typed({"_backward_hooks": hooks()})),
    attack("typed state with slots", typed((None, {"__class__": TENSOR}))),
    attack("typed state that shadows a method", typed({"backward": 1})),
)  # fmt: skip

_HOOKS = (
    attack("hooks filled", tensor(None, 0, (16,), (1,), True, hooks())),
    attack("hooks filled, of a plain dict", tensor(None, 0, (16,), (1,), True, {0: ORDERED_DICT})),
    attack("hooks filled, of a Parameter", parameter(hooks=hooks())),
    attack("hooks filled, of a Parameter with a state", parameter({}, hooks=hooks())),
    attack("hooks that are a class", tensor(None, 0, (16,), (1,), True, ORDERED_DICT)),
    attack("hooks that are a list", tensor(None, 0, (16,), (1,), True, [ORDERED_DICT])),
    attack("hooks that are a number", tensor(None, 0, (16,), (1,), True, 7)),
    attack("hooks that are a Counter",
           tensor(None, 0, (16,), (1,), True, call(name("collections", "Counter"), {0: 1}))),
    attack("hooks with a state", tensor(None, 0, (16,), (1,), True, build(ordered_dict(), {"x": 1}))),
)  # fmt: skip


def _with_metadata(value, metadata):
    value._metadata = metadata
    return value


#: torch calls ``Tensor.__setstate__`` on these: hooks are set, or the tensor is laid over any storage.
_TENSOR_STATES = {
    "hooks": (True, None, {0: ORDERED_DICT}),
    "a storage": (storage(), 0, (16,), (1,)),
    "a storage, out of bounds": (storage(), 10**6, (16,), (1,)),
    "data": (tensor(), True, ordered_dict(), False, ordered_dict()),
    "attributes": {"x": 1},
    "None": None,
}
_TENSORS = {
    "a tensor": tensor(),
    "a Parameter": parameter(),
    "a Parameter with a state": parameter({}),
    "a typed tensor": typed({}),
    "a sparse tensor": sparse(),
    "a meta tensor": meta(),
    "a layout": LAYOUT,
}


TARGETS = Family(
    "Wrong targets and states",
    (
        *_ITEMS,
        *_STATES,
        *_HOOKS,
        *(
            attack(f"BUILD on {target} of {state}", build(_TENSORS[target], _TENSOR_STATES[state]))
            for target in _TENSORS
            for state in _TENSOR_STATES
        ),
        attack("NEWOBJ of a rebuild function", new(name(UTILS, "_rebuild_tensor_v2"))),
        attack("NEWOBJ of a rebuild function that is not native", new(name(UTILS, "_rebuild_sparse_tensor"))),
        attack("NEWOBJ of a Parameter, then BUILD",
               build(new(name("torch.nn.parameter", "Parameter"), tensor()),
                     _TENSOR_STATES["a storage, out of bounds"])),
        attack("Parameter of what is no tensor", parameter(over=LAYOUT), Expected.FORMAT),
        attack("layout that would import a module of torch",
               call(name("torch.serialization", "_get_layout"), "_inductor"), Expected.FORMAT),
        attack("layout that is no layout of torch",
               call(name("torch.serialization", "_get_layout"), "torch.load"), Expected.FORMAT),
    ),
)  # fmt: skip
