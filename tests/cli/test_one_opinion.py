"""Every call and command has the same opinion of a file: healthy, odd or damaged."""

from __future__ import annotations

import json
import pickle
import sys
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from assembler import call, checkpoint, name
from assembler import pickle as stream
from commands import Capture
from conftest import saved_bytes
from dcp_folders import Metadata, Writer, class_of

import zerocopy
from zerocopy.__main__ import main

STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}
FINE, REFUSED = "fine", "refused"
PLANNER = "torch.distributed.checkpoint.planner"


class Opinions(NamedTuple):
    """The answer of each way: of calls "fine" or "refused", of commands the exit code."""

    load: str = FINE
    open: str = FINE
    convert: str = FINE
    explain: str = FINE
    ls: int = 0
    verify: int = 0
    scan: int = 0


NOT_A_CHECKPOINT = Opinions(REFUSED, REFUSED, REFUSED, REFUSED, 2, 2, 2)
DAMAGED = Opinions(REFUSED, REFUSED, REFUSED, REFUSED, 2, 1, 1)


def _written(filename: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / filename
        path.write_bytes(content())
        return path

    return make


def _safetensors(folder: Path) -> Path:
    torch.save(STATE, folder / "source.pt")
    zerocopy.convert(folder / "source.pt", folder / "model.safetensors")
    return folder / "model.safetensors"


def _cut_safetensors(folder: Path) -> Path:
    path = _safetensors(folder)
    path.write_bytes(path.read_bytes()[:-4])
    return path


def _shards(folder: Path) -> Path:
    torch.save(STATE, folder / "source.pt")
    zerocopy.convert(folder / "source.pt", folder / "shards", max_shard_size=10)
    return folder / "shards"


def _index_with_a_name_too_many(folder: Path) -> Path:
    path = _shards(folder) / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"]["ghost"] = content["weight_map"]["weight"]
    path.write_text(json.dumps(content))
    return path.parent


def _missing_shard(folder: Path) -> Path:
    shards = _shards(folder)
    next(shards.glob("*-00002-of-*")).unlink()
    return shards


def _unknown() -> bytes:
    module = sys.modules["module_of_a_stranger"] = types.ModuleType("module_of_a_stranger")
    module.Thing = type("Thing", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    try:
        return saved_bytes({"weight": torch.ones(2), "thing": module.Thing()})
    finally:
        del sys.modules["module_of_a_stranger"]


def _opaque(folder: Path) -> Path:
    h5py, numpy = pytest.importorskip("h5py"), pytest.importorskip("numpy")
    with h5py.File(folder / "x.h5", "w") as file:
        file["weight"] = numpy.ones((2, 3), "f4")
        file["pairs"] = numpy.zeros(3, [("a", "i4"), ("b", "f4")])
    return folder / "x.h5"


def _nested_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
        archive.writestr("policy.pth", saved_bytes(STATE))
        archive.writestr("data", "{}")
    return folder / "agent.zip"


def _dcp(folder: Path) -> Writer:
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    for key, tensor in STATE.items():
        writer.add(key, tensor)
    writer.add("step", 7)
    return writer


def _megatron(folder: Path) -> Path:
    """Return a folder whose metadata hold the plans of all ranks, as Megatron-core keeps them."""
    writer = _dcp(folder)
    item = class_of(PLANNER, "WriteItem")(index=None, type=_Numbered(2), bytes_io_data=None, tensor_data=None)
    plan = class_of(PLANNER, "SavePlan")(items=[item], storage_data=None, planner_data=None)
    fields = writer.metadata().__dict__ | {"all_local_plans": [plan]}
    writer.metadata = lambda: Metadata(**fields)  # type: ignore[method-assign]
    return writer.write()


class _Numbered:
    """A member of ``WriteItemType``, as pickle writes it: a call with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return class_of(PLANNER, "WriteItemType"), (self.number,)


def _flipped() -> bytes:
    content = bytearray(saved_bytes(STATE))
    content[content.index(STATE["weight"].numpy().tobytes()) + 5] ^= 1
    return bytes(content)


FILES: dict[str, tuple[Callable[[Path], Path], Opinions]] = {
    "healthy": (_written("x.pt", lambda: saved_bytes(STATE)), Opinions()),
    "legacy": (
        _written("x.pt", lambda: saved_bytes(STATE, _use_new_zipfile_serialization=False)),
        Opinions(),
    ),
    "safetensors": (_safetensors, Opinions()),
    "shards": (_shards, Opinions()),
    "a DCP folder": (lambda folder: _dcp(folder).write(), Opinions()),
    "a DCP folder of Megatron-core": (_megatron, Opinions()),
    "numbers that no tensor holds": (_opaque, Opinions()),
    # The tensors of a file with unknown classes come to memory all the same: with unknown="stub".
    "unknown classes": (_written("x.pt", _unknown), Opinions(REFUSED, REFUSED, REFUSED, scan=1)),
    "an index with a name too many": (
        _index_with_a_name_too_many,
        Opinions(REFUSED, REFUSED, REFUSED, REFUSED, ls=1, verify=1),
    ),
    "a missing shard": (_missing_shard, Opinions(REFUSED, REFUSED, REFUSED, REFUSED, 1, 2, 2)),
    "a zip with checkpoints": (_nested_zip, NOT_A_CHECKPOINT),
    "an empty file": (_written("x.pt", bytes), NOT_A_CHECKPOINT),
    # scan looks at every pickle, and says what it names.
    "a bare pickle": (_written("x.pt", lambda: pickle.dumps({"a": 1})), NOT_A_CHECKPOINT._replace(scan=1)),
    "a truncated archive": (_written("x.pt", lambda: saved_bytes(STATE)[:900]), DAMAGED),
    "a truncated legacy file": (
        _written("x.pt", lambda: saved_bytes(STATE, _use_new_zipfile_serialization=False)[:-3]),
        DAMAGED,
    ),
    "a truncated safetensors file": (_cut_safetensors, DAMAGED),
    # A load does not read what it maps; verify does.
    "a wrong checksum": (_written("x.pt", _flipped), Opinions(verify=1)),
}


@pytest.mark.parametrize(("make", "wanted"), FILES.values(), ids=FILES)
def test_every_way_has_the_same_opinion(
    make: Callable[[Path], Path], wanted: Opinions, tmp_path: Path, capsys: Capture
) -> None:
    path = make(tmp_path)

    def opened() -> None:
        with zerocopy.open(path) as checkpoint:
            checkpoint.tensors()

    def code(command: str) -> int:
        return main([command, str(path)])

    assert wanted == Opinions(
        _attempt(lambda: zerocopy.load(path)),
        _attempt(opened),
        _attempt(lambda: zerocopy.convert(path, tmp_path / "out.pt")),
        _attempt(lambda: zerocopy.explain(path)),
        code("ls"),
        code("verify"),
        code("scan"),
    )
    capsys.readouterr()


def _attempt(call: Callable[[], Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except (zerocopy.Error, pickle.UnpicklingError, OSError):
            return REFUSED
    return FINE


def test_ls_of_a_distributed_tensor_says_dtype_and_shape(tmp_path: Path, capsys: Capture) -> None:
    cls = name("torch.distributed.tensor", "DTensor")
    layout = call(name("torch.serialization", "_get_layout"), "torch.strided")
    device = call(name("torch", "device"), "cpu")
    facts = (cls, name("torch", "float32"), (4, 3), (3, 1), 0, layout, device, False)
    rebuild = (
        name("torch._tensor", "_rebuild_from_type_v2"),
        name("torch._utils", "_rebuild_wrapper_subclass"),
    )
    path = tmp_path / "x.pt"
    path.write_bytes(checkpoint(stream({"weight": call(rebuild[0], rebuild[1], cls, facts, {})}), {}))
    assert main(["ls", str(path)]) == 0
    assert capsys.readouterr().out.split("\t")[:4] == ["weight", "float32", "4x3", "48"]
