"""Folders of ``torch.distributed.checkpoint``: what torch writes, and what is wrong with what others write."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from conftest import lies_in_mapping
from dcp_folders import TensorProperties, Writer
from equality import assert_same

import zerocopy
from zerocopy.__main__ import main

WEIGHT = torch.arange(24.0).view(4, 6)
STATE = {
    "model": {"weight": WEIGHT, "bias": torch.ones(5, dtype=torch.bfloat16), "scalar": torch.tensor(3.5)},
    "optimizer": {
        "state": {"0": {"step": torch.tensor(3), "empty": torch.zeros(0, 3)}},
        "groups": [{"lr": 0.1}],
    },
    "list": [torch.ones(2), [torch.zeros(3), 7]],
    "step": 7,
}


def materialized(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: materialized(item) for key, item in value.items()}
    if isinstance(value, list):
        return [materialized(item) for item in value]
    return value.materialize() if isinstance(value, zerocopy.NotYetLoadedTensor) else value


def lazily(folder: Any, **options: Any) -> Any:
    return materialized(zerocopy.lazy_load(folder, **options))


each_way = pytest.mark.parametrize("way", [zerocopy.load, lazily], ids=["load", "lazy_load"])
Way = Callable[..., Any]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Return a folder to come: a nested state with one tensor in chunks of several files."""
    writer = Writer(tmp_path)
    halves = [
        ((0, 0), WEIGHT[:, :2].clone()),
        ((0, 2), WEIGHT[:3, 2:].clone()),
        ((3, 2), WEIGHT[3:, 2:].clone()),
    ]
    writer.add_chunks("model.weight", (4, 6), torch.float32, halves, ("model", "weight"))
    writer.add("model.bias", torch.ones(5, dtype=torch.float64), ("model", "bias"))
    writer.add("groups.1", {"lr": 0.1}, ("groups", 1))
    writer.add("groups.0.step", torch.tensor(3), ("groups", 0, "step"), "__1_0.distcp")
    writer.add("step", 7)
    return writer


CHUNKED = {
    "model": {"weight": WEIGHT, "bias": torch.ones(5, dtype=torch.float64)},
    "groups": [{"step": torch.tensor(3)}, {"lr": 0.1}],
    "step": 7,
}


# ------------------------------------------------------------------------------------ what is right

try:
    from torch.distributed.checkpoint import format_utils
except ImportError:
    format_utils = None

needs_dcp = pytest.mark.skipif(format_utils is None, reason="torch 2.3 and later")


@needs_dcp
@each_way
def test_what_torch_writes(tmp_path: Path, way: Way) -> None:
    import torch.distributed.checkpoint as stock

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stock.save(STATE, checkpoint_id=tmp_path / "folder")
        format_utils.dcp_to_torch_save(tmp_path / "folder", tmp_path / "file.pt")
    loaded = way(tmp_path / "folder")
    assert_same(loaded, torch.load(tmp_path / "file.pt", weights_only=True))
    assert_same(loaded, STATE)


@each_way
def test_chunks_of_several_files(writer: Writer, way: Way) -> None:
    folder = writer.write()
    for backend in ("auto", "mmap", "pread", "direct"):
        assert_same(way(folder, backend=backend), CHUNKED)
    assert_same(way(str(folder)), CHUNKED)
    if hasattr(torch, "set_default_device"):  # from 2.0
        with torch.device("meta"):
            found = way(folder)
        assert_same(found, CHUNKED)


def test_opened(writer: Writer) -> None:
    with zerocopy.open(writer.write()) as checkpoint:
        assert list(checkpoint) == ["model.weight", "model.bias", "groups.0.step"]
        assert checkpoint.metadata() == {"groups.1": {"lr": 0.1}, "step": 7}
        assert checkpoint.info("model.weight")[:3] == ("model.weight", (4, 6), torch.float32)
        assert not checkpoint["model.weight"].is_loaded
        assert_same(checkpoint.get_tensor("model.weight"), WEIGHT)
        assert_same(checkpoint.get_slice("model.weight")[1:, ::2], WEIGHT[1:, ::2])
        late = checkpoint["model.bias"]
    with pytest.raises(zerocopy.ClosedError):
        late + 1
    with pytest.raises(zerocopy.ClosedError):
        checkpoint["model.bias"]
    picked = zerocopy.lazy_load(writer.folder, prefix="model.", dtype=torch.float16)
    assert_same(materialized(picked), {"model": {k: v.half() for k, v in CHUNKED["model"].items()}})


def test_what_is_in_one_chunk_lies_in_the_file(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.add("first", torch.arange(1000.0))
    folder = writer.write()
    loaded = zerocopy.load(folder)["first"]
    assert lies_in_mapping(loaded.data_ptr(), folder / "__0_0.distcp")
    loaded.zero_()
    assert_same(zerocopy.load(folder)["first"], torch.arange(1000.0))
    zerocopy.load(folder, mode="r+")["first"].zero_()
    assert_same(zerocopy.load(folder)["first"], torch.zeros(1000))


@each_way
def test_what_does_not_lie_row_by_row(tmp_path: Path, way: Way) -> None:
    """torch's reader copies it into a tensor that does, and nothing else is known before it is read."""
    writer = Writer(tmp_path)
    writer.add("transposed", WEIGHT.t())
    writer.add("images", torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    writer.add("column", torch.arange(12.0).view(2, 6).t()[:, :1])
    writer.add("one", torch.ones(4).as_strided((4, 1), (1, 7)))
    folder = writer.write()
    loaded = way(folder)
    assert_same(loaded["transposed"], WEIGHT.t().contiguous())
    for name, placeholder in zerocopy.lazy_load(folder).items():
        rows = torch.empty(loaded[name].shape).stride()
        assert placeholder.stride() == loaded[name].stride() == rows
    hows = {storage.key: storage.how for storage in zerocopy.explain(folder).storages}
    assert {name for name, how in hows.items() if how == "copied"} >= {"transposed", "images"}
    with pytest.raises(zerocopy.UnsupportedError, match=r"row by row|aligned"):
        zerocopy.load(folder, mode="r+")


def test_explained(writer: Writer) -> None:
    explanation = zerocopy.explain(writer.write())
    assert explanation.container == "distributed" and explanation.note == "in 2 files"
    hows = {storage.key: (storage.how, storage.why) for storage in explanation.storages}
    assert hows["model.weight"] == ("copied", "the tensor is put together of several chunks")
    assert {*hows} == {"model.weight", "model.bias", "groups.0.step"}


# ------------------------------------------------------------------------------------ what is wrong


class Bomb:
    def __reduce__(self) -> Any:
        return print, ("bang",)


def test_nothing_of_metadata_is_called(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    writer.paths["step"] = Bomb()
    with pytest.raises(zerocopy.FormatError, match="a path of names"):
        zerocopy.load(writer.write())
    writer.paths["step"] = ("step",)
    writer.entries["step"] = Bomb()
    with pytest.raises(zerocopy.FormatError, match="metadata"):
        zerocopy.load(writer.write())
    assert not capsys.readouterr().out


@each_way
def test_what_is_stored_is_as_safe_as_a_file(
    tmp_path: Path, way: Way, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(tmp_path)
    writer.add("step", Bomb())
    with pytest.raises(pickle.UnpicklingError, match="print"):
        way(writer.write())
    assert not capsys.readouterr().out
    way(tmp_path, weights_only=False)
    assert capsys.readouterr().out == "bang\n"


def _relative(path: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.change("step", lambda info: setattr(info, "relative_path", path))


def _at(field: str, value: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.change("step", lambda info: setattr(info, field, value))


def _longer(writer: Writer) -> None:
    writer.change("step", lambda info: setattr(info, "length", info.length - 1))


def _sizes(**fields: Any) -> Callable[[Writer], None]:
    def change(writer: Writer) -> None:
        for name, value in fields.items():
            setattr(writer.entries["model.weight"].chunks[1], name, torch.Size(value))

    return change


def _shape(*shape: int) -> Callable[[Writer], None]:
    return lambda writer: setattr(writer.entries["model.weight"], "size", torch.Size(shape))


def _no_place(writer: Writer) -> None:
    writer.places = {index: info for index, info in writer.places.items() if index.fqn != "model.weight"}


def _dtype(dtype: Any) -> Callable[[Writer], None]:
    properties = TensorProperties(as_tuple=(dtype, torch.strided, False, None, False))
    return lambda writer: setattr(writer.entries["model.weight"], "properties", properties)


def _path(name: str, *path: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.paths.__setitem__(name, path)


def _entry(name: Any, value: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.entries.__setitem__(name, value)


def _other_archive(writer: Writer) -> None:
    writer.add("other", torch.zeros(1, 2))
    place = next(info for index, info in writer.places.items() if index.fqn == "other")
    for index in list(writer.places):
        if index.fqn == "model.weight" and index.index == 1:
            writer.places[index] = place
    del writer.entries["other"]  # Its archive may have one name only.


FAULTS: dict[str, tuple[Callable[[Writer], None], type[Exception], str]] = {
    "a file outside": (_relative("../../etc/passwd"), zerocopy.FormatError, "not in its folder"),
    "an absolute file": (_relative("/etc/passwd"), zerocopy.FormatError, "not in its folder"),
    "a file that is none": (_relative("gone.distcp"), FileNotFoundError, "gone.distcp"),
    "no file name": (_relative(7), zerocopy.FormatError, "not a file name"),
    "a file name with a zero": (_relative("a\0b"), zerocopy.FormatError, "not a file name"),
    "a folder as file": (_relative("."), OSError, ""),
    "behind the end": (_at("offset", 1 << 40), zerocopy.FormatError, "past the end"),
    "before the beginning": (_at("offset", -1), zerocopy.FormatError, "an offset and a length"),
    "a length that overflows": (_at("length", 1 << 63), zerocopy.FormatError, "an offset and a length"),
    "an offset that is no number": (_at("offset", "0"), zerocopy.FormatError, "an offset and a length"),
    "not the whole archive": (_longer, zerocopy.FormatError, "distcp"),
    "nothing there": (_at("length", 0), zerocopy.FormatError, "distcp"),
    "compressed": (_at("transform_descriptors", ["zstd"]), zerocopy.UnsupportedError, "extension"),
    "a hole": (_sizes(sizes=(2, 4)), zerocopy.FormatError, "make up"),
    "twice the same element": (_sizes(sizes=(4, 4)), zerocopy.FormatError, "make up"),
    "another rank": (_sizes(sizes=(3,)), zerocopy.FormatError, "make up"),
    "out of the tensor": (_sizes(sizes=(3, 40)), zerocopy.FormatError, "make up"),
    "a tensor that is larger": (_shape(4, 7), zerocopy.FormatError, "make up"),
    "a tensor beyond all memory": (_shape(1 << 40, 1 << 20), zerocopy.FormatError, "make up"),
    "a place that is missing": (_no_place, zerocopy.FormatError, "no place"),
    "no dtype": (_dtype("float32"), zerocopy.FormatError, "no dtype"),
    "another dtype": (_dtype(torch.float64), zerocopy.FormatError, "not a chunk of"),
    "another tensor": (_other_archive, zerocopy.FormatError, "not a chunk of"),
    "a place of a list far away": (
        _path("groups.1", "groups", 1 << 40),
        zerocopy.FormatError,
        "0 items came before",
    ),
    "a negative place of a list": (_path("groups.1", "groups", -1), zerocopy.FormatError, "not an index"),
    "one place for two": (_path("model.bias", "model", "weight"), zerocopy.FormatError, "belongs where"),
    "a place in a tensor": (
        _path("model.bias", "model", "weight", "x"),
        zerocopy.FormatError,
        "belongs where",
    ),
    "a path of nothing": (_path("model.bias"), zerocopy.FormatError, "a path of names"),
    "a path of others": (_path("model.bias", 1.5), zerocopy.FormatError, "a path of names"),
    "a name that is none": (_entry(7, 7), zerocopy.FormatError, "expected a name"),
    "no entry": (_entry("step", 7), zerocopy.FormatError, "TensorStorageMetadata"),
    "no paths": (lambda writer: setattr(writer, "paths", 7), zerocopy.FormatError, "planner_data"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(writer: Writer, fault: str) -> None:
    change, error, message = FAULTS[fault]
    change(writer)
    folder = writer.write()
    for way in (zerocopy.load, lazily):
        with pytest.raises(error, match=message) as caught:
            way(folder)
        assert str(folder) in str(caught.value) or not isinstance(caught.value, zerocopy.Error)


@each_way
def test_metadata_that_is_none(tmp_path: Path, way: Way) -> None:
    for content in (b"", b"hello", b"\x80\x04", b"\x80\x04N.", b"\x80\x04}."):
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises((zerocopy.FormatError, pickle.UnpicklingError), match="metadata"):
            way(tmp_path)


@each_way
@pytest.mark.parametrize("has_others", [False, True], ids=["tensors", "mixed"])
def test_tensors_as_safetensors(tmp_path: Path, way: Way, has_others: bool) -> None:
    """Torch's writer can put all tensors of a file into one .safetensors, and says of each that it lies there."""
    writer = Writer(tmp_path)
    if has_others:
        writer.add("step", 7)
    begin = len(writer.files.get("__0_0.distcp", b""))
    for name in "wv":
        writer.add(name, torch.ones(3))
        writer.change(name, lambda info: info.__dict__.update(offset=begin, length=12))
    facts = '{"dtype":"F32","shape":[3],"data_offsets":[%d,%d]}'
    header = f'{{"w":{facts % (0, 12)},"v":{facts % (12, 24)}}}'.encode()
    content = len(header).to_bytes(8, "little") + header + bytes(24)
    writer.files["__0_0.distcp"] = writer.files["__0_0.distcp"][:begin] + content
    with pytest.raises(zerocopy.UnsupportedError, match=r"__0_0.distcp: .*SerializationFormat.SAFETENSORS"):
        way(writer.write())


HALVES = torch.arange(24.0).view(4, 6)
SHARDED = {"w": HALVES, "b": torch.arange(3.0), "empty": torch.ones(0, 2)}


def write_shards(folder: Path, change: Callable[[dict[str, Any]], object] = lambda said: None) -> Path:
    """Write what two ranks of ``HuggingFaceStorageWriter(save_distributed=True)`` do."""
    ranks = [
        ({"w": HALVES[:, :2], "b": SHARDED["b"]}, [0, 0]),
        ({"w": HALVES[:, 2:], "empty": SHARDED["empty"]}, [0, 2]),
    ]
    for number, (tensors, begin) in enumerate(ranks, 1):
        said = {
            name: {"saved_offsets": begin if name == "w" else [0] * each.dim()}
            for name, each in tensors.items()
        }
        change(said)
        file = folder / f"shard-{number:05}-model-00001-of-00001.safetensors"
        file.write_bytes(
            safetensors_files.saved(tensors, {"DCP_SHARDING_INFO": json.dumps(said), "DCP_VERSION": "1.0"})
        )
    return folder


def test_shards_of_tensors_that_the_writer_of_hugging_face_leaves_are_one_checkpoint(tmp_path: Path) -> None:
    folder = write_shards(tmp_path)
    assert materialized(zerocopy.load(folder)).keys() == SHARDED.keys()
    for found in (
        zerocopy.load(folder),
        zerocopy.load(folder, backend="pread"),
        materialized(zerocopy.lazy_load(folder)),
    ):
        assert all(torch.equal(found[name], each) for name, each in SHARDED.items())
    assert lies_in_mapping(zerocopy.load(folder)["b"].data_ptr(), sorted(folder.iterdir())[0])
    with zerocopy.open(folder) as checkpoint:
        assert torch.equal(checkpoint.read({"w": (slice(1, 3), slice(1, 4))})["w"], HALVES[1:3, 1:4])
        assert checkpoint.plan({"w": slice(0, 1)}).bytes_read <= 96
    explained = {storage.key: storage.how for storage in zerocopy.explain(folder).storages}
    assert explained == {"w": "copied", "b": "mapped", "empty": "mapped"}
    assert [main([command, str(folder)]) for command in ("ls", "scan", "verify")] == [0, 0, 0]
    zerocopy.convert(folder, folder / "whole.pt")
    assert torch.equal(torch.load(folder / "whole.pt")["w"], HALVES)


def test_shards_of_tensors_are_read_by_dcp_load_and_as_torch_writes_them(tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {name: torch.zeros_like(each) for name, each in SHARDED.items()}
    dcp.load(state, storage_reader=zerocopy.distributed.CheckpointReader(write_shards(tmp_path)))
    assert all(torch.equal(state[name], each) for name, each in SHARDED.items())
    writer = getattr(dcp, "HuggingFaceStorageWriter", None)
    if writer is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it saves in a single process
        dcp.save({"x": torch.ones(3)}, storage_writer=writer(str(tmp_path / "own"), save_distributed=True))
    assert torch.equal(zerocopy.load(tmp_path / "own")["x"], torch.ones(3))


WRONG_SHARDS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an overlap": (lambda said: said["w"].update(saved_offsets=[0, 0]), "do not make up"),
    "a hole": (
        lambda said: said["w"].update(saved_offsets=[0, 2 * said["w"]["saved_offsets"][1]]),
        "do not make up",
    ),
    "far away": (lambda said: said["w"].update(saved_offsets=[1 << 61, 0]), "do not make up"),
    "another rank": (lambda said: said["w"].update(saved_offsets=[0]), "an offset for each dimension"),
    "no number": (lambda said: said["w"].update(saved_offsets=[0, "2"]), "expected offsets"),
    "negative": (lambda said: said["w"].update(saved_offsets=[0, -2]), "expected offsets"),
    "no offsets": (lambda said: said.pop("w"), "DCP_SHARDING_INFO"),
    "a list": (lambda said: said.update(w=[]), "DCP_SHARDING_INFO"),
}


@pytest.mark.parametrize("kind", WRONG_SHARDS)
def test_shards_of_tensors_that_do_not_fit_are_refused(tmp_path: Path, kind: str) -> None:
    change, message = WRONG_SHARDS[kind]
    with pytest.raises(zerocopy.FormatError, match=message) as refused:
        zerocopy.load(write_shards(tmp_path, change))
    assert str(tmp_path) in str(refused.value)


def test_a_file_that_is_replaced(writer: Writer) -> None:
    lazy = zerocopy.lazy_load(writer.write())
    for file in writer.folder.glob("*.distcp"):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(bytes(len(content)))
    with pytest.raises(OSError):
        lazy["model"]["weight"].materialize()


def test_no_writing_to_what_is_in_chunks(writer: Writer) -> None:
    with pytest.raises(zerocopy.UnsupportedError, match="several chunks"):
        zerocopy.load(writer.write(), mode="r+")
