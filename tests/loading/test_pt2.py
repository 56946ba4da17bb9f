"""The weights and constants of a .pt2, by every call that reads tensors. The archives are made by hand."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import assembler
import pytest
import torch
from assembler import DATA, Entry, archive, call, checkpoint, name, tensor
from programs import entries, listed, meta, payload, program

import zerocopy
import zerocopy.numpy
from zerocopy import cli

VALUES = torch.frombuffer(bytearray(DATA), dtype=torch.float32)
INNER = checkpoint(assembler.pickle(tensor(size=(4, 4), stride=(4, 1))))
FULL = program(
    {
        "fc.weight": payload(parameter=True, shape=(4, 4), stride=(1, 4), requires_grad=True),
        "tied": payload(parameter=True, shape=(4, 4), stride=(1, 4)),
        "rows": payload(shape=(2, 4), stride=(4, 1), offset=8),
        "pickled": payload("weight_1", pickled=True),
        "empty": payload("weight_2", shape=(0, 3), stride=(3, 1)),
    },
    {
        "flags": payload("tensor_0", dtype=12),
        "object": payload("custom_obj_0", pickled=True, tensor_meta=None),
    },
    {
        "data/weights/weight_1": INNER,
        "data/weights/weight_2": b"",
        "data/constants/tensor_0": bytes([0, 1] * 8),
        "data/constants/custom_obj_0": b"whatever",
    },
)
NAMES = ["fc.weight", "tied", "rows", "pickled", "empty", "flags"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "program.pt2"
    path.write_bytes(FULL)
    return path


def expected() -> dict[str, torch.Tensor]:
    square = VALUES.reshape(4, 4)
    flags = torch.tensor([False, True] * 8)
    return {
        "fc.weight": square.t(), "tied": square.t(), "rows": square[2:], "pickled": square,
        "empty": torch.empty(0, 3), "flags": flags,
    }  # fmt: skip


def require_equal(found: Any) -> None:
    wanted = expected()
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert torch.equal(found[key].detach(), value), key
        assert found[key].stride() == value.stride(), key


def test_open_gives_weights_and_constants_over_the_file(path: Path) -> None:
    with zerocopy.open(path) as checkpoint:
        found = {key: checkpoint.get_tensor(key) for key in checkpoint}
        assert checkpoint.info("tied").tied == ("fc.weight",) or "fc.weight" in str(checkpoint.info("tied"))
        assert torch.equal(checkpoint.get_slice("rows")[1:], VALUES.reshape(4, 4)[3:])
    require_equal(found)
    weight = found["fc.weight"]
    assert isinstance(weight, torch.nn.Parameter) and weight.requires_grad
    assert not found["tied"].requires_grad
    assert weight.data_ptr() == found["tied"].data_ptr()
    found["rows"].fill_(7)
    assert (weight[:, 2:] == 7).all() and path.read_bytes() == FULL
    assert {storage.how for storage in zerocopy.explain(path).storages} == {"mapped"}


def test_other_readers_give_the_same(path: Path, tmp_path: Path) -> None:
    lazy = zerocopy.lazy_load(path)
    require_equal({key: value.materialize() for key, value in lazy.items()})
    for array, value in zip(zerocopy.numpy.load(path).values(), expected().values(), strict=True):
        assert (array == value.numpy()).all()
    for target in ("out.pt", "out.h5"):
        zerocopy.convert(path, tmp_path / target)
        found = zerocopy.load(tmp_path / target)
        for key in NAMES:
            if key != "tied":
                assert torch.equal(found[key].detach(), expected()[key]), (target, key)
    for source in (path.read_bytes(), memoryview(FULL), path.open("rb")):
        with zerocopy.open(source) as checkpoint:
            require_equal({key: checkpoint.get_tensor(key) for key in checkpoint})


def test_load_model_takes_the_weights(path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4, bias=False)

    model = Model()
    missing, unexpected = zerocopy.load_model(model, path, strict=False)
    assert not missing and set(unexpected) == set(NAMES) - {"fc.weight"}
    assert torch.equal(model.fc.weight.detach(), VALUES.reshape(4, 4).t())


def test_load_names_the_calls_that_give_the_program(path: Path) -> None:
    with pytest.raises(zerocopy.UnsupportedError, match=r"zerocopy\.export\.load.*zerocopy\.open"):
        zerocopy.load(path)


def test_several_programs_have_their_names_before_the_weights() -> None:
    both = [*entries(), *entries(model="decoder")[-2:], Entry("x/models/decoder.json", b"{}")]
    with zerocopy.open(archive(both)) as checkpoint:
        assert sorted(checkpoint) == ["decoder.weight", "model.weight"]
        assert torch.equal(checkpoint.get_tensor("decoder.weight"), VALUES)


def test_a_package_of_aotinductor_gives_views_of_its_weights() -> None:
    config = json.dumps({"w": ["weight_0", [2, 2], [4, 1], 5]}).encode()
    records = [
        *(entry for entry in entries()[:4]),
        Entry("x/data/weights/weight_0", INNER),
        Entry("x/data/aotinductor/model/weights_config.json", config),
    ]
    with zerocopy.open(archive(records)) as checkpoint:
        assert torch.equal(checkpoint.get_tensor("w"), VALUES.reshape(4, 4)[1:3, 1:3])


@pytest.mark.parametrize("command", ["ls", "map", "explain", "scan", "verify", "diff", "show", "report"])
def test_commands(path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    more = {"diff": [str(path)], "show": ["rows"], "report": ["-o", f"{path}.html"]}.get(command, [])
    assert cli.main([command, str(path), *more]) == 0
    out = capsys.readouterr().out
    said = {"ls": "fc.weight", "map": "data/weights/weight_0", "scan": "safe (pt2)", "verify": "fine (pt2"}
    assert said.get(command, "") in out
    assert "unreferenced" not in out


def test_scan_looks_into_the_files_within(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = assembler.pickle(call(name("os", "system"), "true"))
    path = tmp_path / "evil.pt2"
    for records in (
        {"data/weights/weight_1": checkpoint(evil)},
        {"data/constants/opaque_obj_0": evil},
        {"data/sample_inputs/model.pt": checkpoint(evil)},
    ):
        path.write_bytes(program(records=records))
        assert cli.main(["scan", str(path)]) == 1
        assert "os.system" in capsys.readouterr().out


def test_a_pickle_within_goes_to_the_safe_machine() -> None:
    evil = checkpoint(assembler.pickle(call(name("os", "system"), "true")))
    content = program({"w": payload("weight_1", pickled=True)}, records={"data/weights/weight_1": evil})
    with pytest.raises(pickle.UnpicklingError, match=r"os\.system"):
        zerocopy.open(content)["w"].shape  # noqa: B018
    assert isinstance(zerocopy.lazy_load(content, unknown="stub")["w"], zerocopy.Stub)


BOMB = b'{"config": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
WRONG: dict[str, tuple[bytes, type[Exception]]] = {
    "no list": (program(b""), zerocopy.FormatError),
    "not JSON": (program(b"{'config'"), zerocopy.FormatError),
    "an array": (program(b"[]"), zerocopy.FormatError),
    "no config": (program(b"{}"), zerocopy.FormatError),
    "two configs": (program(b'{"config": {}, "config": {}}'), zerocopy.FormatError),
    "bytes after the list": (program(listed({}) + b" 1"), zerocopy.FormatError),
    "deep JSON": (program(BOMB), zerocopy.FormatError),
    "a name twice": (program(listed({"w": payload()})[:-2] + b', "w": 1}}'), zerocopy.FormatError),
    "no meta": (program({"w": payload(tensor_meta=None)}), zerocopy.FormatError),
    "half a meta": (program({"w": payload(tensor_meta={"dtype": 7})}), zerocopy.FormatError),
    "a missing payload": (program({"w": payload("weight_9")}), zerocopy.FormatError),
    "a path that leaves": (program({"w": payload("../../weight_0")}), zerocopy.FormatError),
    "an empty path": (program({"w": payload("")}), zerocopy.FormatError),
    "an absolute path": (program({"w": payload("/etc/passwd")}), zerocopy.FormatError),
    "a size out of range": (program({"w": payload(shape=(17,))}), zerocopy.FormatError),
    "a stride out of range": (program({"w": payload(stride=(2,))}), zerocopy.FormatError),
    "an offset out of range": (program({"w": payload(offset=1)}), zerocopy.FormatError),
    "a negative size": (program({"w": payload(shape=(-1,))}), zerocopy.FormatError),
    "a negative stride": (program({"w": payload(stride=(-1,))}), zerocopy.FormatError),
    "a negative offset": (program({"w": payload(offset=-1)}), zerocopy.FormatError),
    "sizes that overflow": (program({"w": payload(shape=(2**62, 4), stride=(0, 0))}), zerocopy.FormatError),
    "a size of 65 bits": (program({"w": payload(shape=(2**64,))}), zerocopy.FormatError),
    "fewer strides": (program({"w": payload(shape=(4, 4))}), zerocopy.FormatError),
    "65 dimensions": (program({"w": payload(shape=[1] * 65, stride=[1] * 65)}), zerocopy.FormatError),
    "a size of text": (program({"w": payload(tensor_meta=meta(sizes="16"))}), zerocopy.FormatError),
    "a symbolic size": (
        program({"w": payload(tensor_meta=meta(sizes=[{"as_expr": {"expr_str": "s0"}}]))}),
        zerocopy.UnsupportedError,
    ),
    "another dtype": (program({"w": payload(dtype=99)}), zerocopy.UnsupportedError),
    "half an element": (
        program({"w": payload("weight_1", dtype=8)}, records={"data/weights/weight_1": DATA[:60]}),
        zerocopy.FormatError,
    ),
    "two dtypes of one payload": (program({"a": payload(), "b": payload(dtype=4)}), zerocopy.FormatError),
    "a gradient of integers": (program({"w": payload(dtype=4, requires_grad=True)}), zerocopy.FormatError),
    "sparse": (program({"w": payload(layout=1)}), zerocopy.UnsupportedError),
    "meta": (program({"w": payload(device={"type": "meta", "index": None})}), zerocopy.UnsupportedError),
    "another version": (program(version=b"1"), zerocopy.UnsupportedError),
    "the layout of 2.8": (program(records={"data/weights/model.pt": INNER}), zerocopy.UnsupportedError),
    "a pickle that is no file": (program({"w": payload(pickled=True)}), zerocopy.FormatError),
    "a missing file": (program({"w": payload("weight_9", pickled=True)}), zerocopy.FormatError),
    "a program within": (
        program(
            {"w": payload("weight_1", pickled=True)},
            records={"data/weights/weight_1": program()},
        ),
        (zerocopy.FormatError, zerocopy.UnsupportedError),  # type: ignore[dict-item]
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_archive_is_refused(title: str) -> None:
    content, refusal = WRONG[title]
    with pytest.raises(refusal):
        zerocopy.open(content)
    with pytest.raises(refusal):
        zerocopy.lazy_load(content)


def test_many_names_of_one_payload_stay_in_proportion() -> None:
    content = program({f"w{i}": payload(shape=(1,) * 64, stride=(1,) * 64) for i in range(2000)})
    with zerocopy.open(content) as checkpoint:
        assert len(checkpoint) == 2000


def test_every_cut_of_an_archive_is_refused() -> None:
    for end in range(0, len(FULL), 97):
        with pytest.raises(zerocopy.Error):
            zerocopy.open(FULL[:end])
