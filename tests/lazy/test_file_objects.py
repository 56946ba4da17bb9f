"""File objects: read by position, in pieces of at least 64 KiB, only where something is asked."""

from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import saved_bytes

import zerocopy

PIECE, NUMEL = 1 << 16, 1 << 17
STATE = {
    f"layers.{i}.{part}": torch.full((n,), float(i))
    for i in range(40)
    for part, n in (("w", NUMEL), ("b", 99))
}


class Remote:
    """A seekable file object that counts, and that two threads may not use at once."""

    name = "remote"
    closed = False

    def __init__(self, content: bytes, begin: int = 0, most: int = 1 << 40) -> None:
        self.content, self.at, self.most = bytes(begin) + content, begin, most
        self.sizes: list[int] = []
        self._busy = threading.Lock()

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = (0, self.at, len(self.content))[whence] + offset
        return self.at

    def read(self, size: int = -1) -> bytes:
        assert self._busy.acquire(blocking=False), "two threads"
        end = len(self.content) if size < 0 else self.at + min(size, self.most)
        found = self.content[self.at : end]
        threading.Event().wait(0)  # lets another thread run
        self.at += len(found)
        self.sizes.append(len(found))
        self._busy.release()
        return found

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)


def as_h5(**options: Any) -> bytes:
    h5py = pytest.importorskip("h5py")
    with h5py.File(file := io.BytesIO(), "w") as target:
        for name, tensor in STATE.items():
            target.create_dataset(name, data=tensor.numpy(), **options)
    return file.getvalue()


def as_safetensors(folder: Path) -> bytes:
    torch.save(STATE, folder / "m.pt")
    zerocopy.convert(folder / "m.pt", folder / "m.safetensors")
    return (folder / "m.safetensors").read_bytes()


# The file, and how many bytes opening it may read.
FORMATS: dict[str, tuple[Callable[[Path], bytes], int]] = {
    "zip": (lambda _: saved_bytes(STATE), 200_000),
    "legacy": (lambda _: saved_bytes(STATE, _use_new_zipfile_serialization=False), 44 * PIECE),
    "safetensors": (as_safetensors, PIECE),
    "hdf5": (lambda _: as_h5(), 60 * PIECE),
    "hdf5 of chunks": (lambda _: as_h5(chunks=True, compression="lzf"), 10 * PIECE),
}


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_asked_of_a_file_object_is_read_and_little_more(form: str, tmp_path: Path) -> None:
    write, most = FORMATS[form]
    content = write(tmp_path)
    for begin in (0, 7):
        file = Remote(content, begin)
        with zerocopy.open(file) as checkpoint:
            assert set(checkpoint) == STATE.keys() and file.nbytes <= most
            # But what lies between two pieces, and the beginning of a small file.
            pieces = len(file.sizes) - 2
            assert pieces * PIECE <= file.nbytes, "in pieces of at least 64 KiB"
            at, before = file.at, file.nbytes
            tensor = checkpoint.get_tensor("layers.7.w")
            assert torch.equal(tensor, STATE["layers.7.w"]) and file.at == at
            assert file.nbytes - before <= tensor.numel() * 4 + PIECE or "chunks" in form
            before = file.nbytes
            assert torch.equal(checkpoint.get_slice("layers.9.w")[5:9], STATE["layers.9.w"][5:9])
            assert file.nbytes - before <= 3 * PIECE or "chunks" in form
            assert all(torch.equal(checkpoint.get_tensor(name), each) for name, each in STATE.items())
    loaded = zerocopy.lazy_load(file := Remote(content, most=5000))
    assert file.at == len(content) or not form.startswith(("zip", "legacy"))
    assert torch.equal(loaded["layers.9.b"] + 0, STATE["layers.9.b"]), "reads that return less are repeated"


def test_slice_of_columns_reads_their_bytes_and_little_more() -> None:
    wide = torch.arange(1 << 22, dtype=torch.float32).view(16, -1)  # rows of 1 MiB
    file = Remote(saved_bytes({"w": wide, "b": torch.ones(3)}))
    with zerocopy.open(file) as checkpoint:
        for index in ((slice(None), slice(8, 99)), (slice(1, 9, 3), slice(0, 9, 2)), (slice(0, 2), 1 << 17)):
            before = file.nbytes
            assert torch.equal(checkpoint.get_slice("w")[index], wide[index])
            assert torch.equal(checkpoint.read({"w": index})["w"], wide[index])
            assert file.nbytes - before <= 2 * 18 * PIECE
        assert torch.equal(checkpoint.get_slice("w")[:, ::2], wide[:, ::2])


def test_threads_read_one_file_object_in_turn() -> None:
    file = Remote(saved_bytes(STATE))
    wrong: list[str] = []
    with zerocopy.open(file) as checkpoint:

        def read(names: list[str]) -> None:
            wrong.extend(name for name in names if not torch.equal(checkpoint.get_tensor(name), STATE[name]))

        threads = [
            threading.Thread(target=read, args=([*STATE][k:] + [*STATE][:k],)) for k in range(0, 80, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_file_object_that_changes_or_is_closed_is_said(tmp_path: Path) -> None:
    file = Remote(saved_bytes(STATE))
    lazy = zerocopy.lazy_load(file)
    for change in (
        lambda: setattr(file, "content", file.content[:-1]),
        lambda: setattr(file, "content", file.content + b"xx"),
    ):
        change()
        with pytest.raises(OSError, match="changed since it was opened") as caught:
            lazy["layers.3.w"].materialize()
        assert caught.value.filename == "remote"
    file.closed = True
    with pytest.raises(zerocopy.ClosedError, match=r"remote: the file object was closed.*keep it open"):
        lazy["layers.3.w"].materialize()


class Broken(Remote):
    def __init__(self, content: bytes, found: Any) -> None:
        super().__init__(content)
        self.found = found

    def read(self, size: int = -1) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ("text", TypeError),
        (None, BlockingIOError),
        (b"", OSError),
        (TimeoutError("slow"), TimeoutError),
        (KeyError(7), KeyError),
    ],
)
def test_file_object_that_gives_no_bytes_raises_its_error(found: Any, error: type[Exception]) -> None:
    for content in (saved_bytes(STATE), b"\x89HDF\r\n\x1a\n" + bytes(3000)):
        for way in (zerocopy.open, zerocopy.lazy_load):
            with pytest.raises(error):
                way(Broken(content, found))


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK\3\4 and no more", b"{}" * 99, b"<html>" + bytes(1 << 18)]
)
def test_file_object_of_something_else_has_the_error_of_a_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "remote").write_bytes(content)
    with pytest.raises(zerocopy.FormatError) as expected:
        zerocopy.open(tmp_path / "remote")
    with pytest.raises(zerocopy.FormatError) as found:
        zerocopy.open(Remote(content))
    assert str(found.value).partition(": ")[2] == str(expected.value).partition(": ")[2]


def test_compressed_stream_is_read_once_from_front_to_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(tmp_path / "m.gz", "wb", 1) as target:
        target.write(saved_bytes(STATE))
    with gzip.open(tmp_path / "m.gz") as file:
        monkeypatch.setattr(gzip.GzipFile, "rewind", lambda _: pytest.fail("begins anew"))
        assert torch.equal(zerocopy.lazy_load(file)["layers.3.w"] + 0, STATE["layers.3.w"])
