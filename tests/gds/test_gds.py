"""``zerocopy.gds``: without cuFile, and over a stand-in for ``torch.cuda.gds`` that serves storages of the CPU."""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import digest, saved_bytes, stock_load
from equality import assert_same, storage_bytes, untyped

import zerocopy
from zerocopy import _torch
from zerocopy.gds import channel, cufile

# The function of that name hides the module.
availability = importlib.import_module("zerocopy.gds.available")

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


class FakeGds:
    """A ``torch.cuda.gds`` whose device is the CPU. It counts, and fails as it is told."""

    def __init__(self) -> None:
        self.fault = ""
        self.handles = self.reads = self.writes = 0
        self.buffers: list[int] = []
        outer = self

        class GdsFile:
            def __init__(self, filename: str, flags: int) -> None:
                self.handle, self.fd = object(), os.open(filename, flags)
                outer.handles += 1

            def __del__(self) -> None:
                os.close(self.fd)
                outer.handles -= 1

            def load_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
                outer.check()
                outer.reads += 1
                os.preadv(self.fd, [_torch.bytes_of(storage)], offset)

            def save_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
                outer.check()
                outer.writes += 1
                os.pwrite(self.fd, _torch.bytes_of(storage), offset)

        self.GdsFile = GdsFile

    def check(self) -> None:
        if self.fault:
            raise RuntimeError(self.fault)

    def gds_register_buffer(self, storage: torch.UntypedStorage) -> None:
        self.check()
        self.buffers.append(storage.data_ptr())

    def gds_deregister_buffer(self, storage: torch.UntypedStorage) -> None:
        if storage.data_ptr() not in self.buffers:
            raise RuntimeError("it is not registered")
        self.buffers.remove(storage.data_ptr())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGds]:
    found = FakeGds()
    monkeypatch.setattr(cufile, "_module", lambda: found)
    monkeypatch.setattr(cufile, "refusal", lambda: "")
    monkeypatch.setattr(cufile, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(channel, "LARGE", 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(availability, "_known", {})
    monkeypatch.setattr(availability, "_PROBE", "")
    yield found
    gc.collect()  # tracebacks that refer to themselves
    assert found.handles == 0


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without CUDA."""
    monkeypatch.setattr(cufile, "refusal", lambda: "the reason")


@pytest.fixture(params=["plain", "fake"])
def cu(request: pytest.FixtureRequest) -> FakeGds | None:
    found: FakeGds | None = request.getfixturevalue(request.param)
    return found


def filled(size: int) -> torch.UntypedStorage:
    """Return a storage of bytes that differ."""
    return untyped(torch.arange(size, dtype=torch.int64).remainder(251).to(torch.uint8))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_machine_without_a_gpu_is_named(tmp_path: Path) -> None:
    found = zerocopy.gds.available()
    assert (found.ok, found.mode) == (False, "posix") and "torch" in found.reason
    zerocopy.gds.save(STATE, tmp_path / "model.pt")
    for device in ("cuda", "cuda:1", 0, torch.device("cuda")):
        with pytest.raises(RuntimeError, match="is_available") as caught:
            zerocopy.gds.load(tmp_path / "model.pt", device)
        assert isinstance(caught.value, zerocopy.UnsupportedError)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", device="auto"), STATE)


def test_device_beyond_the_last_is_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", 7):
        with pytest.raises(zerocopy.UnsupportedError, match="this machine has 2 CUDA devices"):
            zerocopy.gds.load("model.pt", device)


@pytest.mark.parametrize("version", ["12.8", None])
def test_refusal_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """In the order of what is missing: the module, a device, cuFile in the build, NVIDIA's kernel module."""
    module = FakeGds()

    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr(cufile, "_module", missing)
    assert "no torch.cuda.gds" in cufile.refusal()
    monkeypatch.setattr(cufile, "_module", lambda: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch.cuda.is_available()" in cufile.refusal()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    module.is_available = lambda: False  # type: ignore[attr-defined]
    assert "built without" in cufile.refusal()
    module.is_available = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(cufile, "_KERNEL_DRIVER", Path("/proc/no such driver"))
    assert ("no such driver" in cufile.refusal()) == bool(version)


def test_available_without_cufile_is_posix_with_the_reason(plain: None, tmp_path: Path) -> None:
    for path in (tmp_path, os.fsencode(tmp_path), tmp_path / "not there yet", Path("/proc/self/status")):
        assert zerocopy.gds.available(path) == (False, "posix", "the reason")
    with pytest.raises(FileNotFoundError):
        zerocopy.gds.available(tmp_path / "no folder" / "file")


def test_mode_is_direct_only_if_cufile_reads_without_its_compatibility_mode(
    fake: FakeGds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "large").write_bytes(bytes(BLOCK))
    is_off = "import os, sys; assert os.environ['CUFILE_ALLOW_COMPAT_MODE'] == 'false'; "
    block = f"assert len(os.read(int(sys.argv[1]), 9999)) == {BLOCK} and sys.argv[2] == '0'"
    seek = "os.lseek(int(sys.argv[1]), 0, 0); "
    for probe, mode in ((is_off + seek + block, "direct"), ("raise SystemExit('5008')", "compat")):
        for path in (tmp_path, tmp_path / "file", tmp_path / "large", tmp_path / "new"):
            monkeypatch.setattr(availability, "_known", {})
            monkeypatch.setattr(availability, "_PROBE", probe)
            found = zerocopy.gds.available(path)
            assert (found.ok, found.mode) == (mode == "direct", mode), found
            assert mode == "direct" or "5008" in found.reason
        monkeypatch.setattr(availability, "_PROBE", "not asked again")
        assert zerocopy.gds.available(tmp_path).mode == mode
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "large"]
    found = zerocopy.gds.available("/proc/self/status")
    assert found.mode == "posix" and "can be opened" in found.reason


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


def test_file_moves_storages_at_any_offset(cu: FakeGds | None, tmp_path: Path) -> None:
    path, storage = tmp_path / "bytes", filled(10 * BLOCK + 5)
    with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_CREAT) as file:
        assert (file.handle is not None, bool(file.reason)) == (cu is not None, cu is None)
        for offset in (0, 100, 3 * BLOCK):
            file.save_storage(storage, offset)
            assert path.read_bytes()[offset : offset + storage.nbytes()] == storage_bytes(storage)
            for loaded in (torch.UntypedStorage(storage.nbytes()), torch.UntypedStorage(0)):
                file.load_storage(loaded, offset)
                assert storage_bytes(loaded) == storage_bytes(storage)[: loaded.nbytes()]
        if cu:
            assert cu.reads == cu.writes == 3
            file.deregister_handle()
            assert file.handle is None and file.reason
            file.load_storage(storage, 2 * BLOCK)
            assert cu.reads == 3 and storage_bytes(storage) == path.read_bytes()[2 * BLOCK : 12 * BLOCK + 5]
            file.register_handle()
            assert file.handle is not None
        else:
            with pytest.raises(zerocopy.UnsupportedError, match="reason"):
                file.register_handle()
        typed = torch.zeros(4)
        file.load_storage(typed.storage())
        assert storage_bytes(untyped(typed)) == path.read_bytes()[:16]
    with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_APPEND) as file:  # the offset says where
        before = path.read_bytes()
        file.save_storage(filled(5 * BLOCK), 7)
    assert path.read_bytes() == before[:7] + storage_bytes(filled(5 * BLOCK)) + before[7 + 5 * BLOCK :]


def test_faults_of_files_name_the_file(cu: FakeGds | None, tmp_path: Path) -> None:
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
            with pytest.raises(zerocopy.FormatError, match=r"bytes: .*file ends before byte 0x"):
                file.load_storage(torch.UntypedStorage(size), offset)
        with pytest.raises(OSError) as caught:
            file.save_storage(filled(3 * BLOCK), 0)
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path)) or cu
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


def test_pieces_through_the_host_are_all_moved(
    monkeypatch: pytest.MonkeyPatch, plain: None, tmp_path: Path
) -> None:
    """As on a device that is not the CPU, whose storages nobody can look into: here those of a stand-in."""

    class Remote:
        """A storage that says that it is elsewhere."""

        device = torch.device("meta")

        def __init__(self, storage: torch.UntypedStorage) -> None:
            self.storage, self.nbytes, self.data_ptr = storage, storage.nbytes, storage.data_ptr

    over = channel.tensor_over
    monkeypatch.setattr(channel, "tensor_over", lambda remote, *layout: over(remote.storage, *layout))
    monkeypatch.setattr(channel, "_PIECE", 1000)
    path = tmp_path / "bytes"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    try:
        way, data = channel.Channel(descriptor, "bytes", os.O_RDWR), filled(7777)
        way.write(Remote(data), 13)
        assert path.read_bytes() == bytes(13) + storage_bytes(data)
        back = torch.UntypedStorage(7777).fill_(0)
        way.read(Remote(back), 13)
        assert storage_bytes(back) == storage_bytes(data)
    finally:
        os.close(descriptor)


def test_saved_file_is_what_stock_torch_loads(cu: FakeGds | None, tmp_path: Path) -> None:
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
    assert not cu or min(cu.writes, cu.reads) > 0
    with zerocopy.skip_data():
        zerocopy.gds.save({"w": torch.ones(1 << 20)}, path)
    assert not stock_load(path)["w"].any()


def test_save_to_a_pipe_writes_into_it(cu: FakeGds | None, tmp_path: Path) -> None:
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


def test_every_format_loads(cu: FakeGds | None, tmp_path: Path) -> None:
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
    assert not cu or cu.reads > 4


def test_damaged_and_unsafe_files_are_refused(cu: FakeGds | None, tmp_path: Path) -> None:
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


def test_too_little_memory_on_the_device_names_the_bytes(
    fake: FakeGds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.safetensors"
    path.write_bytes(safetensors(0))

    def refused(*_: Any, **__: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "UntypedStorage", refused)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="20024 bytes are needed on cpu: CUDA out"):
        zerocopy.gds.load(path, "cpu")


def test_cufile_that_fails_is_done_without_unless_it_is_required(
    fake: FakeGds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.pt"
    fake.fault = "cuFileWrite failed (5008)"
    caplog.set_level("INFO", "zerocopy")
    zerocopy.gds.save(STATE, path)
    assert "without cuFile: cuFileWrite failed (5008)" in caplog.text
    assert_same(stock_load(path), STATE)
    with pytest.warns(UserWarning, match="5008"):
        assert_same(zerocopy.gds.load(path, "cpu"), STATE)
    before = digest(path)
    with pytest.raises(zerocopy.UnsupportedError, match="5008"):
        zerocopy.gds.save(STATE, path, require="compat")
    with pytest.raises(zerocopy.UnsupportedError, match="5008"):
        zerocopy.gds.load(path, "cpu", require="compat")
    assert digest(path) == before and len(list(tmp_path.iterdir())) == 1
    with zerocopy.gds.GdsFile(path) as file:
        file.load_storage(torch.UntypedStorage(5 * BLOCK))
        assert "5008" in file.reason and file.handle is None


def test_buffers_are_registered_by_torch(fake: FakeGds, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = torch.UntypedStorage(64 * BLOCK)
    zerocopy.gds.register_buffer(storage)
    assert fake.buffers == [storage.data_ptr()]
    zerocopy.gds.gds_deregister_buffer(storage)
    with pytest.raises(zerocopy.UnsupportedError, match="not registered"):
        zerocopy.gds.deregister_buffer(storage)
    fake.fault = "cuFileBufRegister failed: PINNING"
    with pytest.raises(zerocopy.UnsupportedError, match="PINNING"):
        zerocopy.gds.gds_register_buffer(storage)
    monkeypatch.setattr(cufile, "DEVICES", frozenset({"cuda"}))
    with pytest.raises(zerocopy.UnsupportedError, match="CUDA device"):
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
