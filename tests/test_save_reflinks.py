"""``zerocopy.save`` on file systems that can share blocks: a copy of a mapped checkpoint takes no room of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import stock_load
from equality import assert_same

import zerocopy

SIZE = 4 << 20
STATE = {"weight": torch.arange(float(SIZE)), "bias": torch.arange(float(SIZE)).neg(), "step": 1}


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a folder of a file system of 400 MiB in a file."""
    make = shutil.which(f"mkfs.{request.param}", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    if make is None or os.getuid() != 0:
        pytest.skip(f"it takes root and mkfs.{request.param}")
    subprocess.run([make, "-q", image], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


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


def test_other_alignments_are_copied(sharing: Path) -> None:
    torch.save(STATE, sharing / "model.pt")
    zerocopy.save(zerocopy.load(sharing / "model.pt"), sharing / "copy.pt")
    assert_same(stock_load(sharing / "copy.pt"), STATE)
