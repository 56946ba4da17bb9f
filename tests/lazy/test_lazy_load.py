"""``lazy_load`` gives the object that ``load`` gives, with placeholders for its tensors."""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import io
import itertools
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import assembler as a
import pytest
import saved_kinds
import torch
from archives import big_endian, rezip
from conftest import Saver, maps_of, outcome, saved_bytes, stock_load
from equality import assert_same
from kinds import Kind
from lazily import assert_all, compared, is_placeholder, placeholders_in

import zerocopy

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects

files = saved_kinds.saved  # a fixture: writes each kind once

FORMATS = pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])

# Kinds whose dense tensors are there at once, and why.
REAL: dict[str, str] = {
    kind: reason
    for reason, kinds in {
        "the file's own code gets real tensors: it may be C++, which takes their memory": (
            "namedtuple",
            "namedtuple, allowed",
            "subclass of tuple",
            "dataclass with slots",
            "class with __getstate__",
            "class with __getstate__, allowed",
            "class with __reduce__ of five parts",
            "class with __reduce__ of five parts, allowed",
        ),
        "puts a tensor on a device, whatever the file says": (
            "_rebuild_device_tensor_from_cpu_tensor (from 2.6)",
        ),
    }.items()
    for kind in kinds
}


# Kinds that cannot be loaded lazily with ``weights_only=False``, and why.
REFUSED = {"tensor that is its own attribute": "its rebuild function is called with the tensor that it makes"}


def same_refusal(lazy: Any, eager: Any) -> None:
    """Assert that two outcomes are the same error."""
    assert lazy[0] == eager[0] == "error", (lazy, eager)
    assert lazy[1:] == eager[1:]


def materialized(value: Any) -> Any:
    """Return an object whose placeholders were all loaded, and have kept it."""
    for tensor in placeholders_in(value):
        tensor.requires_grad_(tensor.requires_grad)
    return value


def same_once_materialized(kind: Kind, weights_only: bool, files: Callable[[Kind], Any]) -> bool:
    """Assert that `lazy_load` gives what `load` gives, or its error. Return whether there is such a file."""
    written = files(kind) if kind.is_there() else ("error",)
    if written[0] == "error":
        return False
    path = written[1]
    with saved_kinds.allowed(kind):
        eager = outcome(lambda: zerocopy.load(path, weights_only=weights_only))
        lazy = outcome(lambda: zerocopy.lazy_load(path, weights_only=weights_only))
    if eager[0] == "error":
        late = outcome(lambda: materialized(lazy[1])) if lazy[0] == "value" else lazy
        assert late[0] == "error" and late[1] is eager[1], (late, eager)
        assert late[2] == eager[2] or not weights_only, "pickle's words may differ, those of load may not"
        return True
    if isinstance(eager[1], torch.jit.ScriptModule):
        assert lazy[0] == "error", "a program has no placeholders"
        return True
    assert lazy[0] == "value", lazy
    assert not any(tensor.is_loaded for tensor in placeholders_in(lazy[1]))
    if kind.name in REFUSED and (late := outcome(lambda: materialized(lazy[1])))[0] == "error":
        assert late[1] is zerocopy.UnsupportedError and not weights_only
    elif kind.same:
        kind.same(lazy[1], eager[1])
    else:
        met, real = compared(lazy[1], eager[1])
        assert not real or kind.name in REAL, f"not lazy: {real}"
        assert all(tensor.is_loaded for tensor in met)
    return True


@pytest.mark.parametrize("weights_only", [True, False], ids=["safe", "trusting"])
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(saved_kinds.SAMPLE, id="sample"),
        pytest.param(saved_kinds.KINDS, id="all", marks=pytest.mark.slow("every kind of object")),
    ],
)
def test_kinds_are_lazy_and_equal_once_materialized(
    kinds: list[Kind], weights_only: bool, files: Callable[[Kind], Any]
) -> None:
    assert_all(lambda kind: same_once_materialized(kind, weights_only, files), kinds, at_least=0.5)


# ----------------------------------------------------------------------------- containers

WHOLE = torch.arange(3000.0)
TENSORS = [WHOLE, WHOLE[5:50:3], WHOLE.half(), torch.ones(2, 3).t(), torch.tensor(True), torch.arange(5)]
SEPARATE = [torch.arange(3000.0), torch.arange(7), torch.ones(3, dtype=torch.complex64), torch.tensor(2.5)]

CONTAINERS: dict[str, Callable[[], bytes]] = {
    "zip": lambda: saved_bytes(TENSORS),
    "deflated": lambda: rezip(saved_bytes(TENSORS), zipfile.ZIP_DEFLATED),
    "unaligned": lambda: rezip(saved_bytes([*TENSORS, torch.ones(3, dtype=torch.uint8)]), x=b"x"),
    "big-endian": lambda: big_endian(SEPARATE),
    "big-endian and deflated": lambda: big_endian(SEPARATE, zipfile.ZIP_DEFLATED),
    "legacy": lambda: saved_bytes(TENSORS, _use_new_zipfile_serialization=False),
}


def at_an_offset(content: bytes) -> io.BytesIO:
    """Return a file object whose checkpoint begins at its position, and ends before its end."""
    file = io.BytesIO(b"before" + content)
    file.seek(6)
    return file


def file_at_an_offset(path: Path) -> Any:
    """Return a file on the disk that is at its checkpoint, behind other bytes."""
    shifted = path.with_name("shifted.pt")
    shifted.write_bytes(b"before" + path.read_bytes())
    file = shifted.open("rb")
    file.seek(6)
    return file


SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "file": lambda path: path.open("rb"),
    "file at an offset": file_at_an_offset,
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "BytesIO at an offset": lambda path: at_an_offset(path.read_bytes()),
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_each_source_is_read_to_where_load_leaves_it(container: str, tmp_path: Path) -> None:
    """A file object may be closed afterwards."""
    path = tmp_path / "a.pt"
    path.write_bytes(CONTAINERS[container]())
    for make in SOURCES.values():
        given, other = make(path), make(path)
        eager, lazy = zerocopy.load(other), zerocopy.lazy_load(given)
        if hasattr(given, "seek"):
            assert given.tell() == other.tell()
            given.close()
        assert all(map(is_placeholder, lazy))
        assert compared(lazy, eager)[1] == []


@pytest.mark.parametrize("container", CONTAINERS)
def test_backends_and_modes_are_those_of_load(container: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(CONTAINERS[container]())
    for backend, mode in itertools.product(("auto", "mmap", "pread"), ("c", "r", "r+")):
        eager = outcome(lambda b=backend, m=mode: zerocopy.load(path, backend=b, mode=m))
        lazy = outcome(lambda b=backend, m=mode: materialized(zerocopy.lazy_load(path, backend=b, mode=m)))
        if eager[0] == "error":
            same_refusal(lazy, eager)
        else:
            compared(lazy, eager)


def test_strings_of_python_2_are_decoded_as_by_load() -> None:
    content = rezip(saved_bytes({"a": torch.ones(2)}), **{"data.pkl": b"\x80\x02U\x02\xc3\xa9."})
    for encoding in ("utf-8", "latin1", "bytes", "ascii"):
        eager, lazy = (
            outcome(lambda f=f, e=encoding: f(content, encoding=e))
            for f in (zerocopy.load, zerocopy.lazy_load)
        )
        assert_same(lazy, eager)


# ----------------------------------------------------------------------------- dtype and device

MIXED = {
    "float": torch.arange(6.0).view(2, 3).t(),
    "double": torch.arange(3.0, dtype=torch.float64),
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "int": torch.arange(3),
    "bool": torch.tensor([True]),
    "complex": torch.ones(2, dtype=torch.complex64),
    "0-dim": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "expanded": torch.ones(1, 3).expand(4, 3),
}


def converted(tensor: torch.Tensor, dtype: torch.dtype | None, device: Any) -> torch.Tensor:
    """Return what ``nn.Module.to`` makes of a tensor."""
    takes = tensor.is_floating_point() or (tensor.is_complex() and dtype is not None and dtype.is_complex)
    made = tensor.detach().to(device=device, dtype=dtype if takes else None)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made


@pytest.mark.parametrize("device", [None, "cpu", torch.device("meta")], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float64, torch.complex128], ids=str)
def test_dtype_and_device(save: Saver, dtype: torch.dtype | None, device: Any) -> None:
    """As ``nn.Module.to`` converts; the placeholder says so before it is loaded."""
    path = save(MIXED)
    if dtype is not None and dtype.is_complex:
        expected = {name: t for name, t in MIXED.items() if not t.is_floating_point()}
    else:
        expected = dict(MIXED)
    lazy = zerocopy.lazy_load(path, dtype=dtype, device=device)
    for name, tensor in expected.items():
        wanted = converted(tensor, dtype, device)
        stride = lazy[name].stride()
        for said in (lazy[name], lazy[name].materialize(), lazy[name]):
            assert (said.dtype, said.device, said.shape) == (wanted.dtype, wanted.device, wanted.shape), name
            assert (said.stride(), said.requires_grad) == (stride, wanted.requires_grad), name
            assert stride == wanted.stride() or wanted.is_meta
        real = lazy[name].materialize()
        assert type(real) is type(wanted) and real.is_leaf
        assert wanted.is_meta or torch.equal(real, wanted)
    assert all(lazy[name].is_loaded for name in expected)


@pytest.mark.parametrize("opened", [False, True], ids=["lazy_load", "open"])
def test_converted_tensors_are_tied_as_in_the_file(save: Saver, tmp_path: Path, opened: bool) -> None:
    """One memory for the same bytes shown in the same way, while some tensor over it lives; also when saved."""
    module = torch.nn.Module()
    module.a = module.b = torch.nn.Parameter(torch.randn(30, 20))
    path = save({**module.state_dict(), "part": module.a.detach()[1:], "turned": module.a.detach().t()})
    lazy = zerocopy.lazy_load(path, dtype=torch.float64)
    if opened:
        checkpoint = zerocopy.open(path, dtype=torch.float64)
        a, b, part = (checkpoint.get_tensor(name) for name in ("a", "b", "part"))
    else:
        a, b, part = (lazy[name].materialize() for name in ("a", "b", "part"))
    b[0, 0] = 7
    assert a[0, 0] == 7 and a is not b
    a[1, 0] = 9
    assert part[0, 0] != 9  # as torch's own conversion of the two
    target = torch.nn.Module()
    target.a = target.b = torch.nn.Parameter(torch.empty(30, 20, device="meta"))
    zerocopy.assign(target, {name: lazy[name] for name in ("a", "b")})
    assert target.a is target.b
    zerocopy.save(lazy, tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt")
    assert again["a"].data_ptr() == again["b"].data_ptr() != again["turned"].data_ptr()
    assert torch.equal(again["turned"], module.a.detach().double().t())


def test_sparse_tensors_have_the_flags_of_the_loaded_ones(save: Saver) -> None:
    path = save([torch.eye(3).to_sparse().requires_grad_(), torch.eye(3).to_sparse_csr()])
    for lazy, stock in zip(zerocopy.lazy_load(path), torch.load(path), strict=True):
        assert (lazy.requires_grad, lazy.is_leaf) == (stock.requires_grad, stock.is_leaf)


def test_dtype_of_other_layouts(save: Saver) -> None:
    eager = {"sparse": torch.eye(3).to_sparse(), "index": torch.eye(3).long().to_sparse()}
    lazy = zerocopy.lazy_load(save(eager), dtype=torch.float64)
    assert lazy["sparse"].dtype == lazy["sparse"].materialize().dtype == torch.float64
    assert lazy["index"].dtype == lazy["index"].materialize().dtype == torch.int64
    assert torch.equal(lazy["sparse"].to_dense(), torch.eye(3, dtype=torch.float64))


def test_descriptors_close_with_the_last_placeholder(save: Saver) -> None:
    """They do not wait for the garbage collector: many shards would meet the limit of descriptors."""
    path = save(MIXED)
    before = len(list(Path("/proc/self/fd").iterdir()))
    gc.disable()
    try:
        for load in (zerocopy.lazy_load, zerocopy.open):
            lazy = load(path)
            assert len(list(Path("/proc/self/fd").iterdir())) > before
            del lazy
            assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        gc.enable()


class Scaled(torch.Tensor):
    """A wrapper subclass whose dtype is not that of the numbers in it, as of quantized ones."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtype)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> None:
        self.numbers, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default or (func is torch.ops.aten._to_copy.default and cls.casts):
            return cls(args[0].numbers, args[0].scale, kwargs.get("dtype", args[0].dtype))
        raise NotImplementedError(func)

    casts = True


class ScaledByCall(Scaled):
    """Is pickled as a call with its parts, as most libraries do it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ScaledByCall, (self.numbers, self.scale, self.dtype)


class Uncast(Scaled):
    casts = False


@pytest.mark.parametrize("trusting", [False, True], ids=["safe", "trusting"])
@pytest.mark.parametrize("cls", [Scaled, ScaledByCall, Uncast])
def test_dtype_of_a_wrapper_subclass_is_cast_by_its_class(
    save: Saver, tmp_path: Path, cls: Any, trusting: bool
) -> None:
    made = cls(torch.ones(3, dtype=torch.float16), torch.ones(1), torch.float32)
    path = save({"scaled": made, "part": made.numbers, "plain": torch.ones(2)})
    names = (torch._tensor._rebuild_from_type_v2, torch._utils._rebuild_wrapper_subclass)
    dtype = made.dtype if cls is Uncast else torch.float64
    with zerocopy.safe_globals([cls, *names]), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        state = zerocopy.lazy_load(path, dtype=torch.float64, weights_only=not trusting)
        found = [state["scaled"]]
        if not trusting:
            zerocopy.convert(path, tmp_path / "cast.pt", dtype=torch.float64)
            found.append(zerocopy.load(tmp_path / "cast.pt")["scaled"])
            if cls is not ScaledByCall:  # which is of no tensor's kind until it is made
                found.append(zerocopy.open(path, dtype=torch.float64).get_tensor("scaled"))
    assert state["part"].dtype == state["plain"].dtype == torch.float64
    for each in found:
        assert type(each) is cls
        # torch 1.13 saves a wrapper subclass with the dtype float32
        assert each.dtype == dtype or (each is found[1] and torch.__version__ < "2")
        assert (each.numbers.dtype, each.scale.dtype) == (torch.float16, torch.float32)
    told = [str(each.message) for each in warned if "stays torch.float32" in str(each.message)]
    assert bool(told) == (cls is Uncast)


class OwnCode:
    """A class on no allow-list."""


@pytest.mark.parametrize("trusting", [False, True], ids=["safe", "trusting"])
@pytest.mark.parametrize("device", [None, "cpu", "meta"])
def test_dtype_of_tensors_without_data(save: Saver, device: Any, trusting: bool) -> None:
    """They stay without data, as with ``torch.load(map_location=...)``."""
    meta = torch.ones(2, 3, device="meta").t()
    eager = {"plain": meta, "trained": torch.nn.Parameter(meta), "index": meta.long(), "data": torch.ones(2)}
    path = save({**eager, "own": OwnCode()} if trusting else eager)
    lazy = zerocopy.lazy_load(path, dtype=torch.float16, device=device, weights_only=not trusting)
    for name, tensor in eager.items():
        wanted = converted(tensor, torch.float16, device if name == "data" else None)
        assert (lazy[name].dtype, lazy[name].device) == (wanted.dtype, wanted.device), name
        assert (lazy[name].shape, lazy[name].stride()) == (wanted.shape, wanted.stride()), name
        assert isinstance(lazy[name], torch.nn.Parameter) == (name == "trained")
        assert lazy[name].requires_grad == tensor.requires_grad


# ----------------------------------------------------------------------------- filters

LAYERS = {
    "layers.0.weight": torch.ones(2, 2),
    "layers.0.bias": torch.zeros(2),
    "layers.1.weight": torch.full((2, 2), 2.0),
    "layers.10.weight": torch.full((2, 2), 3.0),
}
NESTED = {
    "model": collections.OrderedDict(LAYERS),
    "optimizer": {"state": {0: {"exp_avg": torch.ones(2), "step": 5}}, "lr": 0.1},
    "epoch": 3,
    "rest": [torch.ones(1), {"x": torch.ones(2)}, (torch.ones(3), "word")],
}


def model(*names: str) -> dict[str, Any]:
    """Return part of the model."""
    return {"model": collections.OrderedDict((name, LAYERS[name]) for name in names)}


EMPTY = {
    "sgd": {"state": {}, "groups": [{"lr": 0.1, "params": ()}]},
    "rest": [[], torch.ones(2), collections.OrderedDict()],
}
FILTERS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "a leaf that is no tensor": (NESTED, {"keys": ["epoch"]}, {"epoch": 3}),
    "a leaf": (NESTED, {"keys": ["model.layers.0.bias"]}, model("layers.0.bias")),
    "a key with a dot, up to the dot": (
        NESTED,
        {"keys": ["model.layers.1"]},
        model("layers.1.weight"),
    ),
    "keys that are no strings": (
        NESTED,
        {"keys": ["optimizer.state.0.exp_avg"]},
        {"optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}},
    ),
    "a prefix of names, not of parts": (
        NESTED,
        {"prefix": "model.layers.1"},
        model("layers.1.weight", "layers.10.weight"),
    ),
    "a predicate": (
        NESTED,
        {"predicate": lambda name: name.endswith(".bias") or name == "optimizer.lr"},
        {**model("layers.0.bias"), "optimizer": {"lr": 0.1}},
    ),
    "all of them": (
        NESTED,
        {"keys": ["model.layers.0", "epoch"], "prefix": "model", "predicate": lambda name: "weight" in name},
        model("layers.0.weight"),
    ),
    "one of a list": (NESTED, {"keys": ["rest.0"]}, {"rest": [torch.ones(1), None, None]}),
    "nothing of a dict": (NESTED, {"predicate": lambda name: False}, {}),
    "no keys": (NESTED, {"keys": []}, {}),
    "what is empty": (EMPTY, {"keys": ["sgd", "rest"]}, {"sgd": EMPTY["sgd"], "rest": EMPTY["rest"]}),
    "what is empty, by its name": (EMPTY, {"keys": ["sgd.state"]}, {"sgd": {"state": {}}}),
    "an empty prefix": (NESTED, {"prefix": ""}, NESTED),
    "of a list": ([torch.ones(2), 5, torch.zeros(2)], {"keys": ["2"]}, [None, None, torch.zeros(2)]),
    "flat": (LAYERS, {"prefix": "layers.0."}, {n: t for n, t in LAYERS.items() if n.startswith("layers.0.")}),
}


@FORMATS
def test_filters_keep_what_they_name(save: Saver, zip_format: bool) -> None:
    for made, chosen, expected in FILTERS.values():
        path = save(made, _use_new_zipfile_serialization=zip_format)
        compared(zerocopy.lazy_load(path, **chosen), zerocopy.load(io.BytesIO(saved_bytes(expected))))


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_named_tuple_has_lazy_tensors(save: Saver, weights_only: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    path = save([Pair(weight, 1), weight, (weight,)])
    with zerocopy.safe_globals([Pair]):
        lazy = zerocopy.lazy_load(path, weights_only=weights_only)
    assert isinstance(lazy[0], Pair) and is_placeholder(lazy[1])
    assert lazy[0].first is lazy[1] is lazy[2][0]
    zerocopy.save(lazy, path)
    again = stock_load(path)
    assert again[0].first is again[1] is again[2][0]


def test_a_predicate_is_asked_about_each_leaf_once(save: Saver) -> None:
    names: list[str] = []
    zerocopy.lazy_load(save(NESTED), predicate=lambda name: names.append(name) is None)
    assert sorted(names) == sorted(
        [f"model.{name}" for name in LAYERS]
        + ["optimizer.state.0.exp_avg", "optimizer.state.0.step", "optimizer.lr", "epoch"]
        + ["rest.0", "rest.1.x", "rest.2.0", "rest.2.1"]
    )


def test_a_predicate_that_raises(save: Saver) -> None:
    with pytest.raises(ZeroDivisionError):
        zerocopy.lazy_load(save(NESTED), predicate=lambda name: 1 // 0)


@pytest.mark.parametrize("keys", [["nope"], ["epoch", "model.nope"], ["layers"], ["model.layers.0.weight.x"]])
def test_unknown_keys(save: Saver, keys: list[Any]) -> None:
    with pytest.raises(KeyError, match=str(keys[-1])):
        zerocopy.lazy_load(save(NESTED), keys=keys)


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dtype": torch.int32}, TypeError, "dtype"),
        ({"dtype": "float16"}, (TypeError, AttributeError), ""),
        ({"device": "nowhere"}, RuntimeError, "nowhere"),
        ({"keys": "model"}, TypeError, "keys"),
        ({"keys": [7]}, TypeError, ""),
        ({"prefix": 7}, TypeError, ""),
        ({"predicate": "model"}, TypeError, "expected predicate to be a function"),
        ({"backend": "magic"}, ValueError, "backend"),
        ({"mode": "w"}, ValueError, "mode"),
        ({"encoding": 7}, TypeError, ""),
        ({"map_location": "cpu"}, TypeError, "map_location"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_mean_nothing(save: Saver, arguments: dict[str, Any], error: Any, text: str) -> None:
    path = save(NESTED)
    with pytest.raises(error, match=text):
        zerocopy.lazy_load(path, **arguments)
    assert maps_of(path) == []


@FORMATS
def test_refused_globals(save: Saver, zip_format: bool) -> None:
    """Refused with the words of ``load``, before anything is built; allowed by the same lists."""
    made = [argparse.Namespace(a=torch.ones(2)), frozenset({1}), torch.ones(3)]
    path = save(made, _use_new_zipfile_serialization=zip_format)
    eager, lazy = (outcome(lambda f=f: f(path)) for f in (zerocopy.load, zerocopy.lazy_load))
    assert lazy[1] is pickle.UnpicklingError
    same_refusal(lazy, eager)
    with zerocopy.safe_globals([argparse.Namespace, frozenset]):
        lazy = zerocopy.lazy_load(path)
        assert is_placeholder(lazy[0].a) and is_placeholder(lazy[2])
        compared(lazy, zerocopy.load(path))


class Pipe:
    """A file object of which nothing can be read twice."""

    name = "pipe"

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._content.read(size)


@pytest.mark.parametrize("weights_only", [True, False])
@FORMATS
def test_a_pipe(zip_format: bool, weights_only: bool) -> None:
    """Is read once, whether it is the safe machine that builds what is in it or pickle."""
    made = [argparse.Namespace(a=torch.ones(2)), torch.ones(3)] if not weights_only else [torch.ones(3)]
    content = saved_bytes(made, _use_new_zipfile_serialization=zip_format)
    lazy = zerocopy.lazy_load(Pipe(content), weights_only=weights_only)
    assert is_placeholder(lazy[-1])
    compared(lazy, zerocopy.load(content, weights_only=weights_only))


def damaged(content: bytes, count: int) -> list[bytes]:
    """Return a file cut at some places, and with bytes changed at four times as many."""
    chosen = random.Random(0)
    cuts = [content[: chosen.randrange(len(content))] for _ in range(count)]
    changed = []
    for _ in range(4 * count):
        at = chosen.randrange(len(content))
        changed.append(content[:at] + bytes([chosen.randrange(256)]) + content[at + 1 :])
    return [b"", content[:-1], *cuts, *changed]


@pytest.mark.parametrize(
    "count", [10, pytest.param(60, marks=pytest.mark.slow("three hundred faults a container"))]
)
@pytest.mark.parametrize("container", CONTAINERS)
def test_damaged_files(container: str, count: int) -> None:
    """Damage is refused with the words of ``load``, at the latest when the damaged tensor is loaded."""
    content = CONTAINERS[container]()
    for bad in damaged(content, count):
        eager = outcome(lambda b=bad: zerocopy.load(b))
        lazy = outcome(lambda b=bad: zerocopy.lazy_load(b))
        if lazy[0] == "value":
            found = outcome(lambda v=lazy[1]: materialized(v))
            lazy = lazy if found[0] == "value" else found
        if eager[0] == "error":
            same_refusal(lazy, eager)
        else:
            assert lazy[0] == "value", (lazy, eager)
            compared(lazy[1], eager[1])


# ----------------------------------------------------------------------------- the dict is a dict


@pytest.fixture
def both(save: Saver) -> tuple[Any, Any]:
    """Return a module's state dict, loaded at once and lazily."""
    torch.manual_seed(0)
    path = save(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict())
    return zerocopy.load(path), zerocopy.lazy_load(path)


DICTS: dict[str, Callable[[Any], Any]] = {
    "reads": lambda d: [type(d), len(d), *d, *d.items(), d.get("no", 7), "0.weight" in d, "no" in d],
    "pop": lambda d: [d.pop("0.weight"), d.pop("no", 7), d],
    "popitem": lambda d: [d.popitem(), d],
    "missing": lambda d: d["no"],
    "a new key": lambda d: [d.__setitem__("new", torch.ones(1)), list(d.keys()), d],
    "another value": lambda d: [d.__setitem__("0.weight", torch.ones(1)), d],
    "del": lambda d: [d.__delitem__("0.bias"), d],
    "copy": lambda d: d.copy(),
    "copy.deepcopy": copy.deepcopy,
    "dict": dict,
    "update": lambda d: [d.update(d), d],
    "union": lambda d: d | {"new": 1},
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "torch.save": lambda d: torch.load(io.BytesIO(saved_bytes(d)), weights_only=False),
    "_metadata": lambda d: d._metadata,
    "equal to itself": lambda d: d == d,
    "equal to a copy": lambda d: d == {**d},
}


@pytest.mark.parametrize("what", DICTS)
def test_lazy_dict_behaves_as_the_dict_of_load(both: tuple[Any, Any], what: str) -> None:
    eager, lazy = (outcome(lambda d=d: DICTS[what](d)) for d in both)
    compared(lazy, eager)


def test_repr_of_the_dict_loads_nothing(both: tuple[Any, Any]) -> None:
    shown = repr(both[1])
    assert all(repr(tensor) in shown and not tensor.is_loaded for tensor in both[1].values())


def test_saved_as_it_would_be_at_once(save: Saver) -> None:
    """The same bytes, ties and parameters and all; so nothing tells that they were placeholders."""
    whole = torch.arange(100.0)
    path = save({"a": whole, "b": whole[3:9], "p": torch.nn.Parameter(torch.ones(2)), "n": [1, "x", whole]})
    eager, lazy = zerocopy.load(path), zerocopy.lazy_load(path)
    legacy = saved_bytes(lazy, _use_new_zipfile_serialization=False)
    compared(zerocopy.load(legacy), eager)  # the keys of such files are addresses
    lazy = zerocopy.lazy_load(path)
    assert saved_bytes(lazy) == saved_bytes(eager)
    for name in ("a", "b", "p"):
        assert saved_bytes(zerocopy.lazy_load(path)[name]) == saved_bytes(zerocopy.load(path)[name])


class Quantized(torch.nn.Parameter):
    """Keeps its data in its state, as bitsandbytes' Params4bit does."""

    def __getstate__(self) -> Any:
        return {**self.__dict__, "data": self.data, "requires_grad": self.requires_grad}


def test_parameter_whose_state_holds_data(save: Saver) -> None:
    made = Quantized(torch.arange(4.0), requires_grad=False)
    made.note = "kept"  # type: ignore[attr-defined]
    path = save({"w": made, "again": made, "object": Whatever()})
    expected = torch.load(path, weights_only=False)
    lazy = zerocopy.lazy_load(path, weights_only=False)
    real = lazy["w"].materialize()
    assert type(real) is type(expected["w"]) and torch.equal(real, expected["w"])
    assert vars(real) == vars(expected["w"]) and real.requires_grad == expected["w"].requires_grad
    assert lazy["again"] is lazy["w"]


class Whatever:
    """Has the file take trust."""


@pytest.mark.parametrize(
    ("size", "requires_grad"),
    [((4,), "yes"), ((4.0,), False), (("4",), False)],
    ids=["flag", "float", "text"],
)
def test_quantized_tensor_of_wrong_types_is_refused_as_by_load(
    tmp_path: Path, size: tuple[Any], requires_grad: Any
) -> None:
    scheme = a.name("torch", "per_tensor_affine"), 0.5, 3
    arguments = 0, size, (1,), scheme, requires_grad, a.ordered_dict()
    storage = a.storage("0", "QUInt8Storage", "cpu", 64)
    made = a.call(a.name("torch._utils", "_rebuild_qtensor"), storage, *arguments)
    path = tmp_path / "q.pt"
    path.write_bytes(a.checkpoint(a.pickle(made), {"0": bytes(64)}))
    errors = [outcome(lambda load=load: load(path))[1] for load in (zerocopy.load, zerocopy.lazy_load)]
    # torch 1.13 has no such function on its list.
    assert errors[0] is errors[1] and errors[0] in (zerocopy.FormatError, pickle.UnpicklingError)
