"""``zerocopy.convert`` between .pt, .safetensors and .h5, single and sharded: judged by their own readers."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import dcp_folders
import pytest
import safetensors_files
import torch
from archives import deflated
from conftest import Saver, stock_load
from equality import assert_same, pickles_bits, untyped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import filled

import zerocopy

ENDINGS = ("pt", "safetensors", "h5")
STATE = OrderedDict(
    (
        ("embed.weight", torch.arange(600.0).view(20, 30)),
        ("layer.0.bias", torch.full((7,), 2, dtype=torch.int64)),
        ("layer.0.scale", torch.tensor(3.5, dtype=torch.bfloat16)),
        ("empty", torch.empty(0, 4)),
        ("flags", torch.tensor([True, False, True])),
    )
)
DTYPES = list(safetensors_files.DTYPES.values())

pytest.importorskip("h5py")


def same_tensors(found: Any, wanted: Any) -> None:
    """Assert that names and bits are the same, in whatever order and layout."""
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert safetensors_files.bytes_of(found[name]) == safetensors_files.bytes_of(tensor), name


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return untyped(a).data_ptr() == untyped(b).data_ptr()


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


@pytest.mark.parametrize("there", ENDINGS)
def test_there_and_back(save: Saver, tmp_path: Path, there: str) -> None:
    legacy = save(STATE, "legacy.pt", _use_new_zipfile_serialization=False)  # of PyTorch before 1.6
    for source in (save(STATE, "model.pt"), legacy):
        zerocopy.convert(source, tmp_path / f"there.{there}")
        for back in ENDINGS:
            zerocopy.convert(tmp_path / f"there.{there}", tmp_path / f"back.{back}")
            zerocopy.convert(tmp_path / f"back.{back}", tmp_path / "last.pt")
            for name in (f"there.{there}", f"back.{back}", "last.pt"):
                same_tensors(zerocopy.load(tmp_path / name), STATE)
            same_tensors(stock_load(tmp_path / "last.pt"), STATE)


@pytest.mark.slow("compares with another library")
def test_safetensors_output_equals_the_packages_byte_for_byte(save: Saver, tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.torch")
    state = {
        f"{dtype}".removeprefix("torch."): filled(dtype, 12, i).view(3, 4) for i, dtype in enumerate(DTYPES)
    }
    state |= {'z"\u00e9\n\U0001f600': torch.ones(2), "a": torch.zeros(3, dtype=torch.uint8)}
    del state["bool"]
    try:
        reference.save_file(state, tmp_path / "theirs.safetensors", {"format": "pt"})
    except KeyError as unknown:  # a dtype that this release of safetensors has not
        pytest.skip(str(unknown))
    zerocopy.convert(save(state), tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    same_tensors(reference.load_file(tmp_path / "ours.safetensors"), state)


def test_ties_as_save_model_records_them(tmp_path: Path) -> None:
    weight = torch.arange(12.0).view(3, 4)
    state = {"head.weight": weight, "embed.weight": weight.view(3, 4), "other": torch.ones(2)}
    torch.save(state, tmp_path / "m.pt")
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "m.safetensors")
    header = header_of(tmp_path / "m.safetensors")
    assert (
        header["__metadata__"] == {"format": "pt", "head.weight": "embed.weight"}
        and "head.weight" not in header
    )
    for ending in ("pt", "h5"):
        zerocopy.convert(tmp_path / "m.safetensors", tmp_path / f"back.{ending}")
        back = zerocopy.load(tmp_path / f"back.{ending}")
        same_tensors(back, state)
        assert shares(back["head.weight"], back["embed.weight"])


@pytest.mark.parametrize("ending", ["pt", "h5"])
def test_ties_outlive_a_conversion(tmp_path: Path, ending: str) -> None:
    weight = torch.arange(12.0).view(3, 4)
    torch.save({"model": [weight, weight.view(3, 4), weight.view(4, 3)], "step": 3}, tmp_path / "m.pt")
    zerocopy.convert(tmp_path / "m.pt", tmp_path / f"n.{ending}", dtype=torch.float16)
    loaded = zerocopy.load(tmp_path / f"n.{ending}")
    assert loaded["step"] == 3 and loaded["model"][0].dtype is torch.float16
    assert shares(*loaded["model"][:2]) and torch.equal(loaded["model"][0], weight.half())


@pytest.mark.parametrize("ending", ["pt", "h5"])
def test_views_of_compressed_or_cast_storages_convert(save: Saver, tmp_path: Path, ending: str) -> None:
    weight, ids = torch.arange(6000.0), torch.arange(6000)
    state = {"weight": weight, "part": weight[10:20], "parameter": torch.nn.Parameter(weight)}
    state |= {"trained": weight.detach().requires_grad_(), "ids": ids[:10], "more": ids[5:9]}
    path = save(state)
    zerocopy.convert(deflated(path), tmp_path / f"n.{ending}")
    assert_same(zerocopy.load(tmp_path / f"n.{ending}"), state)
    zerocopy.convert(path, tmp_path / f"cast.{ending}", dtype=torch.float16)
    loaded = zerocopy.load(tmp_path / f"cast.{ending}")
    del loaded["part"], state["part"]
    state["weight"] = half = weight.half()
    state |= {"parameter": torch.nn.Parameter(half), "trained": half.detach().requires_grad_()}
    assert_same(dict(loaded), state)


@pytest.mark.parametrize("ending", ["pt", "h5"])
def test_tensor_with_attributes_stays_a_view(save: Saver, tmp_path: Path, ending: str) -> None:
    weight = torch.arange(6000.0)
    for marked in (weight[:], torch.nn.Parameter(weight), weight.detach().requires_grad_()):
        marked.note = "a"
        state = {"weight": weight, "marked": marked, "part": weight[7:]}
        zerocopy.convert(save(state), tmp_path / f"n.{ending}")
        assert_same(zerocopy.load(tmp_path / f"n.{ending}"), stock_load(save(state)))


def test_small_safetensors_files(tmp_path: Path) -> None:
    for state in ({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(1, 3)}):
        for ending, metadata in (
            ("pt", {}),
            ("pt", {"by": "A"}),
            ("h5", {"by": "A"}),
            ("safetensors", {"by": "A"}),
        ):
            (tmp_path / "m.safetensors").write_bytes(safetensors_files.saved(state, metadata))
            zerocopy.convert(tmp_path / "m.safetensors", tmp_path / f"n.{ending}")
            same_tensors(zerocopy.load(tmp_path / f"n.{ending}"), state)
    assert header_of(tmp_path / "n.safetensors")["__metadata__"] == metadata


@pytest.mark.parametrize("how", [{}, {"dtype": torch.complex128}])
def test_a_conjugate_is_no_tie(tmp_path: Path, how: dict[str, Any]) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    zerocopy.save({"a": values, "b": values.conj(), "c": torch._neg_view(values)}, tmp_path / "m.pt")
    wanted = {"a": values, "b": torch.tensor([1 - 2j, 3 + 4j]), "c": -values}
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "n.pt", **how)
    for name, tensor in zerocopy.load(tmp_path / "n.pt").items():
        assert torch.equal(tensor.resolve_conj().resolve_neg().to(torch.complex64), wanted[name]), name
    if pickles_bits():  # else each was saved with its values, over a storage of its own
        with pytest.raises(zerocopy.UnsupportedError, match="overlapping"):
            zerocopy.convert(tmp_path / "m.pt", tmp_path / "n.safetensors")


def test_metadata_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_files.saved({"w": torch.ones(2)}, {"format": "pt", "by": "somebody"}))
    for name in ("m.pt", "m.h5", "n.pt", "n.safetensors"):
        zerocopy.convert(path, tmp_path / name)
        path = tmp_path / name
    assert header_of(path)["__metadata__"] == {"format": "pt", "by": "somebody"}
    assert stock_load(tmp_path / "n.pt").safetensors_metadata == {"format": "pt", "by": "somebody"}
    torch.load(tmp_path / "n.pt", weights_only=True)


def test_parts_of_a_tensor_that_do_not_meet(save: Saver, tmp_path: Path) -> None:
    whole = torch.arange(4 * 6 * 5.0).view(4, 6, 5)
    for parts in (
        whole.chunk(2, 1), whole.split([1, 3, 1], 2), [whole[::2], whole[1::2]],
        [whole[:2, :3], whole[:2, 3:], whole[2:, :1], whole[2:, 1:]], whole.transpose(0, 2).chunk(3, 1),
    ):  # fmt: skip
        state = {str(i): part for i, part in enumerate(parts)}
        zerocopy.convert(save(state), tmp_path / "new.safetensors")
        written = zerocopy.load(tmp_path / "new.safetensors")
        assert written.keys() == state.keys() and all(torch.equal(written[key], state[key]) for key in state)


@pytest.mark.slow("random pairs of boxes")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_parts_that_meet_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Two boxes of one tensor, with steps: exactly those with an element in common."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    places = torch.arange(torch.Size(shape).numel()).view(shape)
    if data.draw(st.booleans()):
        places = places.transpose(0, -1)
    steps = [data.draw(st.integers(1, 2)) for _ in shape]

    def box() -> torch.Tensor:
        begins = [data.draw(st.integers(0, size - 1)) for size in places.shape]
        ends = [data.draw(st.integers(begin + 1, 5)) for begin in begins]
        return places[tuple(map(slice, begins, ends, steps))]

    one, other = box(), box()
    torch.save({"one": one, "other": other}, path := tmp_path / "m.pt")
    if {*one.flatten().tolist()} & {*other.flatten().tolist()} and not one.is_set_to(other):
        with pytest.raises(zerocopy.UnsupportedError, match=r"one \(overlapping\), other \(overlapping\)$"):
            zerocopy.convert(path, tmp_path / "m.safetensors")
    else:
        zerocopy.convert(path, tmp_path / "m.safetensors")
        assert torch.equal(zerocopy.load(tmp_path / "m.safetensors")["one"], one)


def test_texts_are_metadata_of_safetensors_and_other_values_stay_in_pt(save: Saver, tmp_path: Path) -> None:
    source = save({"model": {"w": torch.ones(2)}, "step": 7, "arch": "tiny"})
    zerocopy.convert(source, tmp_path / "m.safetensors")
    assert header_of(tmp_path / "m.safetensors")["__metadata__"] == {"format": "pt", "arch": "tiny"}
    zerocopy.convert(source, tmp_path / "again.pt")
    assert_same(stock_load(tmp_path / "again.pt"), stock_load(source))


@pytest.mark.parametrize("ending", ENDINGS)
def test_dtype(save: Saver, tmp_path: Path, ending: str) -> None:
    zerocopy.convert(save(STATE), tmp_path / f"m.{ending}", dtype=torch.float16)
    wanted = {name: t.half() if t.is_floating_point() else t for name, t in STATE.items()}
    same_tensors(zerocopy.load(tmp_path / f"m.{ending}"), wanted)


@pytest.mark.parametrize("ending", ["pt", "h5"])
def test_dtype_keeps_attributes(save: Saver, tmp_path: Path, ending: str) -> None:
    tensors = {"plain": torch.ones(4), "parameter": torch.nn.Parameter(torch.ones(2)), "ids": torch.arange(3)}
    for name, tensor in tensors.items():
        tensor.note = name  # type: ignore[attr-defined]
    source = save(tensors)
    zerocopy.convert(source, tmp_path / f"m.{ending}", dtype=torch.float16)
    zerocopy.save(zerocopy.lazy_load(source, dtype=torch.float16), tmp_path / "saved.pt")
    for target in (tmp_path / f"m.{ending}", tmp_path / "saved.pt"):
        found = zerocopy.load(target)
        assert [t.dtype for t in found.values()] == [torch.float16, torch.float16, torch.int64]
        for name, stored in stock_load(source).items():  # some releases save none
            assert vars(found[name]) == vars(stored) and type(found[name]) is type(stored)


@pytest.mark.parametrize("ending", ENDINGS)
def test_without_the_optimizer(save: Saver, tmp_path: Path, ending: str) -> None:
    module = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2)).sum().backward()
    optimizer.step()
    source = save({"model": module.state_dict(), "optimizer": optimizer.state_dict()})
    for keep in (["model"], "model.", lambda name: not name.startswith("optimizer")):
        zerocopy.convert(source, tmp_path / f"m.{ending}", keep=keep)
        with zerocopy.open(tmp_path / f"m.{ending}") as kept:
            assert sorted(kept) == ["model.bias", "model.weight"]
            assert kept.metadata() == ({"format": "pt"} if ending == "safetensors" else {})
            assert torch.equal(kept.get_tensor("model.weight"), module.weight)


def test_keep_that_fits_nothing(save: Saver, tmp_path: Path) -> None:
    source, target = save(STATE), tmp_path / "m.safetensors"
    with pytest.raises(KeyError, match="nobody"):
        zerocopy.convert(source, target, keep=["nobody"])
    with pytest.raises(ValueError, match="selects none of the tensors"):
        zerocopy.convert(source, target, keep="nobody")
    with pytest.raises(
        TypeError, match="expected keep to be a prefix, a list of names or a function, got int"
    ):
        zerocopy.convert(source, target, keep=5)  # type: ignore[arg-type]
    assert not target.exists()


def test_strip_prefix_removes_it_from_the_names_that_have_it(save: Saver, tmp_path: Path) -> None:
    source = save({"model.a": torch.ones(2), "model": {"n": 5}, "c": torch.zeros(3)})
    for ending in ENDINGS:
        zerocopy.convert(source, tmp_path / f"m.{ending}", strip_prefix="model.")
        with zerocopy.open(tmp_path / f"m.{ending}") as made:
            assert list(made) == ["a", "c"] and made.get_tensor("a").tolist() == [1, 1]
    twice = save({"model.a": torch.ones(2), "a": torch.ones(2)}, "twice.pt")
    for path, prefix, error, message in (
        (source, "nobody.", ValueError, "no name begins with"),
        (source, 5, TypeError, "expected strip_prefix to be a str, got int"),
        (twice, "model.", zerocopy.UnsupportedError, "these names appear twice: a"),
    ):
        with pytest.raises(error, match=message):
            zerocopy.convert(path, tmp_path / "n.pt", strip_prefix=prefix)
    assert not (tmp_path / "n.pt").exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_sources(save: Saver, tmp_path: Path, ending: str) -> None:
    one, two = save({"a": torch.ones(2), "n": 1}, "one.pt"), tmp_path / "two.safetensors"
    two.write_bytes(safetensors_files.saved({"b": torch.zeros(3)}, {"format": "pt"}))
    zerocopy.convert([one, two], tmp_path / f"m.{ending}")
    with zerocopy.open(tmp_path / f"m.{ending}") as merged:
        assert sorted(merged) == ["a", "b"]
    with pytest.raises(zerocopy.UnsupportedError, match="in two: a"):
        zerocopy.convert([one, two, one], tmp_path / "twice.safetensors")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_of_torch_distributed_checkpoint(tmp_path: Path, ending: str) -> None:
    (tmp_path / "dcp").mkdir()
    writer = dcp_folders.Writer(tmp_path / "dcp")
    weight = torch.arange(24.0).view(4, 6)
    writer.add_chunks(
        "weight", (4, 6), torch.float32, [((0, 0), weight[:3].clone()), ((3, 0), weight[3:].clone())]
    )
    writer.add("bias", torch.ones(5, dtype=torch.float64))
    source = writer.write()
    zerocopy.convert(source, tmp_path / f"m.{ending}", dtype=torch.bfloat16)
    wanted = {"weight": weight.bfloat16(), "bias": torch.ones(5, dtype=torch.bfloat16)}
    same_tensors(zerocopy.load(tmp_path / f"m.{ending}"), wanted)
    zerocopy.convert(source, tmp_path / "shards", max_shard_size=100)
    same_tensors(zerocopy.load(tmp_path / "shards"), {"weight": weight, "bias": torch.ones(5).double()})


@pytest.mark.parametrize("name", ["out", "out/model.safetensors", "out/pytorch_model.bin", "out/model.pt",
                                  "out/model.safetensors.index.json"])  # fmt: skip
def test_shards(save: Saver, tmp_path: Path, name: str) -> None:
    state = {f"layer.{i}": torch.full((100,), float(i)) for i in range(10)}
    zerocopy.convert(save(state), tmp_path / name, max_shard_size="1KB")
    (index,) = (tmp_path / "out").glob("*.index.json")
    content = json.loads(index.read_text())
    assert content["metadata"] == {"total_size": 4000} and sorted(content["weight_map"]) == sorted(state)
    shards = {path.name for path in (tmp_path / "out").iterdir()} - {index.name}
    assert shards == set(content["weight_map"].values()) and len(shards) == 5
    stem, _, suffix = index.name.removesuffix(".index.json").rpartition(".")
    assert f"{stem}-00001-of-00005.{suffix}" in shards
    same_tensors(zerocopy.load(tmp_path / "out"), state)
    zerocopy.convert(tmp_path / "out", tmp_path / "one.pt")
    same_tensors(stock_load(tmp_path / "one.pt"), state)
    large = {
        "t": torch.arange(3_000_000.0).view(3000, 1000).t(),
        "tied": (tied := torch.ones(9)),
        "again": tied,
    }
    zerocopy.convert(save(large), tmp_path / name, max_shard_size="1MB", dtype=torch.float16)
    assert torch.equal(zerocopy.load(tmp_path / "out")["t"], large["t"].half())


def test_views_of_one_storage_are_in_one_shard(save: Saver, tmp_path: Path) -> None:
    storage = torch.arange(200.0)
    source = save({"first": storage[:100], "other": torch.ones(100), "second": storage[100:]})
    zerocopy.convert(source, tmp_path / "out/pytorch_model.bin", max_shard_size="0.5KB")
    assert len(list((tmp_path / "out").glob("*.bin"))) == 2
    loaded = zerocopy.load(tmp_path / "out")
    assert loaded["second"].data_ptr() == loaded["first"].data_ptr() + 400


@pytest.mark.slow("another library")
def test_transformers_reads_the_shards(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertForMaskedLM(config)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    config.save_pretrained(tmp_path / "out")
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "out", max_shard_size="10KB")
    read = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out")
    same_tensors(read.state_dict(), model.state_dict())


def test_sizes(save: Saver, tmp_path: Path) -> None:
    source = save(STATE)
    for size in ("1KB", "1 kb", "0.001MB", 1000):
        zerocopy.convert(source, tmp_path / "out", max_shard_size=size)
        assert len(list((tmp_path / "out").glob("*.safetensors"))) == 2
    for wrong in ("5", "GB", "-1GB", 0, -5, "5 bananas", True, 1.5, "0GB"):
        with pytest.raises(ValueError, match="size"):
            zerocopy.convert(source, tmp_path / "other", max_shard_size=wrong)
    assert not (tmp_path / "other").exists()


def test_a_text_that_is_the_name_of_a_tensor_does_not_become_a_tie(
    save: Saver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save({"weight": torch.ones(3), "best": "weight", "kind": "linear"})
    zerocopy.convert(path, tmp_path / "x.safetensors")
    zerocopy.convert(tmp_path / "x.safetensors", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    assert "best" not in back and torch.equal(back["weight"], torch.ones(3))
    assert any("best" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("size", [None, "1MB", 8])  # 8: a shard for each tensor
def test_metadata_whose_key_and_value_are_stored_tensors_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: Any
) -> None:
    """A tie's key names a tensor that is not stored, so readers take this entry for metadata."""
    path, metadata = tmp_path / "source.safetensors", {"bias": "weight", "format": "pt"}
    state = {"bias": torch.ones(1), "weight": torch.arange(2.0)}
    path.write_bytes(safetensors_files.saved(state, metadata))
    target = tmp_path / ("made" if size else "made.safetensors")
    zerocopy.convert(path, target, max_shard_size=size)
    assert not caplog.records
    with zerocopy.open(target) as made:
        assert made.metadata() == metadata
        same_tensors({name: made.get_tensor(name) for name in made}, state)
    for file in tmp_path.glob("made*/*.safetensors" if size else "made*"):
        zerocopy.convert(file, tmp_path / "part.pt")
        assert set(zerocopy.load(tmp_path / "part.pt")) == header_of(file).keys() - {"__metadata__"}
    zerocopy.convert(target, tmp_path / "back.pt")
    same_tensors(zerocopy.load(tmp_path / "back.pt"), state)


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "1MB"}, {"keep": lambda name: name != "x"}])
def test_tied_name_that_is_a_key_of_the_metadata_is_kept(
    options: dict[str, Any], save: Saver, tmp_path: Path
) -> None:
    tied = torch.arange(4.0)
    zerocopy.convert(save({"a": tied, "format": tied, "x": tied + 1}), tmp_path / "m.safetensors", **options)
    zerocopy.convert(next(tmp_path.glob("m*.safetensors")), tmp_path / "back.pt")
    found = zerocopy.load(tmp_path / "back.pt")
    assert torch.equal(found["a"], tied) and torch.equal(found["format"], tied)
    assert found["a"].data_ptr() == found["format"].data_ptr()


def test_nothing_is_converted_in_a_block_of_skip_data(save: Saver, tmp_path: Path) -> None:
    for name in ("m.pt", "m.safetensors", "m.h5"):
        with zerocopy.skip_data(), pytest.raises(zerocopy.UnsupportedError, match="skip_data"):
            zerocopy.convert(save({"a": torch.ones(3)}, "source.pt"), tmp_path / name)
        assert not (tmp_path / name).exists()
