"""Errors and log lines tell the truth, and what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import os
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import Saver, outcome, saved_bytes

import zerocopy
from zerocopy.cli import main


def archive_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return file.getvalue()


def tar_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def numpy_bytes(save: Callable[..., None], *args: Any) -> bytes:
    file = io.BytesIO()
    save(file, *args)
    return file.getvalue()


OTHERS = {
    "npy": (numpy_bytes(numpy.save, numpy.ones(3)), "numpy.load"),
    "npz": (numpy_bytes(numpy.savez, numpy.ones(3)), "numpy.load"),
    "npz, deflated": (numpy_bytes(numpy.savez_compressed, numpy.ones(3)), "numpy.load"),
    "gzip": (gzip.compress(saved_bytes({"a": 1})), "gunzip"),
    "bzip2": (bz2.compress(saved_bytes({"a": 1})), "bunzip2"),
    "xz": (lzma.compress(saved_bytes({"a": 1})), "unxz"),
    "zip": (archive_of(readme=b"hello"), "extract"),
    "zip, one folder": (archive_of(folder__readme=b"hello"), "extract"),
    "zip, folders": (archive_of(folder__readme=b"hello", other__readme=b"hello"), "extract"),
    "tar": (tar_of(readme=b"hello"), "extract"),
}


@pytest.mark.parametrize(("content", "advice"), OTHERS.values(), ids=OTHERS)
def test_foreign_file_error_names_format_and_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, advice: str
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    for read in (
        zerocopy.load,
        zerocopy.open,
        zerocopy.lazy_load,
        zerocopy.storage_offsets,
        zerocopy.explain,
    ):
        with pytest.raises(zerocopy.Error, match=advice) as caught:
            read(path)  # type: ignore[operator]
        assert not any(
            word in str(caught.value) for word in ("weights_only", "truncated", "unsafe", "damaged")
        )
        assert isinstance(caught.value, zerocopy.FormatError | zerocopy.UnsupportedError)
    for command in ("scan", "verify"):
        assert main([command, str(path)]) == 2
        printed = capsys.readouterr()
        assert advice in printed.err and not printed.out


@pytest.mark.parametrize(
    "content",
    [
        archive_of(readme=b"hello", folder__DATA_pkl=b"x").replace(b"DATA_pkl", b"DATA.pkl"),  # in any case
        tar_of(readme=bytes(2 << 20), storages=b"", tensors=b"", pickle=b""),
    ],
    ids=["zip", "tar"],
)
def test_archive_that_torch_could_read_stays_unsafe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    assert main(["scan", str(path)]) == 1
    assert "unsafe" in capsys.readouterr().out


def test_plain_pickle_of_foreign_globals_is_not_said_to_be_loaded_by_weights_only(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"a": numpy.ones(3)}))
    with pytest.raises(pickle.UnpicklingError, match=r"plain pickle.*numpy") as caught:
        zerocopy.load(path)
    assert "weights_only=False" not in str(caught.value)


def stock_and_patched(path: Path, **options: Any) -> tuple[Any, Any]:
    """Return what torch.load raises, and what it raises while patched."""
    stock = outcome(lambda: torch.load(path, **options))
    with zerocopy.patched():
        patched = outcome(lambda: torch.load(path, **options))
    assert stock[0] == "error"
    return stock, patched


def test_zip_of_others_while_patched_raises_as_stock(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for name in ("npz", "npz, deflated", "zip", "zip, one folder", "zip, folders"):
        path.write_bytes(OTHERS[name][0])
        for weights_only in (True, False):
            stock, patched = stock_and_patched(path, weights_only=weights_only)
            if weights_only and not hasattr(torch.serialization, "_default_to_weights_only"):
                assert issubclass(patched[1], stock[1]), name  # such a release does not get the file
            else:
                assert patched == stock, name


@pytest.mark.parametrize("result", [torch.zeros(3), "cpu", 5])
def test_map_location_that_returns_no_storage_raises_as_stock(save: Saver, result: Any) -> None:
    path = save({"w": torch.ones(3)})
    for weights_only in (True, False):
        options = {"map_location": lambda storage, location: result, "weights_only": weights_only}
        stock, patched = stock_and_patched(path, **options)
        assert patched == stock
        with pytest.raises(stock[1]):
            zerocopy.load(path, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda path: zerocopy.load(path, dtype=torch.float16), TypeError, "zerocopy.lazy_load"),
        (lambda path: zerocopy.load(path, keys=["a"], weights_only=False), TypeError, "zerocopy.lazy_load"),
        (lambda path: zerocopy.load(path, device="cpu"), TypeError, "map_location"),
        (lambda path: zerocopy.load(path, mode=5), ValueError, "mode must be"),
        (lambda path: zerocopy.lazy_load(path, mode=5), ValueError, "mode must be"),
        (lambda path: zerocopy.load(path, encoding=5), TypeError, "expected encoding to be a str, got int"),
        (lambda path: zerocopy.lazy_load(path, prefix=5), TypeError, "expected prefix to be a str, got int"),
        (lambda path: zerocopy.save(path, {"a": 1}), AttributeError, "the second argument.*got dict"),
        (lambda path: zerocopy.save({}, path, progress=True), TypeError, "expected progress .* got bool"),
        (lambda path: zerocopy.prefetch(path, progress=True), TypeError, "expected progress .* got bool"),
        (
            lambda path: zerocopy.convert(path, path.with_name("x.safetensors"), progress=True),
            TypeError,
            "expected progress .* got bool",
        ),
    ],
)
def test_wrong_argument_is_named(save: Saver, call: Any, error: type[Exception], message: str) -> None:
    path = save({"a": torch.ones(3)})
    before = path.read_bytes()
    with pytest.raises(error, match=message):
        call(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_flag_of_any_type_is_taken_as_python_takes_it() -> None:
    assert zerocopy.untyped_storage(bytes(3), allow_readonly=1).nbytes() == 3  # type: ignore[arg-type]


def test_pipe_by_its_name_says_to_pass_a_file_object(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = saved_bytes({"a": 1})
    for read in (zerocopy.load, zerocopy.open, zerocopy.lazy_load, zerocopy.explain):
        with pytest.raises(OSError, match="pass that") as caught:
            read(path)  # type: ignore[operator]
        assert caught.value.filename == str(path)
    writing = threading.Thread(target=path.write_bytes, args=[content])
    writing.start()
    with path.open("rb") as file:
        assert zerocopy.load(file) == {"a": 1}
    writing.join()


def test_load_logs_mapped_and_inflated_storages(
    save: Saver, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path, packed = save({"a": torch.ones(300), "b": torch.ones(300)}), tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    other = tmp_path / "other.pt"
    other.write_bytes(b"no checkpoint")
    with caplog.at_level(logging.INFO, "zerocopy"):
        zerocopy.load(path)
        assert "mapped" in caplog.text and "inflated" not in caplog.text
        caplog.clear()
        zerocopy.load(packed)
        assert "2 of its storages inflated" in caplog.text
        caplog.clear()
        with pytest.raises(zerocopy.FormatError):
            zerocopy.load(other)
        assert not caplog.text
