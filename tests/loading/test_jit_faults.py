"""Faults of TorchScript archives: an exception that says what is wrong, and never a crash."""

from __future__ import annotations

import io
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import saved_bytes
from equality import assert_same
from script_modules import PROGRAMS, X
from tar_files import checkpoint as tar_checkpoint

import zerocopy
from zerocopy.loading.readers import torchscript

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def script_bytes(program: Any) -> bytes:
    file = io.BytesIO()
    torch.jit.save(program, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def archive() -> bytes:
    return script_bytes(PROGRAMS["constants beside parameters"]()[0])


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Assert that a file of these bytes is refused, as a file and as a buffer, and return what was said."""

    def refused(data: bytes, error: type[Exception] = zerocopy.FormatError) -> str:
        path = tmp_path / "faulty.pt"
        path.write_bytes(data)
        with pytest.raises(error):
            zerocopy.jit.load(data)
        with pytest.raises(error) as caught:
            zerocopy.jit.load(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    return refused


# ------------------------------------------------------------------------------ the operating system


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "none.pt"
    with pytest.raises(FileNotFoundError) as caught:
        zerocopy.jit.load(path)
    assert caught.value.filename in (str(path), os.fsencode(path))
    with pytest.raises(IsADirectoryError):
        zerocopy.jit.load(tmp_path)


# ------------------------------------------------------------------------------ structure


def test_a_record_is_missing_or_of_another_size(archive: bytes, refused: Callable[..., str]) -> None:
    for missing in ("constants.pkl", "data.pkl", "version", "data/0", "constants/0"):
        assert f"record '{missing}' is missing" in refused(rezip(archive, **{missing: None}))
    for record in ("data/0", "constants/1"):
        for size in (0, 4, 400):
            said = refused(rezip(archive, **{record: bytes(size)}))
            assert f"record '{record}' holds {size} bytes" in said


def test_tensors_beyond_their_storages(archive: bytes, refused: Callable[..., str]) -> None:
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        pickled = source.read("archive/data.pkl")
    # A storage of 9 elements, 3 x 3, of which a matrix of 3 x 200 is wanted.
    shape = b"K\x03K\x03t"
    assert shape in pickled
    assert "of a storage of" in refused(
        rezip(archive, **{"data.pkl": pickled.replace(shape, b"K\x03K\xc8t")})
    )


def test_a_newer_version(archive: bytes, refused: Callable[..., str]) -> None:
    refused(rezip(archive, version=b"99\n"), zerocopy.UnsupportedError)


def test_opcodes_that_run_code(archive: bytes, refused: Callable[..., str]) -> None:
    for opcode in (b"i", b"o", b"\x82\x01", b"Pabc\n"):  # INST, OBJ, EXT1, PERSID
        refused(rezip(archive, **{"data.pkl": b"\x80\x02" + opcode + b"os\nsystem\n."}))


def test_other_files(refused: Callable[..., str]) -> None:
    assert "zerocopy.load" in refused(saved_bytes({"x": X}))
    assert "constants.pkl" in refused(saved_bytes({"x": X}, _use_new_zipfile_serialization=False))
    refused(b"")
    refused(b"hello")
    refused(b"\x80\x02cos\nsystem\n.")
    refused(b"<html><title>Sign in</title>")
    assert "TorchScript" in refused(tar_checkpoint())


def test_a_program_that_does_not_compile(archive: bytes, refused: Callable[..., str]) -> None:
    """That is for torch to say."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        code = next(name for name in source.namelist() if name.endswith(".py"))
    faulty = rezip(archive, **{code.partition("/")[2]: b"class Broken("})
    for load in (zerocopy.jit.load, torch.jit.load):
        with pytest.raises(RuntimeError):
            load(io.BytesIO(faulty))


def test_written_to_meanwhile(tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.pt"
    path.write_bytes(archive)
    extra_file = torchscript._extra_file

    def grows(*args: Any) -> bytes:
        with path.open("ab") as file:
            file.write(b"more")
        return extra_file(*args)

    monkeypatch.setattr(torchscript, "_extra_file", grows)
    with pytest.raises(OSError, match=r"program\.pt"):
        zerocopy.jit.load(path, _extra_files={"x": ""})


# ------------------------------------------------------------------------------ torch's own loader


def test_flatbuffers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, program = tmp_path / "module.ff", torch.jit.script(torch.nn.Linear(3, 2))
    torch.jit._serialization.save_jit_module_to_flatbuffer(program, str(path))
    with caplog.at_level(logging.INFO, "zerocopy"):
        for source in (str(path), path, io.BytesIO(path.read_bytes()), path.read_bytes()):
            assert_same(zerocopy.jit.load(source)(X), program(X))
    (*_, message) = caplog.messages
    assert message == "<bytes> goes to torch.jit.load: a TorchScript module in the flatbuffer format"


def test_before_constants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first archives had their module in JSON. No release writes them: this one is empty."""
    path = tmp_path / "old.pt"
    path.write_bytes(rezip(saved_bytes(0), **{"model.json": b"{}", "data.pkl": None}))
    with caplog.at_level(logging.INFO, "zerocopy"), pytest.raises(RuntimeError):
        zerocopy.jit.load(path)
    assert "goes to torch.jit.load: a TorchScript archive of before" in caplog.text


def test_big_endian(tmp_path: Path, archive: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "big.pt"
    path.write_bytes(rezip(archive, byteorder=b"big"))
    with caplog.at_level(logging.INFO, "zerocopy"):
        zerocopy.jit.load(path)
    assert "goes to torch.jit.load: a big-endian" in caplog.text


def test_constants_named_in_another_way(archive: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With the MEMOIZE of newer protocols, which torch's own loader does not know."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        pickled = source.read("archive/constants.pkl")
    odd = rezip(archive, **{"constants.pkl": pickled.replace(b"tQ", b"\x94tQ")})
    with caplog.at_level(logging.INFO, "zerocopy"), pytest.raises(RuntimeError, match=r"[Oo]pcode"):
        zerocopy.jit.load(io.BytesIO(odd))
    assert "goes to torch.jit.load: expected names of storages in constants.pkl" in caplog.text


# ------------------------------------------------------------------------------ truncated, and bytes flipped


def test_every_cut_is_refused(archive: bytes) -> None:
    for end in (*range(0, len(archive), 97), len(archive) - 1):
        with pytest.raises((zerocopy.Error, RuntimeError)):
            zerocopy.jit.load(archive[:end])


def test_flipped_bits_of_pickles_end_in_exceptions(archive: bytes) -> None:
    random, faults = Random(7), 0
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        contents = {name: source.read(f"archive/{name}") for name in ("data.pkl", "constants.pkl")}
    for _ in range(100):
        name, content = random.choice([*contents.items()])
        changed = bytearray(content)
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        try:
            zerocopy.jit.load(rezip(archive, **{name: bytes(changed)}))
        except (zerocopy.Error, RuntimeError, IndexError):
            faults += 1
    assert faults > 10
