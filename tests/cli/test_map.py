"""``zerocopy map``: every byte of a file belongs to one part, and what is odd is named."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from commands import Capture
from conftest import saved_bytes
from json_schemas import require_valid

import zerocopy
from zerocopy.__main__ import main

STATE = {"weight": torch.arange(50.0), "flags": torch.tensor([True, False]), "half": torch.ones(3).half()}


def mapped(capsys: Capture, path: Path) -> dict[str, Any]:
    assert main(["map", "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    require_valid("map", found)
    at = 0
    for part in found["parts"]:
        assert part["offset"] == at
        at += part["size"]
    assert at == found["size"] == path.stat().st_size
    return found


def kinds(found: dict[str, Any]) -> dict[str, int]:
    return {kind: said["bytes"] for kind, said in found["kinds"].items()}


@pytest.mark.parametrize(
    "kind", ["zip", "legacy", "safetensors", "hdf5", "torchscript", "deflated", "one tensor"]
)
def test_map_covers_every_byte_of_each_format(kind: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(saved_bytes(STATE, _use_new_zipfile_serialization=kind != "legacy"))
    if kind == "deflated":
        path.write_bytes(rezip(path.read_bytes(), zipfile.ZIP_DEFLATED))
    elif kind == "torchscript":
        with warnings.catch_warnings():  # Later releases of torch call TorchScript deprecated.
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(path))
    elif kind == "one tensor":
        torch.save(torch.ones(3), path)
    elif kind in ("safetensors", "hdf5"):
        if kind == "hdf5":
            pytest.importorskip("h5py")
        target = tmp_path / ("m.h5" if kind == "hdf5" else "m.safetensors")
        zerocopy.convert(path, target)
        path = target
    found = mapped(capsys, path)
    data = {"zip": 208, "legacy": 208, "hdf5": 208}
    if kind in data:
        assert kinds(found)["storage"] == data[kind]
    if kind == "safetensors":
        assert kinds(found)["tensor"] == 208


def test_map_of_a_torch_file_names_nothing_odd(tmp_path: Path, capsys: Capture) -> None:
    torch.save(STATE, tmp_path / "m.pt")
    found = mapped(capsys, tmp_path / "m.pt")
    assert not [part for part in found["parts"] if part["note"]] and "hole" not in kinds(found)


def test_map_names_bytes_that_no_tensor_shows(tmp_path: Path, capsys: Capture) -> None:
    for legacy in (False, True):
        view = {"view": torch.arange(100.0)[10:20], "end": torch.ones(4)}
        torch.save(view, tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
        found = mapped(capsys, tmp_path / "m.pt")
        assert kinds(found)["hole"] == 90 * 4
        assert [part["size"] for part in found["parts"] if "unreferenced" in (part["note"] or "")] == [
            40,
            320,
        ]


def test_map_names_a_storage_that_no_tensor_uses(tmp_path: Path, capsys: Capture) -> None:
    with zerocopy.Writer(tmp_path / "m.pt") as writer:
        writer.store_early(torch.ones(50))
        writer.save(STATE)
    parts = mapped(capsys, tmp_path / "m.pt")["parts"]
    odd = [part for part in parts if "unreferenced" in (part["note"] or "")]
    assert sum(part["size"] for part in odd) >= 200


def test_map_names_misaligned_storages(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "m.pt").write_bytes(rezip(saved_bytes(STATE)))
    notes = [part["note"] for part in mapped(capsys, tmp_path / "m.pt")["parts"] if part["kind"] == "storage"]
    assert any(note and note.startswith("misaligned") for note in notes)


def test_map_in_a_pipe_prints_a_line_a_part(tmp_path: Path, capsys: Capture) -> None:
    torch.save(STATE, tmp_path / "m.pt")
    parts = mapped(capsys, tmp_path / "m.pt")["parts"]
    assert main(["map", str(tmp_path / "m.pt")]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(int(row[0]), int(row[1]), row[2]) for row in rows] == [
        (part["offset"], part["size"], part["kind"]) for part in parts
    ]
    assert main(["map", "--table", str(tmp_path / "m.pt")]) == 0
    assert "directory" in capsys.readouterr().out


def test_map_of_several_files_asks_for_one(tmp_path: Path, capsys: Capture) -> None:
    zerocopy.save({"a": torch.ones(100), "b": torch.ones(100)}, tmp_path / "m.pt")
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "shards", max_shard_size="400B")
    assert main(["map", str(tmp_path / "shards")]) == 2
    assert "give one of them" in capsys.readouterr().err
