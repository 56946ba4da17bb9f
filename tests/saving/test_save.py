"""``zerocopy.save``: what it writes is what stock torch.load reads."""

from __future__ import annotations

import io
import mmap
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import strategies
import torch
from conftest import Child, Saver, saved_bytes, stock_load
from equality import assert_same
from hypothesis import HealthCheck, given, settings

import zerocopy

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
BASE = torch.arange(2000.0)
STATE = {
    "weight": BASE,
    "view": BASE[10:20],
    "bias": torch.ones(3, dtype=torch.bfloat16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "empty": torch.empty(0),
    "step": 7,
}


def written(obj: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    zerocopy.save(obj, file, **options)
    return file.getvalue()


@pytest.mark.slow("sixty random objects")
@relaxed
@given(checkpoint=strategies.checkpoints())
def test_stock_torch_reads_a_saved_file_as_its_own(checkpoint: Any) -> None:
    content = written(checkpoint)
    assert_same(stock_load(io.BytesIO(content)), stock_load(io.BytesIO(saved_bytes(checkpoint))))
    assert_same(zerocopy.load(content), checkpoint, attributes=False)
    assert content == written(checkpoint)


@pytest.mark.parametrize(
    ("alignment", "checksum"), [(64, True), (4096, False), (1 << 15, True), (1 << 16, True), (2 << 20, False)]
)
def test_alignment_and_checksums(tmp_path: Path, alignment: int, checksum: bool) -> None:
    path = tmp_path / "model.pt"
    zerocopy.save(STATE, path, alignment=alignment, checksum=checksum)
    assert_same(stock_load(path), stock_load(io.BytesIO(saved_bytes(STATE))))
    assert_same(zerocopy.load(path), STATE)
    extents = zerocopy.storage_offsets(path)
    assert list(extents) == [str(i) for i in range(4)]
    assert all(extent.offset % alignment == 0 for extent in extents.values())
    assert path.stat().st_blocks * 512 < 512 * 1024  # what lies between is a hole
    assert written(STATE, alignment=alignment, checksum=checksum) == path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert (archive.testzip() is None) is checksum


def test_other_alignment_is_refused(tmp_path: Path) -> None:
    for alignment in (0, 1, 32, 100, -64, 4 << 20, 64.0, True, None):
        with pytest.raises(ValueError, match="a power of two from 64 to 2 MiB"):
            zerocopy.save(STATE, tmp_path / "model.pt", alignment=alignment)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("alignment", [64, 4096])
def test_torch_works_out_the_same_offsets(tmp_path: Path, forked: Child, alignment: int) -> None:
    """With this in the environment torch compares its arithmetic with the headers, where it has any."""
    path = tmp_path / "model.pt"
    zerocopy.save(STATE, path, alignment=alignment)
    code = "import sys, torch; torch.load(sys.argv[1], weights_only=False)"
    done = forked(code, path, TORCH_SERIALIZATION_DEBUG="1")
    assert done.returncode == 0, done.stderr


def test_records_are_those_of_every_release(tmp_path: Path) -> None:
    zerocopy.save(STATE, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        content = {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert list(content)[:5] == ["data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0"]
    assert content["byteorder"] == b"little" and content["version"] == b"3\n"
    assert content[".format_version"] == b"1" and content[".storage_alignment"] == b"64"
    assert len(content[".data/serialization_id"]) == 40 and content[".data/serialization_id"].isdigit()
    with zipfile.ZipFile(io.BytesIO(saved_bytes(STATE))) as stock:
        assert {Path(name).name for name in stock.namelist()} <= {Path(name).name for name in content}


def test_more_than_32_bits_can_say(tmp_path: Path, forked: Child) -> None:
    """A storage of 4 GiB, and one behind it: holes, which take no room."""
    path = tmp_path / "large.pt"
    with zerocopy.skip_data():
        # Memory that nobody touches. malloc would fill it where MALLOC_PERTURB_ is set.
        large = torch.frombuffer(mmap.mmap(-1, (1 << 32) + 8), dtype=torch.uint8)
        zerocopy.save({"large": large, "behind": torch.ones(4, dtype=torch.uint8)}, path)
        assert path.stat().st_size > 1 << 32 > path.stat().st_blocks * 512
    extents = zerocopy.storage_offsets(path)
    with path.open("r+b") as file:
        for i, extent in enumerate(extents.values()):
            file.seek(extent.offset + extent.size - 4)
            file.write(bytes([i + 1] * 4))
    loaded = zerocopy.load(path)
    assert loaded["large"][-1] == 1 and loaded["behind"][-1] == 2
    code = """
        import sys, torch
        if hasattr(torch.serialization, "skip_data"):
            loaded = torch.load(sys.argv[1], mmap=True)
            assert loaded["large"][-1] == 1 and loaded["behind"][-1] == 2
    """
    done = forked(code, path, TORCH_SERIALIZATION_DEBUG="1")
    assert done.returncode == 0, done.stderr


def test_several_dtypes_over_one_storage(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="as different types"):
        zerocopy.save([BASE, BASE.view(torch.int32)], tmp_path / "model.pt")
    assert not any(tmp_path.iterdir())


def test_progress(tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    zerocopy.save(STATE, tmp_path / "model.pt", progress=lambda *numbers: said.append(numbers))
    assert said == sorted(said) and said[-1] == (8000 + 6 + 8, 8000 + 6 + 8)


# ----------------------------------------------------------------------------- where to


def test_file_objects(tmp_path: Path) -> None:
    class Few:
        """Takes a few bytes at once, and cannot seek."""

        def __init__(self) -> None:
            self.content = b""

        def write(self, data: Any) -> int:
            self.content += bytes(data[:100])
            return min(len(data), 100)

    few = Few()
    zerocopy.save(STATE, few, alignment=4096)
    assert few.content == written(STATE, alignment=4096)
    with (tmp_path / "behind").open("w+b") as file:
        file.write(b"something")
        zerocopy.save(STATE, file)
        assert file.tell() == 9 + len(written(STATE))
        file.seek(9)
        assert_same(zerocopy.load(file), STATE)
    with pytest.raises(AttributeError, match="'write'"):
        zerocopy.save(STATE, 5)


@pytest.mark.parametrize(
    "write",
    [
        "zerocopy.save({'w': torch.arange(4.0)}, '/dev/stdout')",
        "with zerocopy.Writer('/dev/stdout') as w: w.save({'w': w.store_early(torch.arange(4.0))})",
    ],
)
def test_a_pipe(forked: Child, write: str) -> None:
    code = """
        import os, sys, torch, zerocopy
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(writing)
        exec(sys.argv[1])
        os.close(1)
        os.write(2, b"small" if len(os.read(reading, 1 << 16)) < 1000 else b"")
        os.dup2(2, 1)
    """
    done = forked(code, write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.pt"
    link.symlink_to(tmp_path / "there" / "model.pt")
    zerocopy.save(STATE, link)
    zerocopy.save(STATE, str(link))
    assert link.is_symlink() and list((tmp_path / "there").iterdir()) == [tmp_path / "there" / "model.pt"]
    assert_same(zerocopy.load(link), STATE)


def test_mode_bits(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    before = os.umask(0o027)
    try:
        zerocopy.save(STATE, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    zerocopy.save(STATE, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


# ----------------------------------------------------------------------------- placeholders


def test_placeholders_are_saved_as_tensors(save: Saver, tmp_path: Path) -> None:
    path, target = save(STATE), tmp_path / "again.pt"
    zerocopy.save(zerocopy.lazy_load(path), target)
    assert_same(stock_load(target), STATE)
    zerocopy.save(dict(zerocopy.open(path)), target)
    assert_same(stock_load(target), {name: value for name, value in STATE.items() if name != "step"})


def test_converted_placeholders(save: Saver, tmp_path: Path) -> None:
    path, target = save(STATE), tmp_path / "again.pt"
    lazy = zerocopy.lazy_load(path, dtype=torch.float16)
    lazy["same"] = lazy["weight"]
    zerocopy.save(lazy, target)
    loaded = stock_load(target)
    assert loaded["same"] is loaded["weight"] and type(loaded["parameter"]) is torch.nn.Parameter
    assert torch.equal(loaded["weight"], BASE.half()) and torch.equal(loaded["view"], BASE[10:20].half())
    assert loaded["step"] == 7 and not lazy["weight"].is_loaded


@pytest.mark.slow("it writes a gigabyte")
@pytest.mark.plain_memory("it limits the address space")
@pytest.mark.parametrize("wait", [True, False])
def test_mapped_and_lazy_tensors_take_little_memory(
    save: Saver, tmp_path: Path, forked: Child, wait: bool
) -> None:
    path = save({f"layer{i}": torch.full((16 << 20,), float(i)) for i in range(8)})
    code = """
        import resource, sys, threading, torch, zerocopy
        def memory(name):
            return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])
        path, target, wait = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
        state, before, most, is_over = zerocopy.load(path), memory("RssAnon"), 0, threading.Event()
        def watch():
            global most
            while not is_over.wait(0.002):
                most = max(most, memory("RssAnon") - before)
        watching = threading.Thread(target=watch)
        watching.start()
        saving = zerocopy.save(state, target, wait=wait)
        if saving:
            saving.wait()
        is_over.set()
        watching.join()
        print(most >> 10)
        del state, saving
        if wait:
            resource.setrlimit(resource.RLIMIT_AS, ((memory("VmSize") << 10) + (256 << 20), -1))
            zerocopy.save(zerocopy.lazy_load(path), target)
            layers = zerocopy.overlay(zerocopy.open(path), {"layer0": torch.zeros(3)})
            zerocopy.save(dict(layers), target)
    """
    done = forked(code, path, tmp_path / "again.pt", wait)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16  # megabytes, of 512
    state = zerocopy.load(tmp_path / "again.pt")
    assert [tensor[-1] for tensor in state.values()] == [*range(8)]


@pytest.mark.slow("it writes 240 MB")
@pytest.mark.plain_memory("it measures memory")
def test_converted_placeholders_one_at_a_time(save: Saver, tmp_path: Path, forked: Child) -> None:
    # Larger than what malloc keeps when it is freed.
    path = save({f"layer{i}": torch.full((5 << 20,), float(i)) for i in range(6)})
    code = """
        import sys, torch, zerocopy
        lazy = zerocopy.lazy_load(sys.argv[1], dtype=torch.float64)
        zerocopy.save(lazy["layer0"], sys.argv[2])
        def private():
            status = open("/proc/self/status").read()
            return int(status.split("RssAnon:")[1].split()[0])
        before = most = private()
        def progress(*_):
            global most
            most = max(most, private())
        zerocopy.save(lazy, sys.argv[2], progress=progress)
        print((most - before) >> 10)
    """
    done = forked(code, path, tmp_path / "again.pt")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60  # megabytes, of 240
