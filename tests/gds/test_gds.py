"""``zerocopy.gds``: without cuFile, and over a fake cuFile that keeps its rules and fails where it is told to."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cufile
import pytest
import torch
from conftest import Child, digest, saved_bytes, stock_load
from equality import assert_same, storage_bytes, untyped

import zerocopy
from zerocopy.gds import driver, staging, topology
from zerocopy.gds.image import Image, Record

BLOCK = 4096
_BASE = torch.arange(300_000.0)
STATE = {
    "weight": _BASE,
    "tied": _BASE,
    "view": _BASE[5:50],
    "bias": torch.ones(3),
    "large": torch.arange(500_000, dtype=torch.int32).view(1000, 500),
    "half": torch.randn(77, 3).to(torch.bfloat16),
    "empty": torch.empty(0),
    "nested": {"step": 7, "parameter": torch.nn.Parameter(torch.ones(1025))},
}

both = pytest.mark.parametrize("cu", ["plain", "fake"], indirect=True)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> cufile.FakeCufile:
    return cufile.build(tmp_path_factory.mktemp("cufile"))


@pytest.fixture
def fake(library: cufile.FakeCufile) -> Iterator[cufile.FakeCufile]:
    with library.in_use():
        yield library


@pytest.fixture
def plain() -> Iterator[None]:
    """As on a machine without CUDA."""
    with cufile.using(zerocopy.UnsupportedError("the reason")):
        yield


@pytest.fixture
def cu(request: pytest.FixtureRequest) -> Any:
    """Return the fake cuFile, or None if the test runs without one."""
    return request.getfixturevalue(request.param)


def filled(size: int) -> torch.UntypedStorage:
    """Return a storage of bytes that differ."""
    return untyped(torch.arange(size, dtype=torch.int64).remainder(251).to(torch.uint8))


def lying_as(offset: int, size: int) -> torch.UntypedStorage:
    """Return a storage that lies as far behind a page as the offset behind a block."""
    whole = torch.UntypedStorage(size + BLOCK)
    lead = (offset - whole.data_ptr()) % BLOCK
    return whole[lead : lead + size]


# ---------------------------------------------------------------------------------------------- devices and modes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_load_on_a_machine_without_a_gpu_names_the_missing_device(tmp_path: Path) -> None:
    found = zerocopy.gds.available()
    assert (found.ok, found.mode) == (False, "posix") and found.reason
    zerocopy.gds.save(STATE, tmp_path / "model.pt")
    for device in ("cuda", "cuda:1", 0, torch.device("cuda")):
        with pytest.raises(RuntimeError, match="is_available") as caught:
            zerocopy.gds.load(tmp_path / "model.pt", device)
        assert isinstance(caught.value, zerocopy.UnsupportedError)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", device="auto"), STATE)


def test_load_to_a_device_beyond_the_last_names_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", 7):
        with pytest.raises(zerocopy.UnsupportedError, match="this machine has 2 CUDA devices"):
            zerocopy.gds.load("model.pt", device)


def test_available_without_cufile_is_posix_with_the_reason(plain: None, tmp_path: Path) -> None:
    for path in (tmp_path, os.fsencode(tmp_path), tmp_path / "not there yet", Path("/proc/self/status")):
        assert zerocopy.gds.available(path) == (False, "posix", "the reason")
    with pytest.raises(FileNotFoundError):
        zerocopy.gds.available(tmp_path / "no folder" / "file")


def test_required_mode_that_is_unavailable_raises(plain: None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for require in ("direct", "compat"):
        with pytest.raises(zerocopy.UnsupportedError, match="the reason"):
            zerocopy.gds.save(STATE, path, require=require)
        assert not list(tmp_path.iterdir())
    zerocopy.gds.save(STATE, path)
    for call in (zerocopy.gds.save, lambda _, path, require: zerocopy.gds.load(path, "cpu", require=require)):
        with pytest.raises(ValueError, match="require"):
            call(STATE, path, require="fast")
    with pytest.raises(zerocopy.UnsupportedError, match="cpu"):
        zerocopy.gds.load(path, "cpu", require="direct")


# ----------------------------------------------------------------------------------------------------------- files


@both
def test_file_moves_storages_at_any_offset(cu: Any, tmp_path: Path) -> None:
    path, storage = tmp_path / "bytes", filled(10 * BLOCK + 5)
    with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_CREAT) as file:
        assert (file.handle is not None, file.reason) == ((True, "") if cu else (False, "the reason"))
        for offset in (0, 100, 3 * BLOCK):
            file.save_storage(storage, offset)
            assert path.read_bytes()[offset : offset + storage.nbytes()] == storage_bytes(storage)
            for loaded in (torch.UntypedStorage(storage.nbytes()), torch.UntypedStorage(0)):
                file.load_storage(loaded, offset)
                assert storage_bytes(loaded) == storage_bytes(storage)[: loaded.nbytes()]
        sizes = (1, 77, BLOCK, 5 * BLOCK + 1)
        many = [(torch.UntypedStorage(size), 3 * BLOCK + size) for size in sizes]
        many += [(lying_as(BLOCK + size, size), BLOCK + size) for size in (*sizes, 6 * BLOCK)]
        file.load_storages(many)
        for loaded, offset in many:
            assert storage_bytes(loaded) == path.read_bytes()[offset : offset + loaded.nbytes()]
        loaded = lying_as(0, 6 * BLOCK)
        waiting = file.load_storage_async(loaded, BLOCK)
        for _ in range(2):
            assert storage_bytes(waiting.wait()) == path.read_bytes()[BLOCK : 7 * BLOCK]
        file.load_storage_async(loaded, 0)  # dropped while it is under way
        file.deregister_handle()
        file.load_storage(loaded, 2 * BLOCK)  # plainly
        assert storage_bytes(loaded) == path.read_bytes()[2 * BLOCK : 8 * BLOCK]
        typed = torch.zeros(4)
        file.load_storage(typed.storage())
        assert storage_bytes(untyped(typed)) == path.read_bytes()[:16]
        if cu:
            file.register_handle()
            assert min(cu.get(name) for name in ("reads", "writes", "batched", "async_reads")) > 0
        else:
            with pytest.raises(zerocopy.UnsupportedError, match="reason"):
                file.register_handle()
    with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_APPEND) as file:  # the offset says where
        before = path.read_bytes()
        file.save_storage(filled(5 * BLOCK), 7)
    assert path.read_bytes() == before[:7] + storage_bytes(filled(5 * BLOCK)) + before[7 + 5 * BLOCK :]


@both
def test_faults_of_files_name_the_file(cu: Any, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    with pytest.raises(FileNotFoundError) as missing:
        zerocopy.gds.GdsFile(path)
    assert missing.value.filename == str(path)
    path.write_bytes(bytes(5 * BLOCK))
    with zerocopy.gds.GdsFile(path, os.O_RDONLY) as file:
        for size, offset in (
            (5 * BLOCK + 1, 0),
            (BLOCK, 4 * BLOCK + 1),
            (1, 5 * BLOCK),
            (8 * BLOCK, 1 << 40),
        ):
            storage, one = torch.UntypedStorage(size), torch.UntypedStorage(1)
            for load in (
                lambda s=storage, at=offset: file.load_storage(s, at),
                lambda s=storage, at=offset, one=one: file.load_storages([(s, at), (one, 0)]),
                lambda s=storage, at=offset: file.load_storage_async(s, at).wait(),
            ):
                with pytest.raises(zerocopy.FormatError, match=r"bytes: .*file ends before byte 0x"):
                    load()
        with pytest.raises(OSError) as caught:
            file.save_storage(filled(3 * BLOCK), 0)
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))
        for wrong in (-1, 1.5, 1 << 63, "7", None):
            with pytest.raises(ValueError, match="offset"):
                file.load_storage(torch.UntypedStorage(1), wrong)
        with pytest.raises(TypeError, match="UntypedStorage"):
            file.load_storage(torch.ones(3))
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.load_storage(torch.UntypedStorage(1))
    with pytest.raises(IsADirectoryError):
        zerocopy.gds.GdsFile(tmp_path, os.O_RDWR)


@both
@pytest.mark.parametrize("refusal", [0, 5038])
def test_load_outlives_its_file(cu: Any, tmp_path: Path, refusal: int) -> None:
    """Another file may get its descriptor number."""
    path, other = tmp_path / "bytes", tmp_path / "other"
    path.write_bytes(storage_bytes(filled(9 * BLOCK)))
    other.write_bytes(bytes(9 * BLOCK))
    if cu:
        cu.set(**{"async": refusal})
    with zerocopy.gds.GdsFile(path) as file:
        waiting = [file.load_storage_async(lying_as(0, size), BLOCK) for size in (5, 6 * BLOCK)]
        waiting.append(file.load_storage_async(torch.UntypedStorage(0)))
    with other.open("rb"):
        waiting.append(zerocopy.gds.GdsFile(path).load_storage_async(lying_as(0, 7 * BLOCK), BLOCK))
        for loading in waiting:
            loaded = storage_bytes(loading.wait())
            assert loaded == path.read_bytes()[BLOCK : BLOCK + len(loaded)]
            assert storage_bytes(loading.wait()) == loaded


def test_staged_copy_moves_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies through pinned memory, with host memory in place of both."""
    monkeypatch.setattr(staging, "PIECE", 1000)
    data = storage_bytes(filled(7777))
    storage, written = torch.UntypedStorage(9000).fill_(0), bytearray(9000)

    def fill(memory: memoryview, done: int) -> None:
        memory[:] = data[done : done + memory.nbytes]

    def drain(memory: memoryview, done: int) -> None:
        written[done : done + memory.nbytes] = memory

    staging._staged_copy(storage, 100, 7777, fill, to_storage=True)
    assert storage_bytes(storage) == bytes(100) + data + bytes(9000 - 7877)
    staging._staged_copy(storage, 0, 9000, drain, to_storage=False)
    assert bytes(written) == storage_bytes(storage)
    staging._staged_copy(storage, 0, 0, fill, to_storage=True)


@pytest.mark.parametrize("fault", [RuntimeError("CUDA error: illegal access"), OSError(errno.EIO, "")])
def test_memory_that_a_broken_device_may_still_read_is_kept(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Page-locked memory cannot be given back then: torch would end the process."""
    pieces = []

    class Piece(staging._Piece):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            pieces.append(weakref.ref(self.tensor))

        def note(self) -> None:
            raise fault

    monkeypatch.setattr(staging, "_Piece", Piece)
    with pytest.raises(type(fault)):
        staging._staged_copy(torch.UntypedStorage(100), 0, 100, lambda memory, done: None, to_storage=True)
    fault.__traceback__ = None
    gc.collect()
    assert [piece() is not None for piece in pieces] == [isinstance(fault, RuntimeError)]


# ----------------------------------------------------------------------------------------------------- checkpoints


@both
def test_saved_file_is_what_stock_torch_loads(cu: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    zerocopy.gds.save({"w": torch.ones(1000)}, path)
    mapped = zerocopy.load(path)
    for _ in range(2):
        zerocopy.gds.save(STATE, path)
        assert_same(stock_load(path), STATE)
    assert mapped["w"].eq(1).all() and [file.name for file in tmp_path.iterdir()] == ["model.pt"]
    offsets = zerocopy.storage_offsets(path)
    assert len(offsets) == 6  # what is tied is there once
    assert not any(extent.offset % BLOCK for extent in offsets.values())
    for device in ("cpu", torch.device("cpu"), "auto"):
        assert_same(zerocopy.gds.load(str(path), device), STATE)
    if cu:
        assert min(cu.get("writes"), cu.get("reads")) > 0
    with zerocopy.skip_data():
        zerocopy.gds.save({"w": torch.ones(1 << 20)}, path)
    assert not stock_load(path)["w"].any()


@both
def test_save_to_a_pipe_writes_into_it(cu: Any, tmp_path: Path) -> None:
    """No new file takes its place."""
    pipe, state = tmp_path / "pipe", {"w": torch.arange(9.0)}
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    zerocopy.gds.save(state, pipe)
    read = os.read(descriptor, 1 << 16)
    os.close(descriptor)
    with pytest.raises(zerocopy.UnsupportedError):
        zerocopy.gds.save(state, pipe, require="compat")
    assert_same(zerocopy.load(read), state)
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def safetensors(padding: int) -> bytes:
    """Return a file whose tensors do not lie at multiples of their elements' size, unless the padding is 0."""
    tensors = {"a": ("F32", torch.arange(5000.0)), "b": ("I64", torch.arange(3))}
    header, data = {}, b""
    for name, (dtype, tensor) in tensors.items():
        begin, data = len(data), data + storage_bytes(untyped(tensor))
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + padding)
    return len(text).to_bytes(8, "little") + text + data


@both
def test_every_format_loads(cu: Any, tmp_path: Path) -> None:
    expected = {"a": torch.arange(5000.0), "b": torch.arange(3)}
    for padding in (0, 1, 3):
        path = tmp_path / f"{padding}.safetensors"
        path.write_bytes(safetensors(padding))
        loaded = zerocopy.gds.load(path, "cpu", require="compat" if cu else None)
        assert_same(loaded, expected)
        assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in loaded.values())
    path = tmp_path / "legacy.pt"
    path.write_bytes(saved_bytes(STATE, _use_new_zipfile_serialization=False))
    assert_same(zerocopy.gds.load(path, "cpu"), STATE)
    zerocopy.save(expected, tmp_path / "plain.pt")
    zerocopy.convert(tmp_path / "plain.pt", tmp_path / "shards", max_shard_size="10kB")
    assert_same(zerocopy.gds.load(tmp_path / "shards", "cpu"), expected)
    assert not cu or cu.get("reads") > 4


@both
def test_damaged_and_unsafe_files_are_refused(cu: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    zerocopy.gds.save(STATE, path)
    whole = path.read_bytes()
    for content in (b"nothing", whole[:100], whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(zerocopy.FormatError, match=r"model\.pt"):
            zerocopy.gds.load(path, "cpu")
    with pytest.raises(FileNotFoundError):
        zerocopy.gds.load(tmp_path / "missing.pt", "cpu")
    torch.save({"w": torch.ones(3000), "other": os.system}, path)
    with pytest.raises(pickle.UnpicklingError, match="system"):
        zerocopy.gds.load(path, "cpu")
    assert not cu or cu.get("reads") == 0  # nothing of any of them was read to a device


def test_too_little_memory_on_the_device_names_the_bytes() -> None:
    image = Image([Record(0, 1 << 60, 4)], torch.device("cpu"), "model.pt")
    with pytest.raises(RuntimeError, match=f"model.pt: {(1 << 60) + BLOCK} bytes are needed on cpu"):
        image.storage(0, zerocopy.gds.channel.Channel(-1, "model.pt"))


# --------------------------------------------------------------------------------------------- cuFile that fails


@pytest.mark.parametrize("after", [0, 1])
def test_error_in_the_middle_keeps_the_old_file(fake: cufile.FakeCufile, tmp_path: Path, after: int) -> None:
    path = tmp_path / "model.pt"
    zerocopy.gds.save({"old": 1}, path)
    fake.set(features=0, most=8 * BLOCK, fail_after=after, fail_errno=errno.EIO)
    with pytest.raises(OSError) as caught:
        zerocopy.gds.save(STATE, path)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    assert stock_load(path) == {"old": 1}
    assert len(list(tmp_path.iterdir())) == 1
    fake.set(fail_after=-1)
    zerocopy.gds.save(STATE, path)
    fake.set(fail_after=after, fail_code=5030)
    with pytest.raises(OSError, match="CU_FILE_INTERNAL_ERROR") as caught:
        zerocopy.gds.load(path, "cpu")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


@pytest.mark.parametrize("fault", [{"handle_register": 5008}, {"fail_after": 0, "fail_code": 5008}])
def test_cufile_that_refuses_is_logged_unless_it_is_required(
    fake: cufile.FakeCufile, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: dict[str, int]
) -> None:
    path = tmp_path / "model.pt"
    fake.set(**fault)
    caplog.set_level("INFO", "zerocopy")
    zerocopy.gds.save(STATE, path)
    assert "without cuFile: " in caplog.text and "CU_FILE_IO_NOT_SUPPORTED (5008)" in caplog.text
    assert_same(stock_load(path), STATE)
    assert_same(zerocopy.gds.load(path, "cpu"), STATE)
    before = digest(path)
    with pytest.raises(zerocopy.UnsupportedError, match="5008"):
        zerocopy.gds.save(STATE, path, require="compat")
    with pytest.raises(zerocopy.UnsupportedError, match="5008"):
        zerocopy.gds.load(path, "cpu", require="compat")
    assert digest(path) == before
    with zerocopy.gds.GdsFile(path) as file:
        file.load_storage(torch.UntypedStorage(5 * BLOCK))
        assert "5008" in file.reason and file.handle is None


FOUND_BY_NAME = """
import os, sys, zerocopy
from zerocopy.gds import driver
os.chdir(sys.argv[1])
driver._KERNEL_DRIVER = "/proc"  # a machine of the tests has no module of NVIDIA's
found = zerocopy.gds.available()
assert found.mode == "compat", found
if os.fork() == 0:
    ok, mode, reason = zerocopy.gds.available()
    os._exit(0 if mode == "posix" and "fork" in reason else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow("starts a Python over a fake of cuFile")
def test_libraries_are_found_by_name_where_the_kernel_module_is_loaded(
    library: cufile.FakeCufile, child: Child, tmp_path: Path
) -> None:
    for name in ("libcuda.so.1", "libcufile.so.0"):
        (tmp_path / name).symlink_to(library.path)
    done = child(FOUND_BY_NAME, tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if not Path("/proc/driver/nvidia").exists():
        done = child("import zerocopy; print(zerocopy.gds.available())", LD_LIBRARY_PATH=str(tmp_path))
        assert "posix" in done.stdout and "/proc/driver/nvidia" in done.stdout, done


def test_buffer_stays_registered_until_its_last_deregistration(
    fake: cufile.FakeCufile, tmp_path: Path
) -> None:
    storage = torch.UntypedStorage(64 * BLOCK)
    zerocopy.gds.register_buffer(storage)
    zerocopy.gds.gds_register_buffer(storage)
    assert fake.get("registrations") == 1
    (tmp_path / "bytes").write_bytes(storage_bytes(filled(64 * BLOCK)))
    with zerocopy.gds.GdsFile(tmp_path / "bytes") as file:
        for _ in range(3):
            file.load_storage(storage)
    assert storage_bytes(storage) == storage_bytes(filled(64 * BLOCK))
    zerocopy.gds.deregister_buffer(storage)
    assert fake.get("buffers") >= 1
    zerocopy.gds.gds_deregister_buffer(storage)
    with pytest.raises(ValueError, match="not registered"):
        zerocopy.gds.deregister_buffer(storage)
    fake.set(buf_register=5036)
    with pytest.raises(zerocopy.UnsupportedError, match="PINNING"):
        zerocopy.gds.register_buffer(storage)


def test_buffers_without_cufile_log_the_reason(plain: None, caplog: pytest.LogCaptureFixture) -> None:
    storage = torch.UntypedStorage(BLOCK)
    with caplog.at_level("INFO", "zerocopy"):
        zerocopy.gds.register_buffer(storage)
    assert "the reason" in caplog.text
    zerocopy.gds.deregister_buffer(storage)
    for call in (zerocopy.gds.register_buffer, zerocopy.gds.deregister_buffer):
        with pytest.raises(TypeError):
            call(b"no storage")


# --------------------------------------------------------------------------------- what is available, by evidence

NVME, SCSI = 1 << 4, 1 << 6
MODES: list[tuple[dict[str, int], str, str, str]] = [
    ({"status": NVME}, "NVMe", "direct", "nvidia-fs 2.24 serves ext4 on NVMe"),
    ({"status": SCSI}, "NVMe", "compat", "does not serve ext4 on NVMe"),
    ({"status": NVME}, "", "compat", "does not serve"),
    ({"status": NVME, "control": 0}, "", "posix", "compatibility mode is off"),
    ({"nvfs": 0, "features": 1 << 4, "status": 0}, "NVMe", "direct", "peer-to-peer DMA serves"),
    ({"nvfs": 0, "status": 1 << 11}, "NVMe", "direct", "peer-to-peer DMA serves"),
    ({"nvfs": 0, "features": 1 << 4, "status": 0}, "SCSI", "compat", "does not serve"),
    ({"nvfs": 0}, "NVMe", "compat", "nvidia-fs is not loaded"),
    ({"nvfs": 0, "control": 0}, "NVMe", "posix", "nvidia-fs is not loaded"),
    ({"handle_register": 5008}, "NVMe", "posix", "CU_FILE_IO_NOT_SUPPORTED"),
    ({"handle_register": 5031}, "NVMe", "posix", "CU_FILE_GETNEWFD_FAILED"),
]


def test_mode_is_what_driver_and_disk_allow(
    library: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for numbers, disks, mode, reason in MODES:
        where = topology.Site("ext4", disks, f"ext4 on {disks or 'something'}")
        monkeypatch.setattr(zerocopy.gds.availability, "site_of", lambda _, where=where: where)
        library.reset()
        library.set(**{"nvfs": 2, **numbers})
        with cufile.using(driver.Opened(library.open(), frozenset({"cpu"}))):
            for path in (tmp_path, tmp_path / "file", tmp_path / "new"):
                found = zerocopy.gds.available(path)
                assert (found.ok, found.mode) == (mode == "direct", mode) and reason in found.reason, numbers
            assert [file.name for file in tmp_path.iterdir()] == ["file"]
            with zerocopy.gds.GdsFile(tmp_path / "file") as file:
                assert file.availability() == zerocopy.gds.available(tmp_path / "file")
    with library.in_use():
        found = zerocopy.gds.available("/proc/self/status")
        assert (found.mode, found.reason) == ("posix", "its file system refuses O_DIRECT")


def disk(sys: Path, number: str, at: str, *, transport: str = "", slaves: tuple[str, ...] = ()) -> Path:
    """Make a block device as /sys has it."""
    folder = sys / "devices" / at
    (folder / "slaves").mkdir(parents=True)
    for slave in slaves:
        (folder / "slaves" / Path(slave).name).symlink_to(sys / "devices" / slave)
    if transport:
        (folder / "device").mkdir()
        (folder / "device" / "transport").write_text(f"{transport}\n")
    (sys / "dev" / "block").mkdir(parents=True, exist_ok=True)
    (sys / "dev" / "block" / number).symlink_to(folder)
    return folder


def test_disks_are_found_under_partitions_and_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(tmp_path, "259:0", "pci/nvme0n1", transport="pcie")
    disk(tmp_path, "259:2", "pci/nvme1n1", transport="rdma")
    disk(tmp_path, "8:0", "pci/sda")
    disk(tmp_path, "254:0", "pci/vda")
    disk(tmp_path, "9:0", "virtual/md0", slaves=("pci/nvme0n1",))
    disk(tmp_path, "9:1", "virtual/md1", slaves=("virtual/md0", "pci/sda"))
    (tmp_path / "devices/pci/nvme0n1/nvme0n1p1").mkdir()
    (tmp_path / "devices/pci/nvme0n1/nvme0n1p1/partition").write_text("1\n")
    (tmp_path / "dev/block/259:1").symlink_to(tmp_path / "devices/pci/nvme0n1/nvme0n1p1")
    loop = disk(tmp_path, "9:2", "virtual/md2")
    (loop / "slaves" / "md2").symlink_to(loop)
    monkeypatch.setattr(topology, "_SYS", tmp_path)
    nvme = {"NVMe"}
    expected = {(259, 0): nvme, (259, 1): nvme, (259, 2): {"NVMe over fabrics"}, (8, 0): {"SCSI"}}
    expected |= {(254, 0): {""}, (9, 0): nvme, (9, 1): {"NVMe", "SCSI"}, (9, 2): {""}, (7, 7): set()}
    assert {numbers: topology.disks_of(os.makedev(*numbers)) for numbers in expected} == expected


def test_site_of_this_folder_is_named(tmp_path: Path) -> None:
    site = topology.site_of(tmp_path)
    assert site.file_system and site.file_system in site.said
    assert not topology.site_of("/proc").is_served(~0)
