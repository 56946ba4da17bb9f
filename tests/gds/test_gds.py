"""``zerocopy.gds``: without cuFile, and over a fake cuFile that keeps its rules and fails where it is told to."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import pickle
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cufile
import pytest
import torch
from conftest import Child, digest, saved_bytes, stock_load
from equality import assert_same, storage_bytes, untyped
from simulated_device import fresh_simulated_device

import zerocopy
from zerocopy import _core
from zerocopy.gds import driver, staging, topology
from zerocopy.gds.image import Image, Record
from zerocopy.loading.device import devices

BLOCK = 4096
_BASE = torch.arange(200_000.0)
STATE = {
    "weight": _BASE,
    "tied": _BASE,
    "view": _BASE[5:50],
    "bias": torch.ones(3),
    "large": torch.arange(5_000_000, dtype=torch.int32).view(1000, 5000),
    "half": torch.randn(77, 3).to(torch.bfloat16),
    "empty": torch.empty(0),
    "nested": {"step": 7, "parameter": torch.nn.Parameter(torch.ones(1025))},
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> cufile.FakeCufile:
    return cufile.build(tmp_path_factory.mktemp("cufile"))


@pytest.fixture
def fake(library: cufile.FakeCufile) -> Iterator[cufile.FakeCufile]:
    with library.in_use():
        yield library


@pytest.fixture
def refused() -> Iterator[None]:
    """As on a machine without CUDA."""
    with cufile.using(zerocopy.UnsupportedError("the reason")):
        yield


def filled(size: int) -> torch.UntypedStorage:
    """Return a storage of bytes that differ."""
    return untyped(torch.arange(size, dtype=torch.int64).remainder(251).to(torch.uint8))


def lying_as(offset: int, size: int) -> torch.UntypedStorage:
    """Return a storage that lies as far behind a page as the offset behind a block."""
    whole = torch.UntypedStorage(size + BLOCK)
    lead = (offset - whole.data_ptr()) % BLOCK
    return whole[lead : lead + size]


# --------------------------------------------------------------------------------------------- without cuFile


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    found = zerocopy.gds.available()
    assert (found.ok, found.mode) == (False, "posix") and found.reason
    zerocopy.gds.save(STATE, tmp_path / "model.pt")
    for device in ("cuda", "cuda:1", 0, torch.device("cuda")):
        with pytest.raises(RuntimeError, match="is_available") as caught:
            zerocopy.gds.load(tmp_path / "model.pt", device)
        assert isinstance(caught.value, zerocopy.UnsupportedError)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", device="auto"), STATE)


def test_paths_of_bytes(refused: None, tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path / "model.pt")

    zerocopy.gds.save(STATE, Named())
    assert_same(zerocopy.gds.load(Named(), "auto"), STATE)
    assert zerocopy.gds.available(Named()).mode == "posix"
    with zerocopy.gds.GdsFile(Named()) as file:
        file.load_storage(torch.UntypedStorage(5))


def test_devices_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", 7):
        with pytest.raises(zerocopy.UnsupportedError, match="this machine has 2 CUDA devices"):
            zerocopy.gds.load(tmp_path / "model.pt", device)


def test_available_without_cufile_is_posix(refused: None, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "not there yet", Path("/proc/self/status")):
        assert zerocopy.gds.available(path) == (False, "posix", "the reason")
    with pytest.raises(FileNotFoundError):
        zerocopy.gds.available(tmp_path / "no folder" / "file")


def test_unavailable_required_mode_raises(refused: None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for require in ("direct", "compat"):
        with pytest.raises(zerocopy.UnsupportedError, match="the reason"):
            zerocopy.gds.save(STATE, path, require=require)
        assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="require"):
        zerocopy.gds.save(STATE, path, require="fast")
    zerocopy.gds.save(STATE, path)
    with pytest.raises(ValueError, match="require"):
        zerocopy.gds.load(path, "cpu", require="fast")
    with pytest.raises(zerocopy.UnsupportedError, match="cpu"):
        zerocopy.gds.load(path, "cpu", require="direct")


@pytest.mark.parametrize("with_fake", [False, True])
def test_files(library: cufile.FakeCufile, tmp_path: Path, with_fake: bool) -> None:
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
        path, storage = tmp_path / "bytes", filled(10 * BLOCK + 5)
        with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_CREAT) as file:
            assert (file.handle is not None) == with_fake
            assert file.reason == ("" if with_fake else "the reason")
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
            assert (
                storage_bytes(waiting.wait())
                == path.read_bytes()[BLOCK : 7 * BLOCK]
                == storage_bytes(waiting.wait())
            )
            file.load_storage_async(loaded, 0)  # dropped while it is under way
            file.deregister_handle()
            file.load_storage(loaded, 2 * BLOCK)  # plainly
            assert storage_bytes(loaded) == path.read_bytes()[2 * BLOCK : 8 * BLOCK]
            with (
                contextlib.nullcontext()
                if with_fake
                else pytest.raises(zerocopy.UnsupportedError, match="reason")
            ):
                file.register_handle()
        if with_fake:
            assert min(library.get(name) for name in ("reads", "writes", "batched", "async_reads")) > 0


@pytest.mark.parametrize("waits", [True, False])
def test_transfers_under_way_are_awaited_on_their_device(
    fake: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Whichever device is the thread's own: the default stream is that of the current device."""
    events: list[str] = []

    @contextlib.contextmanager
    def ready(device: torch.device) -> Iterator[None]:
        events.append(f"on {device}: {fake.get('later')} under way")
        yield
        events.append(f"{fake.get('later')} under way")

    path = tmp_path / "bytes"
    path.write_bytes(bytes(8 * BLOCK))
    with zerocopy.gds.GdsFile(path) as file:
        loading = file.load_storage_async(lying_as(0, 6 * BLOCK), BLOCK)
        monkeypatch.setattr(driver, "ready", ready)
        if waits:
            loading.wait()
        del loading
    assert events == ["on cpu: 1 under way", "0 under way"]


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="a release without default devices")
def test_host_memory_ignores_the_default_device() -> None:
    with torch.device("meta"):
        assert staging._Piece(100, torch.device("cpu")).tensor.device.type == "cpu"


@pytest.mark.parametrize("with_fake", [False, True])
def test_faults_of_files(library: cufile.FakeCufile, tmp_path: Path, with_fake: bool) -> None:
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
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
                with pytest.raises(zerocopy.FormatError, match="file ends before byte 0x"):
                    file.load_storage(torch.UntypedStorage(size), offset)
                with pytest.raises(zerocopy.FormatError, match="file ends before byte 0x"):
                    file.load_storages([(torch.UntypedStorage(size), offset), (torch.UntypedStorage(1), 0)])
                with pytest.raises(zerocopy.FormatError, match="file ends before byte 0x"):
                    file.load_storage_async(torch.UntypedStorage(size), offset).wait()
            with pytest.raises(OSError) as caught:
                file.save_storage(filled(3 * BLOCK), 0)
            assert caught.value.errno == errno.EBADF and caught.value.filename == str(path)
            with pytest.raises(zerocopy.FormatError) as ended:
                file.load_storage(torch.UntypedStorage(9 * BLOCK))
            assert str(ended.value).startswith(f"{path}: ")
            for wrong in (-1, 1.5, 1 << 63):
                with pytest.raises(ValueError, match="offset"):
                    file.load_storage(torch.UntypedStorage(1), wrong)
            with pytest.raises(TypeError, match="UntypedStorage"):
                file.load_storage(torch.ones(3))
        file.close()
        with pytest.raises(ValueError, match="closed"):
            file.load_storage(torch.UntypedStorage(1))
        with pytest.raises(IsADirectoryError):
            zerocopy.gds.GdsFile(tmp_path, os.O_RDWR)


@pytest.mark.parametrize("with_fake", [False, True])
@pytest.mark.parametrize("refusal", [0, 5038])
def test_a_load_outlives_its_file(
    library: cufile.FakeCufile, tmp_path: Path, with_fake: bool, refusal: int
) -> None:
    """Another file may get its descriptor number."""
    path, other = tmp_path / "bytes", tmp_path / "other"
    path.write_bytes(storage_bytes(filled(9 * BLOCK)))
    other.write_bytes(bytes(9 * BLOCK))
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
        library.set(**{"async": refusal})
        with zerocopy.gds.GdsFile(path) as file:
            waiting = [file.load_storage_async(lying_as(0, size), BLOCK) for size in (5, 6 * BLOCK)]
            waiting.append(file.load_storage_async(torch.UntypedStorage(0)))
        with other.open("rb"):
            waiting.append(zerocopy.gds.GdsFile(path).load_storage_async(lying_as(0, 7 * BLOCK), BLOCK))
            for loading in waiting:
                loaded = storage_bytes(loading.wait())
                assert loaded == path.read_bytes()[BLOCK : BLOCK + len(loaded)]
                assert storage_bytes(loading.wait()) == loaded
        del waiting, loading


@pytest.mark.parametrize("with_fake", [False, True])
def test_the_offset_says_where_also_in_a_file_to_append_to(
    library: cufile.FakeCufile, tmp_path: Path, with_fake: bool
) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(9 * BLOCK))
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
        with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_APPEND) as file:
            file.save_storage(filled(5 * BLOCK), 7)
        assert path.read_bytes() == bytes(7) + storage_bytes(filled(5 * BLOCK)) + bytes(4 * BLOCK - 7)


def test_offsets_are_any_whole_numbers(refused: None, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(storage_bytes(filled(100)))
    numpy = pytest.importorskip("numpy")
    with zerocopy.gds.GdsFile(tmp_path / "bytes") as file:
        for offset in (numpy.int64(7), numpy.uint16(7)):
            storage = torch.UntypedStorage(5)
            file.load_storage(storage, offset)
            assert storage_bytes(storage) == bytes(range(7, 12))
        for wrong in (numpy.float64(7), "7", None):
            with pytest.raises(ValueError, match="offset"):
                file.load_storage(storage, wrong)


def test_typed_storages(refused: None, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(storage_bytes(filled(16)))
    tensor = torch.zeros(4)
    with zerocopy.gds.GdsFile(tmp_path / "bytes") as file:
        file.load_storage(tensor.storage())
    assert storage_bytes(untyped(tensor)) == storage_bytes(filled(16))


def test_pieces_that_are_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    "fault", [RuntimeError("CUDA error: an illegal memory access"), OSError(errno.EIO, "")]
)
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


# ------------------------------------------------------------------------------------- checkpoints, both ways


@pytest.mark.parametrize("with_fake", [False, True])
def test_saved(library: cufile.FakeCufile, tmp_path: Path, with_fake: bool) -> None:
    path = tmp_path / "model.pt"
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
        zerocopy.gds.save(STATE, path)
        assert_same(stock_load(path), STATE)
        assert_same(zerocopy.load(path), STATE)
        offsets = zerocopy.storage_offsets(path)
        assert len(offsets) == 6  # what is tied is there once
        assert not any(extent.offset % BLOCK for extent in offsets.values())
        if with_fake:
            assert library.get("writes") > 0
        loaded = zerocopy.gds.load(path, device="cpu")
        assert_same(loaded, STATE)
        if with_fake:
            assert library.get("reads") > 0
            assert untyped(loaded["bias"]).nbytes() == 12  # its own, not that of the whole
        for device in ("cpu", torch.device("cpu"), "auto"):
            assert_same(zerocopy.gds.load(str(path), device), STATE)


def test_saved_again(fake: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are found once; the files are the same; what is mapped stays."""
    asked = []
    found = _core.zip_records
    monkeypatch.setattr(_core, "zip_records", lambda *args: asked.append(args) or found(*args))
    path, state = tmp_path / "model.pt", {"w": torch.arange(500_000.0), "step": 1000}
    zerocopy.gds.save(state, path)
    first, mapped = digest(path), zerocopy.load(path)
    zerocopy.gds.save(state, path)
    assert digest(path) == first
    state = {"w": torch.arange(500_000.0) + 1, "step": 2000}
    zerocopy.gds.save(state, path)
    assert len(asked) == 1
    assert_same(stock_load(path), state)
    assert mapped["w"][1] == 1
    zerocopy.gds.save({"other": torch.ones(1 << 20)}, path)
    assert len(asked) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("with_fake", [False, True])
def test_a_pipe(library: cufile.FakeCufile, tmp_path: Path, with_fake: bool) -> None:
    """No new file takes its place."""
    pipe, state = tmp_path / "pipe", {"w": torch.arange(9.0)}
    os.mkfifo(pipe)
    with library.in_use() if with_fake else cufile.using(zerocopy.UnsupportedError("the reason")):
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        zerocopy.gds.save(state, pipe)
        read = os.read(descriptor, 1 << 16)
        os.close(descriptor)
        with pytest.raises(zerocopy.UnsupportedError):
            zerocopy.gds.save(state, pipe, require="compat")
    assert_same(zerocopy.load(read), state)
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_room_is_left(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    with zerocopy.skip_data():
        zerocopy.gds.save({"w": torch.ones(1 << 20)}, tmp_path / "model.pt")
    assert not stock_load(tmp_path / "model.pt")["w"].any()
    assert fake.get("writes") == 0


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


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_safetensors(fake: cufile.FakeCufile, tmp_path: Path, padding: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(padding))
    loaded = zerocopy.gds.load(path, "cpu", require="compat")
    assert_same(loaded, {"a": torch.arange(5000.0), "b": torch.arange(3)})
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in loaded.values())
    assert fake.get("reads") > 0


def test_legacy_and_shards(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    path = tmp_path / "legacy.pt"
    path.write_bytes(saved_bytes(STATE, _use_new_zipfile_serialization=False))
    assert_same(zerocopy.gds.load(path, "cpu"), STATE)
    plain = {name: STATE[name].clone() for name in ("weight", "large", "half")}
    zerocopy.save(plain, tmp_path / "plain.pt")
    zerocopy.convert(tmp_path / "plain.pt", tmp_path / "shards", max_shard_size="1MB")
    before = fake.get("reads")
    assert_same(
        dict(sorted(zerocopy.gds.load(tmp_path / "shards", "cpu").items())), dict(sorted(plain.items()))
    )
    assert fake.get("reads") > before


def test_small_tensors_come_together(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    state = {f"layer.{i}": torch.full((10,), float(i)) for i in range(500)}
    torch.save(state, tmp_path / "model.pt")
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", "cpu"), state)
    assert fake.get("reads") + fake.get("batched") <= 3


def test_converted_storages_load_by_way_of_the_cpu(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    path, state = tmp_path / "deflated.pt", {"weight": _BASE, "bias": torch.ones(3)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        torch.save(state, tmp_path / "stored.pt")
        with zipfile.ZipFile(tmp_path / "stored.pt") as stored:
            for name in stored.namelist():
                archive.writestr(name, stored.read(name))
    assert_same(zerocopy.gds.load(path, "cpu"), state)
    with pytest.raises(zerocopy.UnsupportedError, match="its storages must be converted"):
        zerocopy.gds.load(path, "cpu", require="compat")
    assert fake.get("reads") == 0


def test_damaged_and_unsafe_files(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    zerocopy.gds.save(STATE, path)
    whole = path.read_bytes()
    for end in (100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(zerocopy.FormatError, match=r"model\.pt"):
            zerocopy.gds.load(path, "cpu")
    path.write_bytes(b"nothing")
    with pytest.raises(zerocopy.FormatError):
        zerocopy.gds.load(path, "cpu")
    with pytest.raises(FileNotFoundError):
        zerocopy.gds.load(tmp_path / "missing.pt", "cpu")
    torch.save({"w": torch.ones(3000), "other": os.system}, path)
    with pytest.raises(pickle.UnpicklingError, match="system"):
        zerocopy.gds.load(path, "cpu")
    assert fake.get("reads") == 0  # nothing of any of them was read to a device


def test_a_file_that_is_cut_meanwhile(
    fake: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    zerocopy.gds.save(STATE, path)
    read = Image._read

    def cut(*args: Any) -> Any:
        os.truncate(path, path.stat().st_size // 2)
        return read(*args)

    monkeypatch.setattr(Image, "_read", cut)
    with pytest.raises(zerocopy.FormatError, match="file ends before byte"):
        zerocopy.gds.load(path, "cpu")


def test_records_that_lie_far_from_each_other(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    """Each run of neighbours lies as in the file, and what is between them is neither read nor allocated."""
    places = [(5_000_001, 100_000), (3, 10), (0, 2), (5_200_000, 7), (90_000_123, 50_000), (77, 0)]
    path = tmp_path / "bytes"
    with path.open("wb") as file:
        file.truncate(100_000_000)
        for offset, size in places:
            file.seek(offset)
            file.write(storage_bytes(filled(size)))
    image = Image([Record(offset, size, 1) for offset, size in places], torch.device("cpu"), "bytes")
    assert image.size < 200_000
    with (
        path.open("rb") as file,
        zerocopy.gds.channel.Channel(file.fileno(), "bytes", strict=True) as channel,
    ):
        for number, (_, size) in enumerate(places):
            assert storage_bytes(image.storage(number, channel)) == storage_bytes(filled(size))
    assert 0 < fake.get("bytes_read") < 200_000


def test_no_room_on_the_device(tmp_path: Path) -> None:
    image = Image([Record(0, 1 << 60, 4)], torch.device("cpu"), "model.pt")
    with pytest.raises(RuntimeError, match=f"model.pt: {(1 << 60) + BLOCK} bytes are needed on cpu"):
        image.storage(0, zerocopy.gds.channel.Channel(-1, "model.pt"))


# ------------------------------------------------------------------------------------------ cuFile that fails


def test_short_reads_and_writes(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for most in (3 * BLOCK, 5000):
        fake.set(most=most)
        zerocopy.gds.save(STATE, path)
        assert_same(stock_load(path), STATE)
        assert_same(zerocopy.gds.load(path, "cpu"), STATE)


@pytest.mark.parametrize("after", [0, 1])
def test_errors_in_the_middle(fake: cufile.FakeCufile, tmp_path: Path, after: int) -> None:
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


@pytest.mark.parametrize("done", [-5, -1, -5030, 5, 3 * BLOCK])
def test_a_read_in_a_stream_that_comes_to_little(fake: cufile.FakeCufile, tmp_path: Path, done: int) -> None:
    """In its compatibility mode some cuFile has -EIO for every one, and reads all the same where it is asked to."""
    path = tmp_path / "bytes"
    path.write_bytes(storage_bytes(filled(9 * BLOCK)))
    fake.set(async_done=done)
    with zerocopy.gds.GdsFile(path) as file:
        storage = lying_as(7, 8 * BLOCK)
        if done > 0:  # so much is there
            storage.copy_(filled(9 * BLOCK)[7 : 7 + 8 * BLOCK])
        assert (
            storage_bytes(file.load_storage_async(storage, 7).wait()) == path.read_bytes()[7 : 7 + 8 * BLOCK]
        )
        fake.set(fail_after=0)
        if done < 0:
            with pytest.raises(OSError) as caught:
                file.load_storage_async(storage, 7).wait()
            assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


@pytest.mark.parametrize("fault", [{"handle_register": 5008}, {"fail_after": 0, "fail_code": 5008}])
def test_cufile_that_refuses(
    fake: cufile.FakeCufile, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: dict[str, int]
) -> None:
    """All goes on without it, and says so; unless it is required."""
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


def test_memory_that_cufile_refuses_uses_the_staged_copy(
    fake: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zerocopy.gds.save(STATE, tmp_path / "model.pt")
    device = fresh_simulated_device()
    monkeypatch.setitem(devices.KINDS, "cpu", device)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", "cpu"), STATE)
    assert not device.allocations
    fake.set(handle_register=5008)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", "cpu"), STATE)
    assert len(device.allocations) == 1 and device.copies


def test_a_driver_that_does_not_open(library: cufile.FakeCufile) -> None:
    library.reset()
    library.set(driver_open=5033)
    with pytest.raises(zerocopy.UnsupportedError, match="CU_FILE_NVFS_SETUP_ERROR"):
        library.open()
    library.set(driver_open=0, devices=0)
    with pytest.raises(zerocopy.UnsupportedError, match="no device"):
        library.open()


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


def test_libraries_are_found_by_name(library: cufile.FakeCufile, child: Child, tmp_path: Path) -> None:
    """By the dynamic linker, and not asked again in a process that is forked."""
    for name in ("libcuda.so.1", "libcufile.so.0"):
        (tmp_path / name).symlink_to(library.path)
    done = child(FOUND_BY_NAME, tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="NVIDIA's kernel module is loaded")
def test_libraries_without_the_kernel_module_are_not_opened(
    library: cufile.FakeCufile, child: Child, tmp_path: Path
) -> None:
    for name in ("libcuda.so.1", "libcufile.so.0"):
        (tmp_path / name).symlink_to(library.path)
    done = child("import zerocopy; print(zerocopy.gds.available())", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0 and "posix" in done.stdout and "/proc/driver/nvidia" in done.stdout, done


def test_buffers(fake: cufile.FakeCufile, tmp_path: Path) -> None:
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


def test_buffer_registered_by_another_library_is_used(fake: cufile.FakeCufile, tmp_path: Path) -> None:
    """With torch's own functions, say: it is theirs to deregister, and no reason to refuse a load."""
    zerocopy.gds.save(STATE, tmp_path / "model.pt")
    fake.set(buf_register=5023)
    assert_same(zerocopy.gds.load(tmp_path / "model.pt", "cpu"), STATE)
    storage = torch.UntypedStorage(64 * BLOCK)
    for _ in range(2):
        zerocopy.gds.register_buffer(storage)
    with zerocopy.gds.GdsFile(tmp_path / "model.pt") as file:
        file.load_storage(storage)
    assert storage_bytes(storage) == (tmp_path / "model.pt").read_bytes()[: 64 * BLOCK]
    for _ in range(2):
        zerocopy.gds.deregister_buffer(storage)
    with pytest.raises(ValueError, match="not registered"):
        zerocopy.gds.deregister_buffer(storage)


def test_cufile_is_not_called_in_a_forked_process(library: cufile.FakeCufile, tmp_path: Path) -> None:
    """The parent closes its files. The child does not use cuFile, which may do anything after a fork."""
    library.reset()
    (tmp_path / "bytes").write_bytes(bytes(9 * BLOCK))
    names, storage = ("files", "drivers", "buffers", "later"), lying_as(0, 8 * BLOCK)
    with cufile.using(driver.Opened(library.open(), frozenset({"cpu"}))):
        zerocopy.gds.register_buffer(storage)
        file = zerocopy.gds.GdsFile(tmp_path / "bytes")
        loading = file.load_storage_async(storage, 0)
        expected = [library.get(name) for name in names]
        pid = os.fork()
        if pid == 0:
            try:
                driver._opened = None
                del loading
                file.close()
                gc.collect()
                os._exit(0 if [library.get(name) for name in names] == expected else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert all(expected)
        loading.wait()
        zerocopy.gds.deregister_buffer(storage)
        file.close()


def test_buffers_without_cufile(refused: None, caplog: pytest.LogCaptureFixture) -> None:
    storage = torch.UntypedStorage(BLOCK)
    with caplog.at_level("INFO", "zerocopy"):
        zerocopy.gds.register_buffer(storage)
    assert "the reason" in caplog.text
    zerocopy.gds.deregister_buffer(storage)
    for call in (zerocopy.gds.register_buffer, zerocopy.gds.deregister_buffer):
        with pytest.raises(TypeError):
            call(b"no storage")


# -------------------------------------------------------------------------------------- what is available, by evidence

NVME, SCSI = 1 << 4, 1 << 6


@pytest.mark.parametrize(
    ("numbers", "site", "mode", "reason"),
    [
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
    ],
)
def test_modes(
    library: cufile.FakeCufile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: dict[str, int],
    site: str,
    mode: str,
    reason: str,
) -> None:
    where = topology.Site("ext4", site, f"ext4 on {site or 'something'}")
    monkeypatch.setattr(zerocopy.gds.availability, "site_of", lambda _: where)
    library.reset()
    library.set(**{"nvfs": 2, **numbers})
    (tmp_path / "file").write_bytes(b"")
    with cufile.using(driver.Opened(library.open(), frozenset({"cpu"}))):
        for path in (tmp_path, tmp_path / "file", tmp_path / "new"):
            found = zerocopy.gds.available(path)
            assert (found.ok, found.mode) == (mode == "direct", mode)
            assert reason in found.reason
        assert [file.name for file in tmp_path.iterdir()] == ["file"]
        with zerocopy.gds.GdsFile(tmp_path / "file") as file:
            assert file.availability() == zerocopy.gds.available(tmp_path / "file")


def test_a_file_system_without_files_without_names(
    fake: cufile.FakeCufile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS and Lustre are, which GPUDirect Storage serves."""
    there = os.open

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return there(path, flags, *more, **named)

    expected = zerocopy.gds.available(tmp_path)
    assert expected.mode != "posix"
    monkeypatch.setattr(os, "open", opened)
    assert zerocopy.gds.available(tmp_path) == expected
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_direct_access(fake: cufile.FakeCufile) -> None:
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


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    expected = {
        (259, 0): {"NVMe"},
        (259, 1): {"NVMe"},
        (259, 2): {"NVMe over fabrics"},
        (8, 0): {"SCSI"},
        (254, 0): {""},
        (9, 0): {"NVMe"},
        (9, 1): {"NVMe", "SCSI"},
        (9, 2): {""},
        (7, 7): set(),
    }
    assert {numbers: topology.disks_of(os.makedev(*numbers)) for numbers in expected} == expected


def test_where_this_folder_lies(tmp_path: Path) -> None:
    site = topology.site_of(tmp_path)
    assert site.file_system and site.file_system in site.said
    assert not topology.site_of("/proc").is_served(~0)
