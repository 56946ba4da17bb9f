"""``zerocopy.convert``: tensors inside objects are written, and what a target leaves out is said once, with numbers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import Saver
from equality import assert_same

import zerocopy
from zerocopy import cli

h5py = pytest.importorskip("h5py")
WEIGHT = torch.arange(12.0).view(3, 4)


class Block(torch.nn.Module):
    """Has parameters, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 2, 3)
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("gone", torch.ones(3), persistent=False)


class Net(torch.nn.Module):
    """Modules in containers, one under two names, and attributes that state_dict() does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.again = self.first
        self.norm = torch.nn.BatchNorm1d(2)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Linear(1, 2))])
        self.scales = torch.nn.ParameterDict({"x": torch.nn.Parameter(torch.ones(1))})
        self.rnn = torch.nn.LSTM(1, 1)  # whose attribute _flat_weights has its parameters again
        self.references = [self.norm, {"first": self.first}, torch.ones(4)]


@dataclasses.dataclass
class Box:
    """A tensor among the attributes, and one in a list."""

    start: torch.Tensor
    more: list[torch.Tensor]


class Slots:
    """An object without a dict of attributes."""

    __slots__ = "number", "weight"


class TensorDict:
    """An object that is pickled as a TensorDict is: by a function of a class and a dict of attributes."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def __reduce__(self) -> Any:
        return made_tensordict, (TensorDict, self.attributes)


def made_tensordict(kind: type[TensorDict], attributes: dict[str, Any]) -> TensorDict:
    return kind(attributes)


def slots() -> Slots:
    made = Slots()
    made.number, made.weight = 5, WEIGHT
    return made


OBJECTS: dict[str, tuple[Any, list[str]]] = {
    "module": (Net(), list(Net().state_dict())),
    "dataclass": (Box(WEIGHT, [torch.ones(1)]), ["start", "more.0"]),
    "slots": (slots(), ["weight"]),
    "tensordict": (TensorDict({"_tensordict": {"a": WEIGHT}, "_device": None}), ["_tensordict.a"]),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_tensors_inside_objects_have_one_name_everywhere(
    save: Saver, tmp_path: Path, capsys: pytest.CaptureFixture[str], legacy: bool
) -> None:
    state = {kind: made for kind, (made, _) in OBJECTS.items()} | {"epoch": 1}
    path = save(state, _use_new_zipfile_serialization=not legacy)
    wanted = sorted(f"{kind}.{name}" for kind, (_, names) in OBJECTS.items() for name in names)
    with zerocopy.open(path, unknown="stub") as checkpoint:
        assert sorted(checkpoint) == wanted and list(checkpoint.metadata()) == list(state)
        tensors = {name: checkpoint.get_tensor(name) for name in checkpoint}
    for name, tensor in state["module"].state_dict().items():
        assert torch.equal(tensors[f"module.{name}"], tensor), name
    assert cli.main(["ls", "--json", str(path)]) == 0
    assert sorted(each["name"] for each in json.loads(capsys.readouterr().out)["tensors"]) == wanted
    for ending in ("safetensors", "pt", "h5"):
        target = tmp_path / f"new.{ending}"
        zerocopy.convert(path, target, unknown="stub")
        with zerocopy.open(target) as made:
            noted = made.metadata() if ending == "safetensors" else {}
            assert sorted({*made, *noted} - {"format"}) == wanted
            assert all(torch.equal(made.get_tensor(name), tensors[name]) for name in made)
        assert cli.main(["convert", "--verify", "--unknown", "stub", str(path), str(target)]) == 0
    assert zerocopy.load(tmp_path / "new.pt")["epoch"] == 1
    with zerocopy.safe_globals([Box]), zerocopy.open(save(state["dataclass"], "box.pt")) as allowed:
        assert list(allowed) == ["start", "more.0"] and torch.equal(allowed["start"] + 0, WEIGHT)
    chosen = zerocopy.lazy_load(path, unknown="stub", keys=["dataclass.start", "slots", "module.norm"])
    assert list(chosen) == ["module", "dataclass", "slots"] and list(chosen["dataclass"]) == ["start"]
    assert isinstance(chosen["slots"], zerocopy.Stub)
    assert list(chosen["module"]) == [f"norm.{name}" for name in state["module"].norm.state_dict()]


def test_an_object_that_is_the_whole_file_becomes_its_state_dict(save: Saver, tmp_path: Path) -> None:
    net = Net()
    path = save(net)
    for ending in ("pt", "h5"):
        zerocopy.convert(path, tmp_path / f"new.{ending}", unknown="stub")
        loaded = zerocopy.load(tmp_path / f"new.{ending}")
        assert_same(
            OrderedDict(sorted(loaded.items())), OrderedDict(sorted(net.state_dict(keep_vars=True).items()))
        )


@pytest.mark.parametrize("name", ["n.safetensors", "n.pt", "n.h5", "out", "out/m.bin"])
def test_nothing_to_write_is_an_error(save: Saver, tmp_path: Path, name: str) -> None:
    how: dict[str, Any] = {"max_shard_size": 100} if "out" in name else {}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ({}, {}, "nothing to write"),
        (argparse.Namespace(lr=1), {"unknown": "stub"}, "nothing to write"),
        (argparse.Namespace(lr=1), {"unknown": "stub", "keep": "model."}, "keep selects none"),
        ({"a": WEIGHT}, {"keep": lambda name: False}, "keep selects none"),
        ({"a": Net()}, {"keep": "model.", "unknown": "stub"}, "keep selects none"),
    ]
    for state, more, message in cases:
        with pytest.raises(ValueError, match=message):
            zerocopy.convert(save(state), tmp_path / name, **how, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_ties_are_noted_or_copied_and_the_name_that_stays_is_chosen(
    save: Saver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = save({"lm_head": WEIGHT, "wte": WEIGHT, "part": WEIGHT[1:]}), tmp_path / "m.safetensors"
    keep = ["lm_head", "wte"]
    cases: list[tuple[Any, dict[str, str]]] = [
        ("note", {"wte": "lm_head"}),
        (["wte"], {"lm_head": "wte"}),
        (keep, {}),
    ]
    for ties, noted in cases:
        caplog.clear()
        zerocopy.convert(path, target, keep=keep, ties=ties) if noted else None
        if noted:
            with zerocopy.open(target) as made:
                assert made.metadata() == {"format": "pt", **noted} and list(made) == list(noted.values())
            ((name, kept),) = noted.items()
            assert caplog.messages[-1].endswith(f"noted in the metadata (1): {name} = {kept}")
    caplog.clear()
    zerocopy.convert(path, target, ties="copy", strict=True)  # an overlapping part too
    copied = zerocopy.load(target)
    assert copied.keys() == {"lm_head", "part", "wte"} and torch.equal(copied["part"], WEIGHT[1:])
    assert torch.equal(copied["lm_head"], copied["wte"])
    assert not caplog.messages
    for wrong, error in (("wte", ValueError), (["nobody"], KeyError)):
        with pytest.raises(error):
            zerocopy.convert(path, target, ties=wrong)
    command = ["convert", "--keep", "lm_head", "--keep", "wte", str(path), str(target)]
    assert cli.main([*command, "--tied-name", "wte"]) == 0 and list(zerocopy.load(target)) == ["wte"]
    assert cli.main([*command, "--ties", "copy", "--verify"]) == 0 and len(zerocopy.load(target)) == 2


def keras_file(path: Path) -> Path:
    """Write what Keras writes of a model under a bfloat16 policy, with attributes of a whole model and a text."""
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"], file.attrs["model_config"] = "3.15.0", json.dumps({"layers": 2})
        for number in range(2):
            group = file.create_group(f"layers/dense_{number}/vars")
            bits = numpy.arange(16256, 16260, dtype="<u2")
            group.create_dataset("0", data=bits.view("V2").reshape(2, 2)).attrs["dtype"] = "bfloat16"
            group["1"] = numpy.ones(3, "f4")
        file["names"] = "a text"
        file["pairs"] = numpy.zeros(3, [("a", "i4"), ("b", "f4")])
    return path


@pytest.mark.parametrize("ending", ["safetensors", "pt", "h5"])
def test_parts_of_hdf5_that_are_left_out_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    path, target = keras_file(tmp_path / "m.weights.h5"), tmp_path / f"new.{ending}"
    with (
        pytest.raises(zerocopy.UnsupportedError, match="strict refuses to leave out"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        zerocopy.convert(path, target, strict=True)
    assert not target.exists()
    with pytest.warns(UserWarning, match=r"left out 1 dataset.*pairs \(compound: a, b\)") as warned:
        zerocopy.convert(path, target)
    assert len(warned) == len(caplog.messages) == 1
    for said in ("datasets of numbers that no tensor holds (1): pairs (compound: a, b)", "datasets of text (1): names",
                 "@keras_version, @model_config", "attributes (2)"):  # fmt: skip
        assert said in caplog.text, caplog.text
    with zerocopy.open(target) as made:
        kernels = [made.get_tensor(name) for name in sorted(made) if name.endswith("vars.0")]
    assert len(kernels) == 2 and all(torch.equal(kernel, kernels[0]) for kernel in kernels)
    assert kernels[0].dtype == torch.bfloat16 and kernels[0][0, 0] == 1


def test_strict_command_refuses_what_would_be_left_out(
    save: Saver, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path, target = (
        save({"net": torch.nn.Linear(1, 1), "w": WEIGHT, "step": 7, "rate": 0.5}),
        tmp_path / "m.safetensors",
    )
    command = ["convert", "--unknown", "stub", str(path), str(target)]
    assert cli.main([*command, "--strict"]) == 2 and not target.exists()
    said = "values that are not tensors (2): step, rate"
    assert said in capsys.readouterr().err
    assert (
        cli.main(command) == 0
        and said in caplog.text
        and "unknown classes, but for the tensors inside (1): net" in caplog.text
    )
    assert cli.main(["convert", "--strict", "--keep", "w", *command[1:]]) == 0


def test_verify_says_what_was_compared(
    save: Saver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = save({"w": WEIGHT}), str(tmp_path / "m.safetensors")
    assert cli.main(["convert", "--verify", "--dtype", "bf16", str(path), target]) == 0
    said = capsys.readouterr().out
    assert "equal to its source, after conversion to bfloat16" in said and "bit for bit" not in said
    content = bytearray(path.read_bytes())
    content[content.index(WEIGHT.numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    Path(target).unlink()
    assert cli.main(["convert", "--verify", str(path), target]) == 1
    assert "CRC-32 differs" in capsys.readouterr().out and not Path(target).exists()
    assert cli.main(["convert", str(path), str(path)]) == 0
    assert f"wrote {path}, in place of its source: " in capsys.readouterr().out


def test_shards_whose_index_is_wrong_are_converted_with_strict_false(save: Saver, tmp_path: Path) -> None:
    state, target = {"a": WEIGHT, "b": WEIGHT + 1}, tmp_path / "new.pt"
    zerocopy.convert(save(state), tmp_path / "shards", max_shard_size=60)
    (index,) = (tmp_path / "shards").glob("*.index.json")
    content = json.loads(index.read_text())
    content["weight_map"]["gone"] = content["weight_map"]["a"]
    index.write_text(json.dumps(content))
    with pytest.raises(zerocopy.FormatError, match="gone"):
        zerocopy.convert(tmp_path / "shards", target)
    with pytest.warns(UserWarning, match="gone"):
        zerocopy.convert(tmp_path / "shards", target, strict=False)
    assert_same(dict(zerocopy.load(target)), state)
