"""``NotYetLoadedTensor``: what it says unread, when it loads, what it keeps, what becomes of a file meanwhile."""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, digest, lies_in_mapping, maps_of
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
FORMATS = pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def path(request: Any, save: Saver) -> Path:
    return save(STATE, _use_new_zipfile_serialization=request.param)


@pytest.fixture
def mapped(save: Saver) -> Path:
    """Return a file all of which is mapped; tensors of legacy files are where they are aligned."""
    return save(STATE)


def reading() -> int:
    """Return how many bytes this process has read, whatever from."""
    return int(Path("/proc/self/io").read_text().split()[1])


def resident(path: Path) -> list[bool]:
    """Return for each page of a file whether it is in memory."""
    size = path.stat().st_size
    found = (ctypes.c_ubyte * math.ceil(size / mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found) == 0
    return [bool(byte & 1) for byte in found]


def drop(path: Path) -> None:
    """Let go of a file's pages, where the file system can."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip("this file system keeps its files in memory")


# ----------------------------------------------------------------------------- what it says unread

METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: t.shape,
    "size": lambda t: (t.size(), list(t.size())),
    "size of a dimension": lambda t: t.size(0),
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
    "is_contiguous in a format": lambda t: t.is_contiguous(memory_format=torch.contiguous_format),
    "is_floating_point": lambda t: (t.is_floating_point(), torch.is_floating_point(t)),
    "is_complex": lambda t: (t.is_complex(), torch.is_complex(t)),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "isinstance": lambda t: (isinstance(t, torch.Tensor), isinstance(t, torch.nn.Parameter)),
    "is_tensor": torch.is_tensor,
    "type of a parameter": lambda t: isinstance(t, (torch.FloatTensor, torch.HalfTensor)),
}


def said(t: torch.Tensor, what: str) -> Any:
    """Return what a tensor says, or the type of its refusal."""
    try:
        return METADATA[what](t)
    except (AttributeError, TypeError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize("what", METADATA)
def test_placeholder_attributes_equal_the_tensors(path: Path, what: str) -> None:
    """And loads nothing for it; once more with the tensor there."""
    eager, lazy = zerocopy.load(path.read_bytes()), zerocopy.lazy_load(path)
    for name, tensor in lazy.items():
        assert is_placeholder(tensor) and not tensor.is_loaded
        assert_same(said(tensor, what), said(eager[name], what))
        assert not tensor.is_loaded
    assert maps_of(path) == []
    for name, tensor in lazy.items():
        tensor + 0
        assert_same(said(tensor, what), said(eager[name], what))


def test_placeholder_attributes_read_no_byte(path: Path) -> None:
    """Not through a descriptor, and not through a mapping."""
    middle = path.read_bytes().find(BIG[500].numpy().tobytes()) // mmap.PAGESIZE
    drop(path)
    lazy = zerocopy.lazy_load(path)
    before = reading()
    for tensor in lazy.values():
        for what in METADATA:
            said(tensor, what)
        assert repr(tensor) and str(tensor) and hash(tensor)
    assert reading() - before < mmap.PAGESIZE, "more than what asking for that reads itself"
    assert maps_of(path) == []
    # Away from the ends of "big": the pages of these may have been read ahead with its neighbours.
    assert not any(resident(path)[middle - 100 : middle + 100])
    assert lazy["big"].sum() == BIG.sum()
    assert all(resident(path)[middle - 100 : middle + 100])


def test_nbytes_on_every_release(path: Path) -> None:
    """Tensors of PyTorch 1.13 do not have it."""
    tensors = list(filter(is_placeholder, zerocopy.lazy_load(path).values()))
    assert tensors
    for tensor in tensors:
        assert tensor.nbytes == tensor.numel() * tensor.element_size()
        assert not tensor.is_loaded


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


# ----------------------------------------------------------------------------- loading and letting go


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


def test_the_checkpoint_may_go_before_its_tensors(path: Path) -> None:
    tensor = zerocopy.lazy_load(path)["transposed"]
    gc.collect()
    assert_same(tensor.materialize(), zerocopy.load(path)["transposed"])


@pytest.mark.parametrize("order", [("first", "all"), ("all", "first"), ("window", "all")])
def test_ties(path: Path, order: tuple[str, str]) -> None:
    """Tensors over one storage come to lie over one storage, whichever is loaded first, and how."""
    lazy = zerocopy.lazy_load(path)
    one, other = lazy[order[0]], lazy[order[1]]
    one.mul_(2)
    assert untyped(one.materialize())._cdata == untyped(other.materialize())._cdata
    expected = zerocopy.load(path)
    expected[order[0]].mul_(2)
    assert_same([one.materialize(), other.materialize()], [expected[name] for name in order])
    assert untyped(lazy["big"].materialize())._cdata != untyped(one.materialize())._cdata
    assert untyped(lazy["big"].materialize())._cdata == untyped(lazy["transposed"].materialize())._cdata


def test_one_tensor_in_two_places_is_one_placeholder(save: Saver) -> None:
    shared = torch.ones(3)
    lazy = zerocopy.lazy_load(save({"a": shared, "b": [shared]}))
    assert lazy["a"] is lazy["b"][0]


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


@pytest.mark.parametrize("how", IN_PLACE)
def test_changes_stay(path: Path, how: str) -> None:
    """In the placeholder, for the tensors tied to it, and not in the file."""
    before = digest(path)
    eager, lazy = zerocopy.load(path), zerocopy.lazy_load(path)
    IN_PLACE[how](eager["big"])
    IN_PLACE[how](lazy["big"])
    gc.collect()
    names = ("big", "transposed")
    for read in (lambda t: t.materialize(), lambda t: t + 0):
        found = [read(lazy[name]) for name in names]
        assert_same([t.clone() for t in found], [eager[name].clone() for name in names])
    assert lazy["big"].shape == eager["big"].shape
    assert lazy["big"].stride() == eager["big"].stride()
    assert digest(path) == before


def test_views_share_memory_with_it(path: Path) -> None:
    tensor = zerocopy.lazy_load(path)["big"]
    views = [tensor[3], tensor.view(-1)[6000:8000], tensor.t()[:, 3], tensor.detach()[3], tensor.data[3]]
    tensor[3, :] = 7
    assert all(torch.equal(view, torch.full((2000,), 7.0)) for view in views)


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


def test_the_source_of_a_copy_that_was_changed(path: Path) -> None:
    tensor = zerocopy.lazy_load(path)["big"]
    tensor.zero_()
    assert torch.equal(torch.ones(1000, 2000).copy_(tensor), torch.zeros(1000, 2000))
    assert torch.equal(tensor.materialize(), torch.zeros(1000, 2000))


@pytest.mark.parametrize(
    "copy",
    [
        torch.Tensor.copy_,
        torch.ops.aten.copy_,
        lambda into, tensor: into.copy_(tensor[:1], non_blocking=True),
        lambda into, tensor: into.copy_(into).copy_(tensor),
    ],
    ids=["method", "operator", "broadcast", "twice"],
)
@pytest.mark.parametrize("how", ["lazy_load", "open"])
def test_a_copy_from_one_to_another(save: Saver, how: str, copy: Any) -> None:
    lazy = getattr(zerocopy, how)(save({"into": torch.zeros(2, 3), "tensor": torch.ones(2, 3)}))
    into, tensor = lazy["into"], lazy["tensor"]
    copy(into, tensor)
    assert torch.equal(into, torch.ones(2, 3)) and torch.equal(lazy["into"], torch.ones(2, 3))


def test_operations_on_the_meta_device(save: Saver) -> None:
    lazy = zerocopy.lazy_load(save({f"{i}": torch.ones(2, 3) for i in range(3)}), device="meta")
    results = lazy["0"] + 1, lazy["1"][0], torch.nn.Parameter(lazy["2"])
    assert [(tuple(result.shape), result.device.type) for result in results] == [
        ((2, 3), "meta"),
        ((3,), "meta"),
        ((2, 3), "meta"),
    ]


def test_a_copy_that_autograd_follows(path: Path) -> None:
    parameter = zerocopy.lazy_load(path)["parameter"]
    (torch.zeros(3, 4).copy_(parameter) * 2).sum().backward()
    assert_same(parameter.grad, torch.full((3, 4), 2.0))


def test_mode_of_the_mapping(save: Saver) -> None:
    """``mode="r+"`` writes to the file what is changed through a placeholder."""
    path = save({"a": torch.zeros(2000)})
    tensor = zerocopy.lazy_load(path, mode="r+")["a"]
    tensor.fill_(7)
    del tensor
    gc.collect()
    assert torch.equal(torch.load(path)["a"], torch.full((2000,), 7.0))


# ----------------------------------------------------------------------------- the file meanwhile

AFTERWARDS: dict[str, str] = {
    "unlinked": "os.unlink(path)",
    "replaced": "torch.save({'a': torch.zeros(50_000)}, path + '2'); os.replace(path + '2', path)",
    "truncated": "os.truncate(path, os.path.getsize(path) // 2)",
    "emptied": "os.truncate(path, 0)",
    "rewritten": "torch.save({'a': torch.zeros(50_000)}, path)",
    "overwritten": "f = open(path, 'r+b'); f.seek(1000); f.write(b'x' * 100); f.close()",
    "grown": "f = open(path, 'ab'); f.write(b'x'); f.close()",
}
LOADING = """
    import errno, os, sys, torch, zerocopy
    path = sys.argv[1]
    a = zerocopy.lazy_load(path, backend=sys.argv[2])['a']
    assert a.shape == (50_000,)
    {change}
    try:
        print("loaded", {use})
    except zerocopy.FormatError as error:
        print("FormatError", path in str(error))
    except OSError as error:
        print("OSError", path in str(error) and error.filename == path and error.errno in (errno.ENOENT, errno.ESTALE))
    print("still", a.shape[0], a.is_loaded, "Not" in repr(a))
"""


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("use", ["a.materialize().sum()", "a + 1", "torch.zeros(50_000).copy_(a)", "a[:3]"])
@pytest.mark.parametrize("change", AFTERWARDS)
def test_the_file_changed_before_it_was_loaded(
    tmp_path: Path, forked: Child, change: str, use: str, backend: str
) -> None:
    """An error that names the file; no bus error, no other bytes. The placeholder is as it was."""
    path = tmp_path / "checkpoint.pt"
    torch.save({"a": torch.ones(50_000)}, path)
    os.utime(path, (1, 1))
    done = forked(LOADING.format(change=AFTERWARDS[change], use=use), path, backend)
    said, _, rest = done.stdout.partition("\n")
    assert said in ("FormatError True", "OSError True"), (done.returncode, done.stdout, done.stderr)
    assert rest == "still 50000 False True\n"


@pytest.mark.parametrize("change", ["unlinked", "replaced", "grown"])
def test_the_file_changed_after_it_was_loaded(tmp_path: Path, forked: Child, change: str) -> None:
    """The real tensor is there."""
    path = tmp_path / "checkpoint.pt"
    torch.save({"a": torch.ones(50_000)}, path)
    os.utime(path, (1, 1))
    code = f"""
        import os, sys, torch, zerocopy
        path = sys.argv[1]
        a = zerocopy.lazy_load(path)["a"]
        b = a + 1
        {AFTERWARDS[change]}
        assert float(a.sum()) == 50_000 and a.materialize() is a.materialize() and a[7] == 1
    """
    done = forked(code, path)
    assert done.returncode == 0, done.stderr


def test_other_folders(save: Saver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is that of the folder where the checkpoint was opened."""
    path = save({"a": torch.ones(3)})
    monkeypatch.chdir(path.parent)
    tensor = zerocopy.lazy_load(path.name)["a"]
    monkeypatch.chdir("/")
    assert torch.equal(tensor, torch.ones(3))


# ----------------------------------------------------------------------------- threads

THREADS, KEYS = 32, 1000
USES: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.materialize().clone(),
    lambda t: t + 0,
    lambda t: torch.empty(t.shape).copy_(t),
    lambda t: torch.stack([t, t])[1],
    lambda t: t[:],
)


@FORMATS
def test_threads(save: Saver, zip_format: bool) -> None:
    """Many threads that use random tensors in many ways get what one would get."""
    state = {f"layer.{i}": torch.full((10 + i,), float(i)) for i in range(200)}
    path = save(state, _use_new_zipfile_serialization=zip_format)
    tensors = zerocopy.lazy_load(path)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(seed: int) -> int:
        chosen = random.Random(seed)
        names = chosen.choices(list(state), k=KEYS)
        return sum(torch.equal(chosen.choice(USES)(tensors[name]), state[name]) for name in names)

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(work, range(THREADS))) == [KEYS] * THREADS
    finally:
        sys.setswitchinterval(interval)
    tensors.clear()
    gc.collect()
    assert maps_of(path) == []


def test_threads_that_load_one_tensor_at_once(path: Path) -> None:
    """They get one tensor: what one thread changes in place is there for the others."""
    for _ in range(20):
        tensor = zerocopy.lazy_load(path)["all"]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda i, tensor=tensor: tensor[i].fill_(-1), range(16)))
            found = {id(real) for real in pool.map(lambda _, t=tensor: t.materialize(), range(16))}
        assert len(found) == 1
        assert torch.equal(tensor[:16], torch.full((16,), -1.0))


# --------------------------------------------------------------------------------- what bypasses the class

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
@pytest.mark.parametrize("kind", LAZY_KINDS)
def test_data_of_an_unread_tensor_are_refused_and_do_not_crash(
    save: Saver, kind: str, options: dict[str, Any]
) -> None:
    lazy = zerocopy.lazy_load(save({"x": LAZY_KINDS[kind]()}), weights_only=False, **options)["x"]
    other = torch.zeros(4, dtype=lazy.dtype)
    other.data = lazy
    with pytest.raises(RuntimeError, match="storage"):
        other.tolist()


@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_data_of_a_tensor_that_was_used_are_shared(save: Saver, kind: str) -> None:
    lazy = zerocopy.lazy_load(save({"x": LAZY_KINDS[kind]()}), weights_only=False)["x"]
    other = torch.zeros(4, dtype=lazy.dtype)
    _ = lazy + 0
    other.data = lazy
    other.add_(1)
    assert torch.equal(lazy, LAZY_KINDS[kind]() + 1)


@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_data_are_set_to_those_of_another_lazy_tensor(save: Saver, kind: str) -> None:
    path = save({"x": LAZY_KINDS[kind]()})
    one, other = (zerocopy.lazy_load(path, weights_only=False)["x"] for _ in range(2))
    one.data = other
    one.data = one
    with torch.no_grad():
        other.mul_(2)
    assert torch.equal(one, LAZY_KINDS[kind]() * 2)


@pytest.mark.parametrize("cast", ["half", "float", "double", "bfloat16"])
def test_module_with_integer_and_complex_parameters_is_cast(save: Saver, cast: str) -> None:
    module = torch.nn.Linear(2, 2)
    module.count = torch.nn.Parameter(torch.arange(4), requires_grad=False)
    module.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    path = save(module)
    lazy = zerocopy.lazy_load(path, weights_only=False)
    for each in (module, lazy):
        getattr(each, cast)()
    for expected, found in zip(module.parameters(), lazy.parameters(), strict=True):
        assert_same(expected.detach(), found.detach())


@pytest.mark.parametrize(
    "options", [{}, {"dtype": torch.float32}, {"dtype": torch.float16}, {"device": "cpu"}], ids=str
)
@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_place_in_the_storage_is_the_same_before_and_after_loading(
    save: Saver, kind: str, options: dict[str, Any]
) -> None:
    lazy = zerocopy.lazy_load(save({"x": LAZY_KINDS[kind]()}), weights_only=False, **options)["x"]
    before = lazy.storage_offset(), lazy.stride()
    assert not lazy.is_loaded
    real = lazy.materialize()
    assert before == (real.storage_offset(), real.stride())
