"""Where a checkpoint may come from: paths, file objects, buffers."""

from __future__ import annotations

import gzip
import io
import mmap
import os
import pathlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import lies_in_mapping, saved_bytes
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {"weight": torch.arange(5000.0), "bias": torch.arange(3), "tied": [torch.ones(2)] * 2}
BEFORE = b"bytes before the archive: " * 3


class Fspath:
    """An ``os.PathLike`` that is not a ``Path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


class OnlyRead:
    """A reader as a socket or a pipe gives: no seek, no tell, no fileno."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


def at(file: Any, position: int) -> Any:
    file.seek(position)
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint.pt"
    torch.save(STATE, made)
    return made


PATHS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda path: path,
    "PurePath": lambda path: pathlib.PurePosixPath(path),
    "PathLike": Fspath,
    "relative": lambda path: os.path.relpath(path),
    "file": lambda path: path.open("rb"),
    "unbuffered": lambda path: path.open("rb", buffering=0),
    "writable": lambda path: path.open("rb+"),
}


@BOTH
@pytest.mark.parametrize("kind", PATHS)
def test_paths(path: Path, kind: str, weights_only: bool) -> None:
    loaded = zerocopy.load(PATHS[kind](path), weights_only=weights_only)
    assert_same(loaded, STATE)
    assert lies_in_mapping(loaded["weight"].data_ptr(), path)


STREAMS: dict[str, Callable[[bytes, Path], Any]] = {
    "BytesIO": lambda content, tmp: io.BytesIO(content),
    "BytesIO-at-offset": lambda content, tmp: at(io.BytesIO(BEFORE + content), len(BEFORE)),
    "only-read": lambda content, tmp: OnlyRead(content),
    "BufferedReader-of-BytesIO": lambda content, tmp: io.BufferedReader(io.BytesIO(content)),
    "gzip": lambda content, tmp: _gzip_file(content, tmp / "a.gz"),
    "bytes": lambda content, tmp: content,
    "bytearray": lambda content, tmp: bytearray(content),
    "memoryview": lambda content, tmp: memoryview(BEFORE + content)[len(BEFORE) :],
    "numpy": lambda content, tmp: np.frombuffer(content, np.uint8),
    "mmap-of-nothing": lambda content, tmp: _anonymous_map(content),
}


def _gzip_file(content: bytes, path: Path) -> Any:
    with gzip.open(path, "wb") as file:
        file.write(content)
    return gzip.open(path, "rb")


def _anonymous_map(content: bytes) -> Any:
    made = mmap.mmap(-1, len(content))
    made.write(content)
    return memoryview(made)


@BOTH
@pytest.mark.parametrize("kind", STREAMS)
def test_streams_and_buffers(tmp_path: Path, kind: str, weights_only: bool) -> None:
    source = STREAMS[kind](saved_bytes(STATE), tmp_path)
    assert_same(zerocopy.load(source, weights_only=weights_only), STATE)


def test_tensors_of_an_mmap_object_lie_in_it(path: Path) -> None:
    begin = 4096 + 64
    path.write_bytes(bytes(begin) + path.read_bytes())
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        private = zerocopy.load(at(content, begin))
        assert content.tell() == len(content)
        shared = zerocopy.load(at(content, begin), mode="r+")
        assert content.tell() == len(content)
        shared["weight"].zero_()
        shared["weight"] = None
        written = zerocopy.load(at(content, begin))
        assert not written["weight"].any()
        assert_same(private, STATE)
        del shared


@pytest.mark.parametrize("kind", ["BytesIO", "gzip"])
def test_mode_for_shared_writes_refuses_what_is_read_as_a_stream(tmp_path: Path, kind: str) -> None:
    source = STREAMS[kind](saved_bytes(STATE), tmp_path)
    with pytest.raises(ValueError, match=r"mode 'r\+' needs a path"):
        zerocopy.load(source, mode="r+")


@BOTH
def test_a_subclass_that_decodes_is_read_through(path: Path, tmp_path: Path, weights_only: bool) -> None:
    """A wrapper may change the bytes: only plain files are taken by their descriptor."""
    masked = tmp_path / "masked.bin"
    masked.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))

    class Unmasking(io.FileIO):
        def readall(self) -> bytes:
            return bytes(byte ^ 0x55 for byte in super().readall())

        def read(self, size: int = -1) -> bytes:
            return self.readall() if size < 0 else bytes(byte ^ 0x55 for byte in super().read(size))

    with Unmasking(masked) as file:
        assert_same(zerocopy.load(file, weights_only=weights_only), STATE)


def test_the_file_object_is_left_open_and_at_the_end(path: Path) -> None:
    with path.open("rb") as file:
        zerocopy.load(file)
        assert not file.closed and file.read() == b""


def test_a_pipe_that_has_no_bytes_yet_is_named() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with (
        os.fdopen(reading, "rb") as file,
        os.fdopen(writing, "wb"),
        pytest.raises(BlockingIOError, match="yet"),
    ):
        zerocopy.load(file)


def test_wrappers_that_pass_on_to_a_file_are_mapped(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        torch.save(STATE, file)
        file.seek(0)
        loaded = zerocopy.load(file)
        assert_same(loaded, STATE)
        assert lies_in_mapping(loaded["weight"].data_ptr(), Path(file.name))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_fsspec(tmp_path: Path, compression: str | None) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = tmp_path / "x.pt"
    with fsspec.open(str(path), "wb", compression=compression) as file:
        torch.save(STATE, file)
    with fsspec.open(str(path), "rb", compression=compression) as file:
        loaded = zerocopy.load(file)
    assert_same(loaded, STATE)
    assert lies_in_mapping(loaded["weight"].data_ptr(), path) == (compression is None)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_name_that_is_not_utf8(path: Path, tmp_path: Path, suffix: str) -> None:
    """Python shows such bytes as surrogates; whatever takes a path takes this one."""
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9." + suffix.encode())
    zerocopy.save({"weight": STATE["weight"]}, path)
    zerocopy.convert(path, name)
    assert torch.equal(zerocopy.load(name)["weight"], STATE["weight"])
    assert torch.equal(zerocopy.lazy_load(name)["weight"] + 0, STATE["weight"])
    with zerocopy.open(name) as opened:
        assert torch.equal(opened.get_tensor("weight"), STATE["weight"])
        assert "weight" in str(opened.tree()) and "caf\\udce9" in repr(opened)
    assert zerocopy.explain(name).storages
    if suffix == "pt":
        assert zerocopy.storage_offsets(name)
    Path(name).write_bytes(b"PK\3\4")
    with pytest.raises(zerocopy.FormatError):
        zerocopy.open(name)
