"""``zerocopy.memory``: mapped, resident, private, shared bytes of each mapped file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from conftest import Child, Saver

import zerocopy
from zerocopy.loading import memory_report
from zerocopy.process.control_group import ControlGroup

SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 fe:00 12      /models/a <b>.pt
Size:               4096 kB
Rss:                2048 kB
Shared_Clean:       1024 kB
Anonymous:           512 kB
VmFlags: rd wr mr mw me
7f0000400000-7f0000800000 rw-p 00400000 fe:00 12      /models/a <b>.pt
Size:               4096 kB
Rss:                   0 kB
Anonymous:             0 kB
7f0000800000-7f0000900000 r-xp 00000000 fe:00 13      /opt/python/_C.so
Size:               1024 kB
Rss:                1024 kB
Anonymous:             0 kB
7f0000900000-7f0000a00000 rw-p 00100000 fe:00 13      /opt/python/_C.so
Size:               1024 kB
Rss:                1024 kB
Anonymous:          1024 kB
7f0000a00000-7f0000b00000 r--p 00000000 fe:00 14      /usr/lib/locale/locale-archive
Size:               1024 kB
Rss:                  64 kB
Anonymous:             0 kB
7f0000b00000-7f0000c00000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                1024 kB
Anonymous:          1000 kB
7f0000c00000-7f0000d00000 rw-p 00000000 00:00 0       [heap]
Size:               1024 kB
Rss:                1024 kB
Anonymous:            24 kB
"""


def found(path: Path) -> zerocopy.FileMemory:
    [file] = [file for file in zerocopy.memory().files if file.path == str(path)]
    return file


def test_memory_report_adds_up_smaps() -> None:
    report = memory_report._report(SMAPS.splitlines())
    kib = 1024
    assert report.files == (
        zerocopy.FileMemory("/models/a <b>.pt", 8192 * kib, 2048 * kib, 512 * kib, 1536 * kib),
    )
    assert report.anonymous == 1024 * kib
    assert (report.mapped, report.resident, report.private, report.shared) == report.files[0][1:]
    assert str(report).splitlines() == [
        "    mapped    resident     private      shared  file",
        "    8.4 MB      2.1 MB    524.3 kB      1.6 MB  /models/a <b>.pt",
        "private memory of no file: 1.0 MB",
    ]
    assert "<td>/models/a &lt;b&gt;.pt</td>" in report._repr_html_()


def test_touching_and_writing(save: Saver) -> None:
    path = save({"weight": torch.ones(4 << 20), "other": torch.ones(4 << 20)})
    loaded = zerocopy.load(path)
    assert found(path).mapped >= path.stat().st_size
    assert found(path).private == 0
    loaded["weight"].sum()
    read = found(path)
    assert 16 << 20 <= read.shared <= read.resident <= read.mapped and read.private == 0
    loaded["weight"].zero_()
    written = found(path)
    assert 16 << 20 <= written.private < 18 << 20
    del loaded
    assert str(path) not in [file.path for file in zerocopy.memory().files]


def test_files_in_memory(save: Saver) -> None:
    """A file on /dev/shm is under /dev and is not a device."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        shutil.copyfile(save({"weight": torch.ones(1 << 20)}), file.name)
        loaded = zerocopy.load(file.name)
        loaded["weight"].sum()
        assert found(Path(file.name)).resident >= 4 << 20


def test_tensors_of_torch_multiprocessing_share_one_row(save: Saver) -> None:
    path = save({"weight": torch.ones(1 << 20)})
    loaded, sent = zerocopy.load(path), [torch.ones(1000).share_memory_() for _ in range(30)]
    report = zerocopy.memory()
    assert sum(file.path.startswith("/dev/shm/torch_") for file in report.files) == len(sent) and loaded
    for text in (str(report), report._repr_html_()):
        assert (
            text.count("shm/torch_") == 1
            and "/dev/shm/torch_*: 30 files of torch" in text
            and str(path) in text
        )


def test_libraries_are_no_files_of_ours(forked: Child) -> None:
    done = forked("import torch, zerocopy; print([f.path for f in zerocopy.memory().files])")
    assert done.stdout == "[]\n", done.stdout


def test_memory_repr_names_the_control_group_where_there_is_one() -> None:
    report = zerocopy.memory()
    assert repr(report) == f"<MemoryReport\n{report}>"
    group = ControlGroup("/g", 5000, 2000, None)
    assert "charged with 5.0 kB without limit, 2.0 kB of them page cache" in str(
        report._replace(control_group=group)
    )
    limited = report._replace(control_group=group._replace(limit=9000, page_cache=None))
    assert str(limited).endswith("charged with 5.0 kB of 9.0 kB")
    assert "control group" not in str(report._replace(control_group=None))
