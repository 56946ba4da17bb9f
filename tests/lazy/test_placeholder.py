"""``NotYetLoadedTensor``: what it says unread, when it loads, what it keeps, what becomes of a file meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import page_cache
import pytest
import torch
from conftest import Saver, digest, lies_in_mapping, maps_of, outcome, stock_load
from equality import assert_same, untyped
from lazily import is_placeholder

import zerocopy

BIG = torch.arange(2_000_000, dtype=torch.float32).view(1000, 2000)  # 8 MB, more than is read ahead
WHOLE = torch.arange(5000.0)
STATE = {
    "big": BIG,
    "transposed": BIG.t(),
    "half": BIG.half(),
    "parameter": torch.nn.Parameter(torch.ones(3, 4)),
    "first": WHOLE[:2000],
    "all": WHOLE,
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "imaginary": torch.ones(2, dtype=torch.complex64),
    "none": torch.empty(0, 5),
    "window": WHOLE.as_strided((3, 2), (5, 7), 11),
}


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def path(request: Any, save: Saver) -> Path:
    return save(STATE, _use_new_zipfile_serialization=request.param)


@pytest.fixture
def mapped(save: Saver) -> Path:
    """Return a file all of which is mapped; tensors of legacy files are where they are aligned."""
    return save(STATE)


METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: t.shape,
    "size": lambda t: (t.size(), list(t.size())),
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "layout": lambda t: t.layout,
    "stride": lambda t: (t.stride(), t.stride(-1)),
    "storage_offset": lambda t: t.storage_offset(),
    "dim": lambda t: (t.dim(), t.ndimension(), t.ndim),
    "numel": lambda t: (t.numel(), t.nelement(), torch.numel(t)),
    "element_size": lambda t: t.element_size(),
    **({"nbytes": lambda t: t.nbytes} if hasattr(torch.Tensor, "nbytes") else {}),
    **({"itemsize": lambda t: t.itemsize} if hasattr(torch.Tensor, "itemsize") else {}),
    "len": len,
    "is_contiguous": lambda t: t.is_contiguous(),
    "is_floating_point": lambda t: (t.is_floating_point(), torch.is_floating_point(t)),
    "is_complex": lambda t: (t.is_complex(), torch.is_complex(t)),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "isinstance": lambda t: (isinstance(t, torch.Tensor), isinstance(t, torch.nn.Parameter)),
}


def said(t: torch.Tensor) -> list[tuple[Any, ...]]:
    """Return what a tensor says of itself, or the types of its refusals."""
    return [outcome(lambda ask=ask: ask(t))[:2] for ask in METADATA.values()]


def test_placeholder_attributes_equal_the_tensors(path: Path) -> None:
    """And loads nothing for it; once more with the tensor there."""
    eager, lazy = zerocopy.load(path.read_bytes()), zerocopy.lazy_load(path)
    for name, tensor in lazy.items():
        assert is_placeholder(tensor)
        assert_same(said(tensor), said(eager[name]))
        assert (
            tensor.nbytes == tensor.numel() * tensor.element_size()
        )  # also on releases whose tensors lack it
        assert not tensor.is_loaded
    assert maps_of(path) == []
    for name, tensor in lazy.items():
        tensor + 0
        assert_same(said(tensor), said(eager[name]))


def test_placeholder_attributes_read_no_byte(path: Path) -> None:
    """Not through a descriptor, and not through a mapping."""
    middle = path.read_bytes().find(BIG[500].numpy().tobytes()) // page_cache.PAGE
    # Away from the ends of "big": the pages of these may have been read ahead with its neighbours.
    pages = set(range(middle - 100, middle + 100))
    page_cache.drop(path)
    lazy = zerocopy.lazy_load(path)
    for tensor in lazy.values():
        assert said(tensor) and repr(tensor) and str(tensor) and hash(tensor)
    assert maps_of(path) == [] and not pages & page_cache.resident(path)
    assert lazy["big"].sum() == BIG.sum()
    assert pages <= page_cache.resident(path)


def test_repr_is_short_until_it_is_loaded(path: Path) -> None:
    eager, lazy = zerocopy.load(path), zerocopy.lazy_load(path)
    for name, tensor in lazy.items():
        shown = repr(tensor)
        assert (
            "NotYetLoadedTensor" in shown and str(tuple(tensor.shape)) in shown and str(tensor.dtype) in shown
        )
        assert str(path) in shown and str(tensor) == shown == f"{tensor!r}"
        assert not tensor.is_loaded
        tensor + 0
        assert repr(tensor) == repr(eager[name]) and str(tensor) == str(eager[name])


def test_placeholder_is_a_key_by_identity(path: Path) -> None:
    lazy = zerocopy.lazy_load(path)
    hashes = {name: hash(tensor) for name, tensor in lazy.items()}
    by_tensor = {tensor: name for name, tensor in lazy.items()}
    assert not any(tensor.is_loaded for tensor in lazy.values())
    for name, tensor in lazy.items():
        tensor + 0
        assert by_tensor[tensor] == name and hash(tensor) == hashes[name]


def test_materialize_gives_the_real_tensor(path: Path) -> None:
    eager, lazy = zerocopy.load(path), zerocopy.lazy_load(path)
    real = {name: tensor.materialize() for name, tensor in lazy.items()}
    assert_same(real, eager)
    assert all(tensor.is_loaded for tensor in lazy.values())
    assert lies_in_mapping(real["big"].data_ptr(), path) == lies_in_mapping(eager["big"].data_ptr(), path)
    assert all(lazy[name].materialize() is real[name] for name in lazy)


def test_memory_goes_back_with_the_last_real_tensor(mapped: Path) -> None:
    tensor = zerocopy.lazy_load(mapped)["big"]
    for _ in range(2):
        real = tensor.materialize()
        real[0, 0] = 7  # of its own, as mapped copy-on-write
        assert maps_of(mapped)
        assert tensor.materialize()[0, 0] == 7
        del real
        gc.collect()
        assert maps_of(mapped) == []
        assert tensor.is_loaded
        assert torch.equal(tensor.materialize(), BIG), "loaded anew"
    view = tensor.materialize()[1]
    gc.collect()
    assert maps_of(mapped), "a view has a share in it"
    assert torch.equal(view, BIG[1])


def test_tensor_used_by_an_operation_is_kept(mapped: Path) -> None:
    tensor = zerocopy.lazy_load(mapped)["big"]
    tensor.sum()
    assert tensor.is_loaded and maps_of(mapped)
    assert tensor.materialize() is tensor.materialize()
    assert tensor.materialize().data_ptr() == tensor.data_ptr()
    del tensor
    gc.collect()
    assert maps_of(mapped) == []


def test_ties(path: Path) -> None:
    """Tensors over one storage come to lie over one storage, whichever is loaded first, and how."""
    for order in (("first", "all"), ("all", "first"), ("window", "all")):
        lazy, expected = zerocopy.lazy_load(path), zerocopy.load(path)
        one, other = lazy[order[0]], lazy[order[1]]
        one.mul_(2)
        assert untyped(one.materialize())._cdata == untyped(other.materialize())._cdata
        expected[order[0]].mul_(2)
        assert_same([one.materialize(), other.materialize()], [expected[name] for name in order])
        assert untyped(lazy["big"].materialize())._cdata != untyped(one.materialize())._cdata
        assert untyped(lazy["big"].materialize())._cdata == untyped(lazy["transposed"].materialize())._cdata


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(1),
    "setitem": lambda t: t.__setitem__((0, 0), 7),
    "iadd": lambda t: t.__iadd__(1),
    "out": lambda t: torch.add(torch.ones(1000, 2000), 1, out=t),
    "mask": lambda t: t.__setitem__(t > 5, 5),
    "copy_ into it": lambda t: t.copy_(torch.zeros(1000, 2000)),
    "through a view": lambda t: t[0].fill_(7),
    "through a view of a view": lambda t: t.t()[1:3].mul_(7),
    "through numpy": lambda t: t.numpy().fill(3),
    "through data": lambda t: t.data.zero_(),
    "by the dispatcher": lambda t: torch.ops.aten.add_.Tensor(t, torch.ones(())),
    "transpose_": lambda t: t.transpose_(0, 1),
    "resize_": lambda t: t.resize_(10, 10),
    "of its data": lambda t: setattr(t, "data", torch.ones(2, 2)),
}


def test_changes_stay(mapped: Path) -> None:
    """In the placeholder, for the tensors tied to it, and not in the file."""
    before, names = digest(mapped), ("big", "transposed")
    for how, change in IN_PLACE.items():
        eager, lazy = zerocopy.load(mapped), zerocopy.lazy_load(mapped)
        change(eager["big"])
        change(lazy["big"])
        gc.collect()
        for read in (lambda t: t.materialize(), lambda t: t + 0):
            found = [read(lazy[name]).clone() for name in names]
            assert_same([how, *found], [how, *(eager[name].clone() for name in names)])
        assert (lazy["big"].shape, lazy["big"].stride()) == (eager["big"].shape, eager["big"].stride()), how
    assert digest(mapped) == before


def test_the_source_of_a_copy_is_not_kept(mapped: Path) -> None:
    eager, lazy = zerocopy.load(mapped.read_bytes()), zerocopy.lazy_load(mapped)
    for name, tensor in lazy.items():
        into = torch.empty_like(eager[name]).detach()
        with torch.no_grad():
            assert into.copy_(tensor) is into
            assert torch.equal(into, eager[name].detach())
            into.copy_(tensor, non_blocking=True)
    gc.collect()
    assert maps_of(mapped) == []


@pytest.mark.parametrize("how", ["lazy_load", "open"])
def test_a_copy_from_one_to_another(save: Saver, how: str) -> None:
    for copy in (
        torch.Tensor.copy_,
        torch.ops.aten.copy_,
        lambda into, tensor: into.copy_(tensor[:1], non_blocking=True),
        lambda into, tensor: into.copy_(into).copy_(tensor),
    ):
        lazy = getattr(zerocopy, how)(save({"into": torch.zeros(2, 3), "tensor": torch.ones(2, 3)}))
        into, tensor = lazy["into"], lazy["tensor"]
        copy(into, tensor)
        assert torch.equal(into, torch.ones(2, 3)) and torch.equal(lazy["into"], torch.ones(2, 3))


def test_mode_of_the_mapping(save: Saver) -> None:
    """``mode="r+"`` writes to the file what is changed through a placeholder."""
    path = save({"a": torch.zeros(2000)})
    tensor = zerocopy.lazy_load(path, mode="r+")["a"]
    tensor.fill_(7)
    del tensor
    gc.collect()
    assert torch.equal(torch.load(path)["a"], torch.full((2000,), 7.0))


def test_file_that_changed_after_it_was_loaded_does_not_matter(save: Saver) -> None:
    path = save({"a": torch.ones(50_000)})
    a = zerocopy.lazy_load(path)["a"]
    a + 1
    for change in (lambda: save({"a": torch.zeros(5)}, "new.pt").replace(path), path.unlink):
        change()
        assert float(a.sum()) == 50_000 and a.materialize() is a.materialize() and a[7] == 1


def test_other_folders(save: Saver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is that of the folder where the checkpoint was opened."""
    path = save({"a": torch.ones(3)})
    monkeypatch.chdir(path.parent)
    tensor = zerocopy.lazy_load(path.name)["a"]
    monkeypatch.chdir("/")
    assert torch.equal(tensor, torch.ones(3))


def test_threads_that_load_one_tensor_at_once(path: Path) -> None:
    """They get one tensor: what one thread changes in place is there for the others."""
    for _ in range(20):
        tensor = zerocopy.lazy_load(path)["all"]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda i, tensor=tensor: tensor[i].fill_(-1), range(16)))
            found = {id(real) for real in pool.map(lambda _, t=tensor: t.materialize(), range(16))}
        assert len(found) == 1
        assert torch.equal(tensor[:16], torch.full((16,), -1.0))


LAZY_KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "tensor": lambda: torch.arange(4.0),
    "parameter": lambda: torch.nn.Parameter(torch.arange(4.0)),
    "parameter of integers": lambda: torch.nn.Parameter(torch.arange(4), requires_grad=False),
    "window": lambda: torch.arange(9.0)[3:7],
    "parameter over a window": lambda: torch.nn.Parameter(torch.arange(9.0)[1:8:2]),
    "sparse": lambda: torch.tensor([0.0, 1.0, 2.0, 3.0]).to_sparse(),
}
DENSE_KINDS = [kind for kind in LAZY_KINDS if kind != "sparse"]


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float16}, {"device": "cpu"}], ids=str)
def test_data_of_an_unread_tensor_are_refused_and_do_not_crash(save: Saver, options: dict[str, Any]) -> None:
    for make in LAZY_KINDS.values():
        lazy = zerocopy.lazy_load(save({"x": make()}), **options)["x"]
        other = torch.zeros(4, dtype=lazy.dtype)
        other.data = lazy
        with pytest.raises(RuntimeError, match="storage"):
            other.tolist()


@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_data_of_tensors_that_were_used_or_assigned_are_shared(save: Saver, kind: str) -> None:
    path = save({"x": LAZY_KINDS[kind]()})
    used, one, other = (zerocopy.lazy_load(path)["x"] for _ in range(3))
    plain = torch.zeros(4, dtype=used.dtype)
    _ = used + 0
    plain.data = used
    plain.add_(1)
    assert torch.equal(used, LAZY_KINDS[kind]() + 1)
    one.data = other
    one.data = one
    with torch.no_grad():
        other.mul_(2)
    assert torch.equal(one, LAZY_KINDS[kind]() * 2)


def test_module_with_integer_and_complex_parameters_is_cast(save: Saver) -> None:
    module = torch.nn.Linear(2, 2)
    module.count = torch.nn.Parameter(torch.arange(4), requires_grad=False)
    module.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    path = save(module)
    for cast in ("half", "float", "double", "bfloat16"):
        lazy, stock = zerocopy.lazy_load(path, weights_only=False), stock_load(path)
        for each in (stock, lazy):
            getattr(each, cast)()
        for expected, found in zip(stock.parameters(), lazy.parameters(), strict=True):
            assert_same(expected.detach(), found.detach())


def test_place_in_the_storage_is_the_same_before_and_after_loading(save: Saver) -> None:
    for options in ({}, {"dtype": torch.float32}, {"dtype": torch.float16}, {"device": "cpu"}):
        for lazy in zerocopy.lazy_load(save([LAZY_KINDS[kind]() for kind in DENSE_KINDS]), **options):
            before = lazy.storage_offset(), lazy.stride()
            assert not lazy.is_loaded
            assert before == (lazy.materialize().storage_offset(), lazy.materialize().stride())
