"""``zerocopy.save`` on file systems that can share blocks: a copy of a mapped checkpoint takes no room of its own."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import stock_load
from equality import assert_same
from file_systems import file_system

import zerocopy

pytestmark = pytest.mark.slow("file systems of 400 MiB")

SIZE = 4 << 20
STATE = {"weight": torch.arange(float(SIZE)), "bias": torch.arange(float(SIZE)).neg(), "step": 1}


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a folder of a file system of 400 MiB in a file."""
    with file_system(tmp_path, request.param, 400 << 20) as folder:
        yield folder


def room(folder: Path) -> int:
    os.sync()
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


def test_blocks_are_shared(sharing: Path) -> None:
    source = sharing / "model.pt"
    zerocopy.save(STATE, source, alignment=4096)
    before = room(sharing)
    zerocopy.save(zerocopy.load(source), sharing / "copy.pt", alignment=4096)
    assert before - room(sharing) < 8 * SIZE / 8
    assert_same(stock_load(sharing / "copy.pt"), STATE)
    state = zerocopy.load(sharing / "copy.pt")
    state["bias"][5] = 7
    zerocopy.save(state, sharing / "copy.pt", alignment=4096)
    assert stock_load(sharing / "copy.pt")["bias"][5] == 7
    assert_same(stock_load(source), STATE)


@pytest.mark.parametrize("save", [zerocopy.save, torch.save], ids=["zerocopy", "torch"])
def test_the_same_layout_needs_no_alignment(sharing: Path, save: Any) -> None:
    """Storages of one layout are at one place within a block, in whichever file."""
    if save is torch.save and not hasattr(torch.utils, "serialization"):
        pytest.skip("this release lays files out in another way")
    source, copy = sharing / "model.pt", sharing / "copy.pt"
    save({"small": torch.ones(5), **STATE}, source)
    before = room(sharing)
    zerocopy.save(zerocopy.load(source), copy)
    assert before - room(sharing) < 8 * SIZE / 8
    assert_same(stock_load(copy), stock_load(source))
    with zipfile.ZipFile(copy) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("had_some", [True, False])
def test_checksums_come_along(sharing: Path, had_some: bool) -> None:
    """A copy does not hide damage on the disk. Data without a checksum get one."""
    source, copy = sharing / "model.pt", sharing / "copy.pt"
    zerocopy.save(STATE, source, checksum=had_some)
    with source.open("r+b") as file:
        file.seek(zerocopy.storage_offsets(source)["1"].offset + SIZE)
        file.write(b"damaged")
    zerocopy.save(zerocopy.load(source), copy)
    with zipfile.ZipFile(copy) as archive:
        assert archive.testzip() == ("archive/data/1" if had_some else None)
    zerocopy.save(zerocopy.load(source), copy, checksum=False)
    with zipfile.ZipFile(copy) as archive:
        assert archive.getinfo("archive/data/0").CRC == archive.getinfo("archive/data/1").CRC == 0
