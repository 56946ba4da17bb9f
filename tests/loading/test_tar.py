"""Tar archives of before PyTorch 0.1.10: torch reads them with weights_only=False, and no safe load does."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import tar_files as tar
import torch
from equality import assert_same

import zerocopy


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where torch unpacks
    return tmp_path / "model.tar"


@pytest.mark.parametrize("patched", [False, True])
def test_trusted_tar_is_loaded_by_torch(path: Path, patched: bool) -> None:
    path.write_bytes(tar.checkpoint())
    expected = torch.load(path, weights_only=False)
    with zerocopy.patched() if patched else contextlib.nullcontext():
        assert_same(zerocopy.load(path, weights_only=False), expected)
        assert_same(torch.load(path, weights_only=False), expected)
    seen: list[str] = []
    zerocopy.load(path, lambda storage, tag: seen.append(tag), weights_only=False)
    assert seen == ["cpu"]


LINK = tar.member("storages", type=tarfile.SYMTYPE, linkname="/etc/passwd")
TARS = {"good": tar.checkpoint(), "link": tar.checkpoint(storages=LINK), "v7": tar.as_v7(tar.checkpoint())}


@pytest.mark.parametrize("content", TARS.values(), ids=TARS)
def test_no_safe_load_reads_or_unpacks_a_tar(
    content: bytes, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(content)
    opened: list[Any] = []
    monkeypatch.setattr(tarfile, "TarFile", opened.append)
    monkeypatch.setattr(tarfile, "open", lambda *args, **_: opened.append(args))
    for load in (zerocopy.load, zerocopy.lazy_load, zerocopy.open, zerocopy.explain):
        for source in (path, content, io.BytesIO(content)):
            with pytest.raises(zerocopy.UnsupportedError, match="tar archive"):
                load(source)
    if hasattr(torch.serialization, "_default_to_weights_only"):  # torch refuses for itself, but opens it
        monkeypatch.undo()
    with zerocopy.patched(), pytest.raises(RuntimeError, match="tar"):
        torch.load(path, weights_only=True)
    assert not opened and list(path.parent.iterdir()) == [path]


def test_lazy_load_refuses_a_tar_even_if_trusted(path: Path) -> None:
    path.write_bytes(tar.checkpoint())
    with pytest.raises(zerocopy.UnsupportedError, match="tar archive"):
        zerocopy.lazy_load(path, weights_only=False)
