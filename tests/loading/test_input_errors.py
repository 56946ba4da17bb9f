"""Errors for files that cannot be loaded: refusals of the operating system, other kinds of file."""

from __future__ import annotations

import argparse
import errno
import io
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import assembler
import pytest
import torch
from conftest import Child, Saver, saved_bytes

import zerocopy
from zerocopy import cli

STATE = {"weight": torch.arange(3.0)}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 437951328\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body></body></html>"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        zerocopy.load(tmp_path / "nowhere.pt")
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, str(tmp_path / "nowhere.pt"))


def test_empty_path_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not mean the present folder, as an empty ``Path`` does."""
    monkeypatch.chdir(tmp_path)
    torch.save(STATE, "saved.pt")
    for call in (
        *(zerocopy.load, zerocopy.open, zerocopy.lazy_load, zerocopy.explain),
        lambda empty: zerocopy.save({}, empty),
        lambda empty: zerocopy.convert(empty, "converted.pt"),
        lambda empty: zerocopy.convert("saved.pt", empty),
        lambda empty: zerocopy.convert("saved.pt", empty, max_shard_size="1GB"),
    ):
        with pytest.raises(FileNotFoundError) as error:
            call("")
        assert error.value.filename == ""


def test_argument_of_another_type_is_named(save: Saver) -> None:
    for call in (
        lambda path: zerocopy.open(path).read({"weight": ...}, into=torch.ones(3)),
        lambda path: zerocopy.lazy_load(path, predicate=3),
        lambda path: zerocopy.lazy_load(path, keys=3),
        lambda path: zerocopy.convert(path, path.with_suffix(".safetensors"), keep=3),
    ):
        with pytest.raises(TypeError, match=r"expected .* got \w+$"):
            call(save(STATE))


def test_no_permission(save: Saver, forked: Child) -> None:
    path = save(STATE)
    path.chmod(0)
    # The user "nobody" may be unable to read the package: the first call imports the rest of it.
    code = """
        import contextlib, os, sys, zerocopy
        with contextlib.suppress(FileNotFoundError):
            zerocopy.load(sys.argv[1] + ".missing")
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            zerocopy.load(sys.argv[1])
        except PermissionError as error:
            print(error.errno, error.filename)
    """
    done = forked(code, path)
    assert done.stdout.split() == [str(errno.EACCES), str(path)], done.stderr


def test_fifo_is_refused_at_once(tmp_path: Path, forked: Child) -> None:
    """Nobody will ever write to it, so opening it must not wait."""
    fifo = tmp_path / "fifo.pt"
    os.mkfifo(fifo)
    code = """
        import sys, torch, zerocopy
        model = torch.nn.Linear(1, 1)
        for call in (zerocopy.load, lambda path: zerocopy.load_model(model, path), zerocopy.storage_offsets):
            try:
                call(sys.argv[1])
            except OSError as error:
                assert error.filename == sys.argv[1]
            else:
                raise AssertionError(call)
    """
    assert forked(code, fifo).returncode == 0


@pytest.mark.parametrize("load", [zerocopy.load, lambda f: zerocopy.load_model(torch.nn.Linear(1, 1), f)])
def test_what_is_no_file_is_refused_by_what_it_is(load: Callable[[Any], Any], tmp_path: Path) -> None:
    (tmp_path / "f.pt").touch()
    with pytest.raises(TypeError, match="expected a path, a binary file object or a buffer, got int"):
        load(3)
    with (tmp_path / "f.pt").open() as file, pytest.raises(TypeError, match="open it with 'rb'"):
        load(file)
    with pytest.raises(FileNotFoundError):
        load("")
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    with zerocopy.open(tmp_path / "a.pt") as opened, pytest.raises(TypeError, match="got Checkpoint"):
        load(opened)


@pytest.mark.parametrize("count", [-1, 1 << 40])
def test_file_object_that_counts_wrongly_is_refused(count: int) -> None:
    class Miscounting:
        def read(self) -> bytes:
            raise AssertionError("it has readinto()")

        def readinto(self, buffer: Any) -> int:
            return count

    with pytest.raises(ValueError, match=rf"readinto\(\) returned {count}"):
        zerocopy.load(Miscounting())


WAYS_IN = [zerocopy.load, zerocopy.open, zerocopy.lazy_load, zerocopy.prefetch, zerocopy.explain]


def test_nul_in_path_and_slash_behind_a_file(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library would open the file before the NUL."""
    path = save(STATE)
    monkeypatch.chdir(path.parent)
    for call in WAYS_IN:
        with pytest.raises(ValueError, match="null byte"):
            call(f"{path}\0.pt")
        for name in (f"{path}/", f"{path.name}/"):
            with pytest.raises(NotADirectoryError):
                call(name)


BY = pytest.mark.parametrize("by", ["path", "file", "buffer"])


def load_by(by: str, content: bytes, tmp_path: Path) -> Any:
    path = tmp_path / "strange.pt"
    path.write_bytes(content)
    if by == "path":
        return zerocopy.load(path)
    if by == "buffer":
        return zerocopy.load(content)
    with path.open("rb") as file:
        return zerocopy.load(file)


OTHER_KINDS = {
    b"": "empty",
    LFS: r"git-lfs pointer \(sha256:4d7a21, 437,951,328 bytes\).*git lfs pull",
    HTML: "HTML page.*Sign in",
    PNG: "not a checkpoint.*PNG",
    pickle.dumps({"a": 1}): "plain pickle",
    b"x": "not a checkpoint",
}


@BY
def test_files_of_other_kinds(tmp_path: Path, by: str) -> None:
    for content, words in OTHER_KINDS.items():
        with pytest.raises(zerocopy.FormatError, match=words) as error:
            load_by(by, content, tmp_path)
        assert "strange.pt" in str(error.value) or by == "buffer"
        assert isinstance(error.value, ValueError) and isinstance(error.value, zerocopy.Error)


def zipped(*names: str) -> bytes:
    """Return a zip archive in which every record is a checkpoint."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, saved_bytes(STATE))
    return out.getvalue()


def unfinished() -> bytes:
    """Return what is left of a save that failed to pickle."""
    out = io.BytesIO()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        torch.save({"weight": torch.ones(3), "function": lambda: 0}, out)
    return out.getvalue()


ARCHIVES: dict[str, tuple[bytes, Any, str]] = {
    "of stable-baselines3": (
        zipped("data", "policy.pth", "policy.optimizer.pth", "_stable_baselines3_version"),
        zerocopy.UnsupportedError,
        r"holds checkpoints, 'policy\.pth', 'policy\.optimizer\.pth': extract",
    ),
    "a folder": (
        zipped("run/a.CKPT", "run/b/c.bin"),
        zerocopy.UnsupportedError,
        "'run/a.CKPT', 'run/b/c.bin'",
    ),
    "many": (zipped(*(f"{i}.pt" for i in range(9))), zerocopy.UnsupportedError, r"'4\.pt' and 4 more"),
    "arrays": (zipped("a.npy", "b.npy"), zerocopy.FormatError, "numpy.load reads it"),
    "something else": (zipped("a", "b"), zerocopy.FormatError, "extract it, and load the file in it"),
    "unfinished": (unfinished(), zerocopy.FormatError, "the save did not finish"),
    "killed": (saved_bytes(STATE)[:700], zerocopy.FormatError, "or the save did not finish"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_zip_archive_without_a_checkpoint_says_what_it_is(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, refusal, words = ARCHIVES[kind]
    path = tmp_path / "m.zip"
    path.write_bytes(content)
    for way in (zerocopy.load, zerocopy.lazy_load, zerocopy.open, zerocopy.explain):
        with pytest.raises(refusal, match=words):
            way(path)
    for command in ("ls", "verify", "scan"):
        code = cli.main([command, str(path)])
        assert code == 2 if "save" not in words else code, command
        shown = capsys.readouterr()
        assert re.search(words, shown.out + shown.err), command
    with pytest.raises(Exception, match=r"(?s).+") as stock:
        torch.load(path)
    with zerocopy.patched(), pytest.raises(stock.type):
        torch.load(path)


def test_path_as_bytes_is_content(tmp_path: Path) -> None:
    with pytest.raises(zerocopy.FormatError, match=r"os\.fsdecode"):
        zerocopy.load(os.fsencode(tmp_path / "m.pt"))
    with pytest.raises(zerocopy.FormatError) as error:
        zerocopy.load(PNG)
    assert "fsdecode" not in str(error.value)


def test_tensors_of_dtensor_name_the_import(forked: Child, save: Saver) -> None:
    """As torch does, which allows the classes as soon as the program imports them."""
    if not hasattr(torch.serialization, "add_safe_globals"):
        pytest.skip("this release has no list of its own")
    shard = assembler.call(assembler.name("torch.distributed.tensor.placement_types", "Shard"), 0)
    file = assembler.checkpoint(assembler.pickle([shard]))
    code = """
        import io, pickle, sys, torch, zerocopy
        for load in (torch.load, zerocopy.load):
            try:
                load(sys.argv[1])
            except pickle.UnpicklingError as error:
                print("must be imported to load" in str(error), "torch.distributed.tensor" in str(error))
    """
    path = save([])
    path.write_bytes(file)
    assert forked(code, path).stdout.split() == ["True"] * 4


def test_a_program_of_torch_export_before_2_8(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    for folder in ("", "archive/"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{folder}serialized_exported_program.json", "{}")
            archive.writestr(f"{folder}serialized_state_dict.pt", b"PK")
        for way in (zerocopy.load, zerocopy.lazy_load, zerocopy.open, zerocopy.explain):
            with pytest.raises(zerocopy.Error, match=f"{path}.*torch.export.load reads it"):
                way(path)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_bare_pickle_without_an_allow_list_is_no_checkpoint(tmp_path: Path, weights_only: bool) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(argparse.Namespace(a=1)))
    expected = pickle.UnpicklingError if weights_only else zerocopy.FormatError
    with pytest.raises(expected, match=f"{path}: this is a plain pickle, not a file that torch.save wrote"):
        zerocopy.load(path, weights_only=weights_only)


def test_a_torch_package(tmp_path: Path) -> None:
    path = tmp_path / "package.pt"
    with torch.package.PackageExporter(path) as exporter:
        exporter.save_pickle("model", "model.pkl", STATE)
    for way in (zerocopy.load, zerocopy.lazy_load, zerocopy.open, zerocopy.jit.load, zerocopy.explain):
        with pytest.raises(
            zerocopy.UnsupportedError, match=f"{path}.*torch.package; torch.package.PackageImporter"
        ):
            way(path)
    with pytest.raises(zerocopy.UnsupportedError):
        zerocopy.load(path, weights_only=False)
    with zerocopy.patched(), pytest.raises(RuntimeError, match=r"data\.pkl"):  # torch's own words
        torch.load(path, weights_only=False)


SLOW_SWEEP = pytest.mark.slow("flips bits of every byte")


@pytest.mark.parametrize(
    ("load", "step"),
    [
        (zerocopy.load, 5),
        pytest.param(zerocopy.load, 1, marks=SLOW_SWEEP),
        pytest.param(zerocopy.lazy_load, 1, marks=SLOW_SWEEP),
        pytest.param(zerocopy.open, 1, marks=SLOW_SWEEP),
    ],
)
def test_no_flipped_bit_of_a_pickle_is_taken_for_a_global_to_trust(save: Saver, load: Any, step: int) -> None:
    state = OrderedDict(a=torch.ones(3), b=torch.nn.Parameter(torch.ones(2)))
    path = save(state)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        begin = content.index(archive.read(name))
        size = archive.getinfo(name).file_size
    damaged = 0
    for place in range(begin, begin + size, step):
        for bit in (1, 32):
            changed = bytearray(content)
            changed[place] ^= bit
            try:
                load(io.BytesIO(changed))
            except (zerocopy.Error, pickle.UnpicklingError, RuntimeError) as error:
                assert "weights_only=False" not in str(error)
                damaged += "data.pkl' is damaged" in str(error)
    assert damaged > size / step


def test_damaged_pickle_of_a_trusted_file_says_so(save: Saver) -> None:
    path = save({"a": torch.nn.Parameter(torch.ones(2))})
    path.write_bytes(path.read_bytes().replace(b"_rebuild_parameter\n", b"_rebuild_paramet\xe5r\n", 1))
    with pytest.raises(zerocopy.FormatError, match=f"{path}.*data.pkl' is damaged"):
        zerocopy.load(path, weights_only=False)
