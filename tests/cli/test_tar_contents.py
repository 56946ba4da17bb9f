"""``zerocopy ls`` of tar archives of before PyTorch 0.1.10: names, geometry, ties, and crafted pickles."""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tar_files as tar
import torch
from assembler import Code
from commands import Capture
from json_schemas import require_valid

import zerocopy
from zerocopy import cli

VIEWS = {
    "storages": tar.storages(tar.storage(), views=((3, 1, 4, 8),)),
    "tensors": tar.tensors(tar.tensor(), tar.tensor(4, 3, (2, 4), (4, 1)), tar.tensor(5, 1, (2,), (3,), 1)),
}
STATE = {
    "model": {"w": tar.reference(2), "tied": tar.reference(2), "view": tar.reference(4), "part": tar.reference(5)},
    "step": 3,
    "rest": [None, "text", 2.5],
}  # fmt: skip


def listed(path: Path, capsys: Capture) -> dict[str, Any]:
    assert cli.main(["ls", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    require_valid("ls", found)
    return found


def test_ls_of_tar_lists_the_tensors_of_a_trusting_load(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "old.pt"
    path.write_bytes(tar.checkpoint(STATE, **VIEWS))
    found = listed(path, capsys)
    loaded = zerocopy.load(path, weights_only=False)
    assert found["container"] == "tar"
    tensors = {entry["name"]: entry for entry in found["tensors"]}
    assert set(tensors) == {f"model.{name}" for name in loaded["model"]}
    content = path.read_bytes()
    for name, tensor in loaded["model"].items():
        entry = tensors[f"model.{name}"]
        assert (entry["shape"], entry["stride"]) == ([*tensor.shape], [*tensor.stride()])
        assert f"torch.{entry['dtype']}" == str(tensor.dtype) and entry["bytes"] == tensor.numel() * 4
        first = torch.frombuffer(bytearray(content[entry["offset"] :][:4]), dtype=torch.float32)
        assert first == tensor.flatten()[0]
    assert tensors["model.tied"]["same_as"] == "model.w" and tensors["model.view"]["shares_with"] == "model.w"
    values = {value["name"]: value["value"] for value in found["values"]}
    assert values == {"step": 3, "rest.0": None, "rest.1": "text", "rest.2": 2.5}


class Runs:
    def __reduce__(self) -> Any:
        return subprocess.run, (["touch", "was-run"],)


def test_ls_of_tar_runs_nothing(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(3):
        path = tmp_path / "evil.pt"
        path.write_bytes(tar.checkpoint(pickle=pickle.dumps({"a": Runs()}, protocol, fix_imports=False)))
        found = listed(path, capsys)
        assert ("object", "subprocess.run") in [(value["kind"], value["value"]) for value in found["values"]]
        assert not (tmp_path / "was-run").exists()


def nested(levels: int) -> Any:
    """Return a list of two, each a list of two, ...: few bytes, and two to the power of `levels` names."""
    made: Any = 0
    for _ in range(levels):
        made = [made, made]
    return made


def itself() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "content",
    [
        tar.checkpoint(pickle=pickle.dumps(nested(60), 2)),
        tar.checkpoint(pickle=pickle.dumps(itself(), 2)),
        tar.checkpoint(pickle=b"\x80\x02" + b"]" * 200 + b"a" * 199 + b"."),
        tar.checkpoint(pickle=b"garbage"),
        tar.checkpoint(pickle=b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f."),  # BYTEARRAY8 of 2**60 bytes
        tar.checkpoint(pickle=b"\x80\x02}(K\x01K\x02tK\x03s."),  # a tuple as a key
        tar.checkpoint(tensors=tar.tensors(tar.tensor(size=(17,)))),
        tar.checkpoint(tensors=tar.tensors(tar.tensor(offset=-1))),
        tar.checkpoint(tensors=tar.tensors(tar.tensor(over=9))),
        tar.checkpoint(storages=tar.storages(tar.storage(count=1 << 60))),
        tar.checkpoint(storages=tar.storages(tar.storage(kind="NoStorage"))),
        tar.checkpoint(storages=tar.storages(count=1 << 60)),
        tar.checkpoint(storages=None),
        tar.checkpoint()[:1500],
    ],
    ids=range(14),
)
def test_ls_of_bad_tar_exits_with_one_sentence(tmp_path: Path, capsys: Capture, content: bytes) -> None:
    path = tmp_path / "bad.pt"
    path.write_bytes(content)
    assert cli.main(["ls", str(path)]) == 2
    captured = capsys.readouterr()
    assert (
        captured.out == ""
        and captured.err.startswith(f"zerocopy ls: {path}: ")
        and captured.err.count("\n") == 1
    )


def test_report_of_tar_is_a_page(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    path.write_bytes(tar.checkpoint(STATE, **VIEWS))
    assert cli.main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert "model.view" in (tmp_path / "page.html").read_text()


def test_tensor_inside_an_object_is_listed_with_its_class(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "module.pt"
    # An object of a class, made by REDUCE without arguments, whose state holds the tensor.
    body = b"cmine\nModel\n)R}U\x06weightK\x02Qsb."
    path.write_bytes(tar.checkpoint(pickle=b"\x80\x02" + Code(body)))
    (entry,) = listed(path, capsys)["tensors"]
    assert (entry["name"], entry["inside"], entry["shape"]) == ("weight", "mine.Model", [16])
