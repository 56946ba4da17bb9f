"""The control group's memory, from folders as the kernel makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerocopy.process.control_group import control_group


def made(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "membership"


def test_control_group_of_version_2_has_the_lowest_limit_around(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/pod/job\n")
    made(tmp_path / "pod", memory__current="900\n", memory__max="1000\n")
    made(
        tmp_path / "pod/job",
        memory__current="500\n",
        memory__max="max\n",
        memory__stat="anon 300\nfile 200\n",
    )
    found = control_group(tmp_path, membership)
    assert found == (str(tmp_path / "pod/job"), 500, 200, 1000)


def test_control_group_of_version_1_without_limit_has_none(tmp_path: Path, membership: Path) -> None:
    membership.write_text("5:cpu,cpuacct:/x\n4:memory:/x\n0::/x\n")
    made(
        tmp_path / "memory/x",
        memory__usage_in_bytes="700\n",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__stat="cache 5\ntotal_cache 50\n",
    )
    assert control_group(tmp_path, membership) == (str(tmp_path / "memory/x"), 700, 50, None)


def test_control_group_of_a_container_is_at_the_root(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/of/the/host\n")
    made(tmp_path, memory__current="5", memory__max="10")
    assert control_group(tmp_path, membership) == (str(tmp_path), 5, None, 10)


@pytest.mark.parametrize("lines", ["", "0::/\n", "no fields\n", "4:memory:/\n"])
def test_control_group_that_the_kernel_does_not_show_is_none(
    tmp_path: Path, membership: Path, lines: str
) -> None:
    membership.write_text(lines)
    assert control_group(tmp_path, membership) is None
    assert control_group(tmp_path, tmp_path / "absent") is None
