"""``scan`` and ``verify`` of folders of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from assembler import call, checkpoint, name
from assembler import pickle as stream
from commands import Capture
from dcp_errors import require_dcp
from dcp_folders import METADATA, StorageInfo, Writer, class_of

from zerocopy.__main__ import main

Report = dict[str, Any]


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("echo bang",)


class Attributes:
    """Changes the attributes of a torch class, without a global that is not torch's."""

    def __reduce__(self) -> Any:
        return getattr, (class_of(METADATA, "Metadata"), "__init__"), {"__doc__": "changed"}


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    writer = Writer(tmp_path)
    writer.add("weight", torch.arange(6.0).reshape(2, 3))
    writer.add("step", 7)
    halves = [((0, 0), torch.ones(1, 4)), ((1, 0), torch.ones(1, 4))]
    writer.add_chunks("halves", (2, 4), torch.float32, halves)
    return writer


def reports_of(command: str, folder: Path, capsys: Capture, *options: str) -> list[Report]:
    """Return what a command says of each file; of the exit code only that it is the highest."""
    code = main([command, "--json", *options, str(folder)])
    printed = json.loads(capsys.readouterr().out)
    verdicts = [*(("safe", "unsafe") if command == "scan" else ("fine", "damaged")), "trouble"]
    assert code == max(verdicts.index(one["verdict"]) for one in printed["files"])
    files: list[Report] = printed["files"]
    return files


def verdicts_of(reports: list[Report]) -> dict[str, str]:
    return {Path(one["path"]).name: one["verdict"] for one in reports}


def test_scan_of_a_folder_is_safe_and_lists_the_pickles_of_each_file(writer: Writer, capsys: Capture) -> None:
    metadata, first, second = reports_of("scan", writer.write(), capsys)
    assert [one["container"] for one in (metadata, first, second)] == ["pickle", "distributed", "distributed"]
    assert [one["verdict"] for one in (metadata, first, second)] == ["safe"] * 3
    assert {entry["judgement"] for entry in metadata["pickles"][0]["globals"]} == {"known", "allowed"}
    assert [one["name"].partition(": ")[0] for one in first["pickles"]] == ["weight", "step", "halves[0, 0]"]
    assert [one["name"].partition(": ")[0] for one in second["pickles"]] == ["halves[1, 0]"]
    content = writer.files["__0_0.distcp"]
    for one in first["pickles"]:
        assert content[one["offset"] : one["offset"] + 1] == b"\x80" and one["stopped"]


def test_verify_of_a_folder_hashes_each_file_and_checks_the_records_of_all_archives(
    writer: Writer, capsys: Capture
) -> None:
    folder = writer.write()
    reports = reports_of("verify", folder, capsys, "--records")
    assert list(verdicts_of(reports)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    for one in reports:
        content = Path(one["path"]).read_bytes()
        assert (one["verdict"], one["size"]) == ("fine", len(content))
        assert one["sha256"] == hashlib.sha256(content).hexdigest()
    weight = next(one for one in reports[1]["records"] if one["name"] == "weight: archive/data/0")
    stored = writer.files["__0_0.distcp"][weight["offset"] :][: weight["size"]]
    assert torch.frombuffer(bytearray(stored), dtype=torch.float32).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert {one["state"] for report in reports for one in report["records"]} == {"ok"}


def test_verify_names_the_tensor_whose_bytes_are_damaged(writer: Writer, capsys: Capture) -> None:
    content = bytearray(writer.files["__0_0.distcp"])
    content[content.index(torch.arange(6.0).numpy().tobytes()) + 5] ^= 1
    writer.files["__0_0.distcp"] = bytes(content)
    reports = reports_of("verify", writer.write(), capsys)
    assert verdicts_of(reports) == {".metadata": "fine", "__0_0.distcp": "damaged", "__1_0.distcp": "fine"}
    assert reports[1]["reasons"] == [{"kind": "checksum", "text": "CRC-32 differs: weight: archive/data/0"}]


@pytest.mark.parametrize("command", ["scan", "verify"])
def test_bytes_that_no_entry_covers_are_a_note(command: str, writer: Writer, capsys: Capture) -> None:
    size = len(writer.files["__0_0.distcp"])
    writer.files["__0_0.distcp"] += b"extra"
    writer.files["__7_0.distcp"] = b"of nothing"
    _, first, second, third = reports_of(command, writer.write(), capsys)
    assert first["notes"] == [f"bytes that no entry of .metadata covers: 5 at {size:#x}"]
    assert second["notes"] == []
    assert third["notes"] == ["bytes that no entry of .metadata covers: 10 at 0x0"]


def test_scan_judges_each_archive_as_a_file_of_its_own(writer: Writer, capsys: Capture) -> None:
    evil = checkpoint(stream(call(name("posix", "system"), "echo bang")), {})
    offset = len(writer.files["__1_0.distcp"])
    writer.files["__1_0.distcp"] += evil
    place = {"relative_path": "__1_0.distcp", "offset": offset, "length": len(evil)}
    writer.change("step", lambda info: info.__dict__.update(place))
    folder = writer.write()
    reports = reports_of("scan", folder, capsys)
    assert verdicts_of(reports) == {".metadata": "safe", "__0_0.distcp": "safe", "__1_0.distcp": "unsafe"}
    assert reports[2]["reasons"] == [{"kind": "globals", "text": "step: not allowed: posix.system"}]
    assert set(verdicts_of(reports_of("verify", folder, capsys)).values()) == {"fine"}


def _paths(value: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.paths.update(weight=value)


def _entry(value: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.entries.update(weight=value)


def _place(**fields: Any) -> Callable[[Writer], None]:
    return lambda writer: writer.change("step", lambda info: info.__dict__.update(fields))


def _unused(value: Any) -> Callable[[Writer], None]:
    """In a place that zerocopy's reader does not look at: torch runs it all the same."""
    return lambda writer: writer.places.update(
        {next(iter(writer.places)): StorageInfo(**_fields(writer, value))}
    )


def _fields(writer: Writer, value: Any) -> dict[str, Any]:
    return {**next(iter(writer.places.values())).__dict__, "transform_descriptors": None, "extra": value}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        pytest.param(_paths(Bomb()), "globals", "not allowed: posix.system", id="a call in a path"),
        pytest.param(_entry(Bomb()), "globals", "not allowed: posix.system", id="a call in an entry"),
        pytest.param(_unused(Bomb()), "globals", "not allowed: posix.system", id="a call that is not read"),
        pytest.param(_unused(Attributes()), "policy", "builtins.getattr", id="a change of torch"),
        pytest.param(_place(relative_path="../x"), "structure", "not in its folder", id="outside"),
        pytest.param(_place(offset=1 << 70), "structure", "an offset and a length", id="absurd"),
        pytest.param(_place(offset=1), "structure", "step overlaps weight at 0x0", id="overlapping"),
    ],
)
def test_scan_of_hostile_metadata_is_unsafe_with_one_sentence(
    change: Callable[[Writer], None], kind: str, text: str, writer: Writer, capsys: Capture
) -> None:
    change(writer)
    report = reports_of("scan", writer.write(), capsys)[0]
    ((found_kind, found),) = ((reason["kind"], reason["text"]) for reason in report["reasons"])
    assert report["verdict"] == "unsafe" and found_kind == kind and text in found


@pytest.mark.parametrize("command", ["scan", "verify"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(_place(offset=1 << 40), "past the end of the file", id="behind the end"),
        pytest.param(_place(length=0), "the 0 bytes at", id="nothing there"),
    ],
)
def test_extent_that_is_not_an_archive_of_its_own_is_a_reason(
    command: str, change: Callable[[Writer], None], text: str, writer: Writer, capsys: Capture
) -> None:
    change(writer)
    _, report, _ = reports_of(command, writer.write(), capsys)
    (reason,) = report["reasons"]
    assert reason["kind"] == "structure" and text in reason["text"]


@pytest.mark.parametrize("command", ["scan", "verify"])
def test_file_that_does_not_exist_is_trouble(command: str, writer: Writer, capsys: Capture) -> None:
    folder = writer.write()
    (folder / "__1_0.distcp").unlink()
    reports = reports_of(command, folder, capsys)
    assert [Path(one["path"]).name for one in reports] == [".metadata", "__0_0.distcp", folder.name]
    assert "do not exist: __1_0.distcp" in reports[2]["reasons"][0]["text"]


@pytest.mark.parametrize("command", ["scan", "verify"])
def test_folder_that_torch_wrote_is_fine(command: str, tmp_path: Path, capsys: Capture) -> None:
    checkpoints = require_dcp()
    state = {"model": {"weight": torch.ones(4, 4), "flags": torch.tensor([True])}, "list": [1, torch.ones(2)]}
    checkpoints.save(state, checkpoint_id=tmp_path)
    assert main([command, str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_verify_of_a_folder_says_that_it_does_not_compare(writer: Writer, capsys: Capture) -> None:
    reports = reports_of("verify", writer.write(), capsys, "--compare")
    assert all("not compared" in one["notes"][-1] for one in reports)
