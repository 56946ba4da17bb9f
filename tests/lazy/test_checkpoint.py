"""``zerocopy.open``: every name of a checkpoint, in every container, against the eager result."""

from __future__ import annotations

import collections
import copy
import errno
import gc
import io
import os
import pickle
import random
import re
import weakref
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import payload_offset
from conftest import Child, Saver, maps_of, outcome
from containers import CONTAINERS, leaves, tensors
from equality import assert_same, untyped

import zerocopy

BASE = torch.arange(24.0).view(4, 6)


def trained() -> dict[str, Any]:
    """Return the checkpoint of a model and its optimizer, as people save them."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.5}


def cycle() -> dict[str, Any]:
    branch: dict[str, Any] = {"weight": BASE, "inner": [BASE[1]]}
    branch["inner"].append(branch)
    return {"branch": branch, "again": branch}


OBJECTS: dict[str, Callable[[], Any]] = {
    "state dict": lambda: collections.OrderedDict(weight=BASE, tied=BASE, row=BASE[1], bias=torch.ones(3)),
    "nested": lambda: {"a": {"b": [BASE, (torch.ones(2), {"c": BASE[:2]})]}, "d": {}, "e": [], "f": None},
    "trained": trained,
    "bare tensor": lambda: torch.ones(2, 3),
    "bare number": lambda: 3,
    "empty": dict,
    "keys of other types": lambda: {0: BASE, True: BASE[0], 2.5: BASE[1], None: BASE[2], "s": 1},
    "names that collide": lambda: {"a.b": BASE, "a": {"b": BASE[0], "c": 1}, 0: BASE[1], "0": BASE[2]},
    "a branch and a leaf": lambda: {"a": BASE, "a.b": BASE[0], "": BASE[1], ".": BASE[2]},
    "cycle": cycle,
    "views": lambda: [BASE.t(), BASE[:, 1], BASE[::2, ::3], torch.ones(3).expand(2, 3), BASE[1:, :0], BASE[2, 3]],
    "flags": lambda: [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, requires_grad=True)],
    "parameters": lambda: {"p": torch.nn.Parameter(BASE), "q": torch.nn.Parameter(BASE[0], requires_grad=False)},
    "empty tensors": lambda: [torch.ones(0), torch.ones(2, 0), torch.ones(0)],
    "strange names": lambda: {"\x1b[31m": BASE, "a\nb": BASE[0], "\u202e": BASE[1], "<b>": BASE[2], "ü": BASE[3]},
}  # fmt: skip

STATE = {
    f"layers.{i}.{kind}": torch.full((3, i % 7), float(i)) for i in range(50) for kind in ("weight", "bias")
}


@pytest.fixture
def path(save: Saver) -> Path:
    return save({"model": STATE, "step": 7})


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_name_is_as_in_the_eager_result(container: str, tmp_path: Path) -> None:
    for number, make in enumerate(OBJECTS.values()):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(CONTAINERS[container](make()))
        eager, checkpoint = zerocopy.load(path), zerocopy.open(path)
        expected = tensors(eager)
        assert list(checkpoint) == list(expected)
        assert_same({key: checkpoint.get_tensor(key) for key in checkpoint}, apart(expected))
        assert_same(checkpoint.metadata(), {k: v for k, v in leaves(eager).items() if k not in expected})
        for info in checkpoint.tensors():
            check_info(info, expected, path.read_bytes() if container != "deflated" else None)


def apart(all_tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of which no two are one object, over the same storages: names are looked up one by one."""
    found: dict[int, torch.Tensor] = {}
    return {
        name: alias(tensor) if id(tensor) in found else found.setdefault(id(tensor), tensor)
        for name, tensor in all_tensors.items()
    }


def alias(tensor: torch.Tensor) -> torch.Tensor:
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    other = tensor.detach().requires_grad_(tensor.requires_grad)
    return torch.nn.Parameter(other, tensor.requires_grad) if is_parameter else other


def check_info(
    info: zerocopy.TensorInfo, all_tensors: Mapping[str, torch.Tensor], content: bytes | None
) -> None:
    tensor = all_tensors[info.name]
    told = (info.shape, info.dtype, info.stride, info.device, info.requires_grad)
    assert told == (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.requires_grad)
    assert type(info.shape) is torch.Size and info.nbytes == tensor.numel() * tensor.element_size()
    if untyped(tensor).nbytes():
        same = {n for n, t in all_tensors.items() if untyped(t)._cdata == untyped(tensor)._cdata}
        assert {info.name, *info.tied} == same and info.name not in info.tied
    if content is None:
        assert info.offset is None
    elif tensor.numel():
        first = tensor.detach().resolve_conj().flatten()[0]
        data = content[info.offset :][: tensor.element_size()]
        assert tensor.is_conj() or data == first.clone().view(1).view(torch.uint8).numpy().tobytes()


def made(make: Callable[[], Any]) -> Any:
    kind, value, *_ = outcome(make)
    return pytest.skip("this release has no such tensor") if kind == "error" else value


OTHER_TENSORS: dict[str, Callable[[], Any]] = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.5, 3, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", OTHER_TENSORS)
def test_tensors_that_are_not_dense(kind: str, save: Saver) -> None:
    tensor = made(OTHER_TENSORS[kind])
    path = made(lambda: save({"other": tensor, "dense": BASE}))
    eager = outcome(lambda: zerocopy.load(path))
    if eager[0] == "error":
        assert outcome(lambda: zerocopy.open(path).get_tensor("other")) == eager
        return
    checkpoint = zerocopy.open(path)
    info = checkpoint.info("other")
    assert list(checkpoint) == ["other", "dense"] and checkpoint.metadata() == {}
    assert (info.dtype, info.device, info.tied) == (tensor.dtype, tensor.device, ())
    assert info.nbytes == tensor.numel() * tensor.element_size()
    assert "other" in checkpoint.tree() and "other" in checkpoint._repr_html_()
    assert not getattr(checkpoint["other"], "is_loaded", False)
    assert_same(checkpoint.get_tensor("other"), eager[1]["other"])


def test_checkpoint_is_a_mapping(path: Path) -> None:
    checkpoint = zerocopy.open(path)
    names = [f"model.{name}" for name in STATE]
    assert isinstance(checkpoint, Mapping)
    assert list(checkpoint) == list(checkpoint.keys()) == names == [name for name, _ in checkpoint.items()]
    assert len(checkpoint) == len(names) == len(checkpoint.items()) == len(checkpoint.values())
    assert names[3] in checkpoint
    assert not any(other in checkpoint for other in ("step", 3, "\ud800"))
    assert checkpoint.keys() >= set(names[:2])
    assert checkpoint.get("nothing") is None and checkpoint.get("nothing", 3) == 3
    assert checkpoint.get(names[1]) is checkpoint[names[1]]
    for placeholder, tensor in zip(checkpoint.values(), STATE.values(), strict=True):
        assert not placeholder.is_loaded and placeholder.shape == tensor.shape
        assert torch.equal(placeholder, tensor)
    held = dict(checkpoint)
    assert checkpoint == checkpoint and checkpoint == held and checkpoint != {}


def test_a_placeholder_is_made_once_while_it_lives(path: Path) -> None:
    checkpoint = zerocopy.open(path)
    first = checkpoint["model.layers.1.weight"]
    assert checkpoint["model.layers.1.weight"] is first
    first.add_(5)
    assert torch.equal(checkpoint.get_tensor("model.layers.1.weight"), STATE["layers.1.weight"] + 5)
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    assert torch.equal(checkpoint.get_tensor("model.layers.1.weight"), STATE["layers.1.weight"])


def test_ties(save: Saver) -> None:
    checkpoint = zerocopy.open(save({"weight": BASE, "tied": BASE, "row": BASE[1], "other": torch.ones(2)}))
    weight, tied, row = checkpoint["weight"], checkpoint.get_tensor("tied"), checkpoint["row"]
    tied[1] = 7
    assert row.tolist() == [7] * 6 == weight[1].tolist()
    assert checkpoint.info("row").tied == ("weight", "tied") and checkpoint.info("other").tied == ()
    assert zerocopy.open(checkpoint.path, keys=["row", "tied"]).info("row").tied == ("tied",)


def test_threads_get_what_one_thread_gets(path: Path) -> None:
    checkpoint, eager = zerocopy.open(path), tensors(zerocopy.load(path))

    def work(seed: int) -> None:
        for i, name in enumerate(random.Random(seed).choices(list(eager), k=200)):
            if i % 5 == 0:
                assert torch.equal(checkpoint.get_slice(name)[1:], eager[name][1:])
            elif i % 5 == 1:
                assert checkpoint.info(name).shape == eager[name].shape
            elif i % 5 == 2:
                assert torch.equal(torch.stack([checkpoint[name]] * 2)[1], eager[name])
            else:
                assert torch.equal(checkpoint[name], eager[name])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_names_that_are_not_there(path: Path) -> None:
    checkpoint = zerocopy.open(path)
    wrong = {
        "model.layers.3.wieght": "close to it: model.layers.3.weight",
        "model": "model.layers.0.weight, model.layers.0.bias, ",
        "step": "metadata",
        "x" * 10**6: "x...",
        "\x1b[31m": r"\x1b[31m",
        "": "''",
        3: "int",
    }
    for name, hint in wrong.items():
        for access in (checkpoint.__getitem__, checkpoint.get_tensor, checkpoint.get_slice, checkpoint.info):
            with pytest.raises(KeyError) as error:
                access(name)
            (text,) = error.value.args
            assert "checkpoint.pt" in text and hint in text and len(text) < 2000


def test_copying_and_pickling_a_checkpoint_advise_its_path(path: Path) -> None:
    checkpoint = zerocopy.open(path)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="path"):
            attempt(checkpoint)


def test_sources(path: Path) -> None:
    content = path.read_bytes()
    with path.open("rb") as file:
        for source in (
            path,
            str(path),
            file,
            content,
            bytearray(content),
            memoryview(content),
            io.BytesIO(content),
        ):
            checkpoint = zerocopy.open(source)
            assert torch.equal(checkpoint.get_tensor("model.layers.5.bias"), STATE["layers.5.bias"])
            is_named = source in (path, str(path), file)
            assert checkpoint.path == (str(path) if is_named else f"<{type(source).__name__}>")


def test_filters(path: Path) -> None:
    names = [f"model.{name}" for name in STATE]
    two = zerocopy.open(path, keys=["model.layers.7", "model.layers.3.bias"])
    assert list(two) == ["model.layers.3.bias", "model.layers.7.weight", "model.layers.7.bias"]
    assert two.metadata() == {} and "model.layers.1.bias" not in two
    with pytest.raises(KeyError):
        two["model.layers.1.bias"]
    assert list(zerocopy.open(path, keys=["model"])) == names
    assert list(zerocopy.open(path, keys=[])) == []
    step = zerocopy.open(path, keys=["step"])
    assert list(step) == [] and step.metadata() == {"step": 7}
    assert list(zerocopy.open(path, prefix="model.layers.4")) == [
        n for n in names if n.startswith("model.layers.4")
    ]
    assert list(zerocopy.open(path, prefix="layers")) == []
    biases = zerocopy.open(path, prefix="model.layers.1", predicate=lambda name: name.endswith(".bias"))
    assert list(biases) == [n for n in names if n.startswith("model.layers.1") and n.endswith(".bias")]
    assert len(biases) == len(biases.tensors()) == len(biases.items())
    with pytest.raises(KeyError, match=r"checkpoint\.pt.*model\.layers\.3\.bias"):
        zerocopy.open(path, keys=["model.layers.2.bias", "model.layers.3.bais"])


def test_conversions(save: Saver) -> None:
    state = {"weight": BASE, "count": torch.arange(3), "z": torch.ones(2, dtype=torch.complex64)}
    path = save(state)
    half = zerocopy.open(path, dtype=torch.bfloat16)
    assert half["weight"].dtype == half.get_slice("weight").dtype == torch.bfloat16
    assert_same(half.get_tensor("weight"), BASE.to(torch.bfloat16))
    assert_same(half.get_slice("weight")[1:, ::2].clone(), BASE.to(torch.bfloat16)[1:, ::2].clone())
    assert_same(half.get_slice("weight")[[2, 1]], BASE.to(torch.bfloat16)[[2, 1]])
    assert half.get_tensor("count").dtype == torch.int64 and half.get_tensor("z").dtype == torch.complex64
    assert half.info("weight").dtype == torch.float32
    meta = zerocopy.open(path, device="meta")
    assert meta["count"].device.type == meta.get_tensor("count").device.type == "meta"
    assert meta.get_slice("count")[1:].device.type == "meta"


BAD: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "refused": lambda path: torch.save({"a": Path("x"), "b": frozenset()}, path),
    "gone": lambda path: path.unlink(),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", BAD)
def test_open_refuses_the_files_that_load_refuses(path: Path, kind: str) -> None:
    BAD[kind](path)
    refused = outcome(lambda: zerocopy.load(path))
    assert refused[0] == "error"
    assert outcome(lambda: zerocopy.open(path)) == refused


def test_a_broken_record(tmp_path: Path) -> None:
    """It is noticed when it is read, and the message names the file then too."""
    path = tmp_path / "x.pt"
    path.write_bytes(CONTAINERS["deflated"]([torch.arange(1000.0), BASE]))
    with path.open("rb+") as file:
        file.seek(payload_offset(path, "data/0") + 20)
        file.write(b"\xff" * 40)
    checkpoint = zerocopy.open(path)
    part = checkpoint.get_slice("0")
    for access in (
        lambda: checkpoint.get_tensor("0"),
        lambda: part[3:5],
        lambda: part[[1]],
        checkpoint["0"].sum,
    ):
        with pytest.raises(zerocopy.FormatError, match=r"x\.pt"):
            access()
    assert torch.equal(checkpoint.get_tensor("1"), BASE)


def test_far_more_names_than_bytes_are_refused(save: Saver) -> None:
    doubled: Any = [torch.ones(1)]
    for _ in range(40):
        doubled = [doubled, doubled]
    with pytest.raises(zerocopy.FormatError, match=r"checkpoint\.pt: .*leaves"):
        zerocopy.open(save(doubled))


def write(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: path.unlink(),
    "replaced": lambda path: (
        torch.save(STATE, path.with_suffix(".new")),
        path.with_suffix(".new").replace(path),
    ),
    "rewritten": lambda path: write(path, path.stat().st_size // 2, bytes(path.stat().st_size // 2)),
    "overwritten": lambda path: write(path, 1000, b"x"),
    "grown": lambda path: write(path, path.stat().st_size, b"x"),
    "truncated": lambda path: os.truncate(path, 200),
    "emptied": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("change", CHANGES)
def test_file_that_changes_raises_and_names_the_file(path: Path, change: str, backend: str) -> None:
    """No bus error, and no other bytes. Placeholders are as they were."""
    os.utime(path, (1, 1))  # however coarse the file system's clock is
    checkpoint, name = zerocopy.open(path, backend=backend), "model.layers.6.bias"
    lazy = zerocopy.lazy_load(path, backend=backend)["model"]["layers.6.bias"]
    before, slices = checkpoint["model.layers.5.bias"], checkpoint.get_slice(name)
    CHANGES[change](path)
    for access in (
        lambda: before + 1,
        lambda: slices[1],
        lambda: slices[[1]],
        lambda: checkpoint.get_tensor(name),
        lambda: checkpoint["model.layers.6.weight"].tolist(),
        lambda: checkpoint.get_slice("model.layers.6.weight")[0],
        lambda: checkpoint.read({"model.layers.6.weight": ...}),
        lambda: lazy.materialize().sum(),
        lambda: torch.zeros(3, 6).copy_(lazy),
        lambda: lazy[:3],
    ):
        with pytest.raises(OSError, match=re.escape(str(path))) as caught:
            access()
        assert caught.value.filename == str(path) and caught.value.errno in (errno.ENOENT, errno.ESTALE)
    assert lazy.shape == (3, 6) and not lazy.is_loaded and "NotYet" in repr(lazy)
    assert len(checkpoint) == 100 and checkpoint[name].shape == (3, 6)
    if change in (
        "gone",
        "replaced",
        "overwritten",
        "grown",
    ):  # where a tensor begins is read when it is asked for
        assert checkpoint.info(name).shape == (3, 6) and "3 x 6" in checkpoint.tree()
    else:
        for access in (checkpoint.tree, lambda: checkpoint.info(list(checkpoint)[-1])):
            with pytest.raises(OSError, match=r"checkpoint\.pt"):
                access()


def test_a_record_that_load_refuses(path: Path) -> None:
    """It is refused when it is used; the other tensors are right."""
    with zipfile.ZipFile(path) as archive:
        damaged = next(info for info in archive.infolist() if info.filename.endswith("/data/3"))
    with path.open("r+b") as file:
        file.seek(damaged.header_offset + 30)
        file.write(b"X")
    with pytest.raises(zerocopy.FormatError, match="disagree"):
        zerocopy.load(path)
    with zerocopy.open(path) as checkpoint:
        right = 0
        for name, expected in STATE.items():
            try:
                assert torch.equal(checkpoint.get_tensor(f"model.{name}"), expected)
                right += 1
            except zerocopy.FormatError as error:
                refused = f"model.{name}"
                assert "disagree" in str(error) and path.name in str(error)
        assert right == len(STATE) - 1
        for ask in (checkpoint.info, checkpoint.get_slice):
            with pytest.raises(zerocopy.FormatError, match=path.name):
                ask(refused)
        with pytest.raises(zerocopy.FormatError):
            checkpoint.tree()


def test_names_that_are_no_text(save: Saver) -> None:
    """Lone surrogates, as Python pickles them."""
    path = save({"\ud800": torch.ones(2), "b": {"x\udc80": BASE, "\U0001f600": BASE[1]}, "n\udfff": 5})
    with zerocopy.open(path) as checkpoint:
        assert list(checkpoint) == ["\ud800", "b.x\udc80", "b.\U0001f600"]
        assert torch.equal(checkpoint.get_slice("b.x\udc80")[1], BASE[1])
        assert checkpoint.metadata() == {"n\udfff": 5}
        for missing in ("\udc80", "b.\ud800", "\ud83d\ude00", "\xff"):
            with pytest.raises(KeyError):
                checkpoint[missing]
    assert list(zerocopy.lazy_load(path, keys=["\ud800"])) == ["\ud800"]


def test_closing(path: Path) -> None:
    with zerocopy.open(path) as checkpoint:
        assert not checkpoint.closed
        kept, unread = checkpoint.get_tensor("model.layers.5.bias"), checkpoint["model.layers.6.bias"]
        part = checkpoint.get_slice("model.layers.6.bias")
    assert checkpoint.closed and "closed" in repr(checkpoint) and checkpoint.path == str(path)
    for access in (
        lambda: unread + 1,
        lambda: part[1],
        lambda: part[[1]],
        lambda: checkpoint["model.layers.6.bias"],
        lambda: checkpoint["nothing"],
        lambda: checkpoint.get("nothing"),
        lambda: checkpoint.get_tensor("model.layers.6.bias"),
        lambda: checkpoint.get_slice("model.layers.6.bias"),
        lambda: checkpoint.info("model.layers.6.bias"),
        lambda: "nothing" in checkpoint,
        lambda: len(checkpoint),
        lambda: list(checkpoint),
        lambda: list(checkpoint.values()),
        checkpoint.tensors,
        checkpoint.metadata,
        checkpoint.tree,
        checkpoint.__enter__,
    ):
        with pytest.raises(zerocopy.ClosedError, match=r"checkpoint\.pt"):
            access()
    assert torch.equal(kept, STATE["layers.5.bias"])
    checkpoint.close()
    kept = unread = part = None
    gc.collect()
    assert maps_of(path) == []


CLOSED_MEANWHILE = """
    import contextlib, sys, threading, zerocopy
    sys.setswitchinterval(1e-6)

    def work(checkpoint, name, start):
        start.wait()
        with contextlib.suppress(zerocopy.ClosedError):
            checkpoint.get_tensor(name).sum(), checkpoint.get_slice(name)[1:], checkpoint.metadata()

    for i in range(600):
        checkpoint, start = zerocopy.open(sys.argv[1]), threading.Barrier(9)
        threads = [threading.Thread(target=work, args=(checkpoint, str(n), start)) for n in range(8)]
        for thread in threads:
            thread.start()
        start.wait()
        sum(range(i % 37))  # another moment each time
        checkpoint.close()
        for thread in threads:
            thread.join()
"""


@pytest.mark.slow("six hundred races")
def test_closing_while_other_threads_read(save: Saver, forked: Child) -> None:
    names = ("float32", "float64", "int8", "int16", "int32", "float16", "bfloat16", "bool")
    path = save([torch.ones(30, dtype=getattr(torch, name)) for name in names])
    done = forked(CLOSED_MEANWHILE, path)
    assert done.returncode == 0, done.stderr[-2000:]
