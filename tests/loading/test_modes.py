"""mode: who sees a write to a loaded tensor."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from archives import big_endian, payload_offset, rezip
from conftest import Child, Saver, digest, saved_bytes
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {"weight": torch.arange(5000.0), "bias": torch.ones(3)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


@BOTH
def test_c_keeps_writes_in_this_object(path: Path, forked: Child, weights_only: bool) -> None:
    before = digest(path)
    mine = zerocopy.load(path, weights_only=weights_only)
    other = zerocopy.load(path, weights_only=weights_only)
    mine["weight"].neg_()
    mine["bias"][1] = 7
    mine["bias"].numpy()[2] = 8
    assert mine["weight"][4999] == -4999 and mine["bias"].tolist() == [1, 7, 8]
    assert_same(other, STATE)
    assert_same(zerocopy.load(path), STATE)
    code = "import sys, zerocopy; print(zerocopy.load(sys.argv[1])['weight'][4999].item())"
    assert forked(code, path).stdout.strip() == "4999.0"
    assert digest(path) == before


def test_c_needs_no_write_permission(path: Path) -> None:
    path.chmod(0o444)
    with path.open("rb") as file:  # a descriptor that cannot write, whoever runs the test
        loaded = zerocopy.load(file)
    loaded["weight"].zero_()
    assert_same(zerocopy.load(path), STATE)


@BOTH
def test_r_plus_reaches_the_file(path: Path, forked: Child, weights_only: bool) -> None:
    offset = payload_offset(path, "data/0")
    loaded = zerocopy.load(path, mode="r+", weights_only=weights_only)
    other = zerocopy.load(path, mode="r")
    loaded["weight"].neg_()
    assert torch.equal(loaded["weight"], -STATE["weight"])
    assert torch.equal(other["weight"], loaded["weight"]), "the other mapping shares the pages"
    code = "import sys, torch; print(torch.load(sys.argv[1])['weight'][4999].item())"
    assert forked(code, path).stdout.strip() == "-4999.0"
    del loaded, other
    stored = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32, count=5000, offset=offset)
    assert torch.equal(stored, -STATE["weight"])


def test_r_plus_of_a_file_object(path: Path) -> None:
    with path.open("rb+") as file:
        zerocopy.load(file, mode="r+")["bias"].zero_()
    assert zerocopy.load(path)["bias"].tolist() == [0, 0, 0]


def test_r_plus_needs_write_permission(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(PermissionError):
        zerocopy.load(file, mode="r+")


@BOTH
@pytest.mark.parametrize(
    ("kind", "words"),
    [("deflated", "deflated"), ("unaligned", "aligned"), ("big-endian", "big-endian")],
    ids=["deflated", "unaligned", "big-endian"],
)
def test_r_plus_refuses_what_would_be_a_copy(
    tmp_path: Path, kind: str, words: str, weights_only: bool
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(_unmappable(kind))
    before = digest(path)
    with pytest.raises(zerocopy.UnsupportedError, match=f"r\\+.*{words}"):
        zerocopy.load(path, mode="r+", weights_only=weights_only)
    assert digest(path) == before


def _unmappable(kind: str) -> bytes:
    if kind == "deflated":
        return rezip(saved_bytes(STATE), zipfile.ZIP_DEFLATED)
    if kind == "big-endian":
        return big_endian([STATE["weight"]])
    bits = STATE["weight"].numpy().tobytes()
    files = (saved_prefixed(length) for length in (1, 2))  # zipfile leaves records anywhere
    return next(content for content in files if content.index(bits) % 2)


def saved_prefixed(length: int) -> bytes:
    """Return the state zipped anew, behind a record whose name has a length."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved_bytes(STATE))) as source, zipfile.ZipFile(out, "w") as target:
        target.writestr("archive/" + "x" * length, b"")
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return out.getvalue()


def test_r_plus_contradicts_reading(path: Path) -> None:
    with pytest.raises((ValueError, zerocopy.UnsupportedError)):
        zerocopy.load(path, mode="r+", backend="pread")


@BOTH
def test_r_gives_the_values(path: Path, weights_only: bool) -> None:
    loaded = zerocopy.load(path, mode="r", weights_only=weights_only)
    assert_same(loaded, STATE)
    assert (loaded["weight"] * 2).sum() == 2 * STATE["weight"].sum()


@pytest.mark.plain_memory("a sanitizer reports what is meant to be a signal")
def test_r_write_kills_the_process_and_not_the_file(path: Path, forked: Child) -> None:
    before = digest(path)
    code = """
        import sys, zerocopy
        weight = zerocopy.load(sys.argv[1], mode="r")["weight"]
        print("read", weight[3].item(), flush=True)
        weight[3] = 9
        print("written", flush=True)
    """
    done = forked(code, path)
    assert done.stdout.split() == ["read", "3.0"]
    assert done.returncode < 0, "ended by a signal"
    assert digest(path) == before


class TestBuffers:
    def test_c_leaves_the_buffer_alone(self) -> None:
        buffer = bytearray(saved_bytes(STATE))
        before = bytes(buffer)
        loaded = zerocopy.load(buffer)
        loaded["weight"].zero_()
        assert bytes(buffer) == before
        buffer.append(0)  # nothing holds it

    def test_c_of_bytes_leaves_them_alone(self) -> None:
        content = saved_bytes(STATE)
        before = bytes(bytearray(content))
        for source in (content, io.BytesIO(content)):
            zerocopy.load(source)["weight"].zero_()
            assert content == before

    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_others_share_the_buffer(self, mode: str) -> None:
        buffer, archive = placed(saved_bytes(STATE))
        loaded = zerocopy.load(archive, mode=mode)
        assert_same(loaded, STATE)
        if mode == "r+":
            loaded["bias"].fill_(5)
            assert zerocopy.load(archive)["bias"].tolist() == [5, 5, 5]
        del archive
        with pytest.raises(BufferError):
            buffer.append(0)
        del loaded
        buffer.append(0)

    def test_r_takes_read_only_buffers_and_r_plus_does_not(self) -> None:
        content = saved_bytes(STATE)
        assert_same(zerocopy.load(content, mode="r"), STATE)
        with pytest.raises(ValueError, match="read-only"):
            zerocopy.load(content, mode="r+")


def placed(content: bytes) -> tuple[bytearray, memoryview]:
    """Return a buffer with an archive in it at a multiple of 64 in memory, and the view of the archive."""
    buffer = bytearray(64 + len(content))
    lead = -torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() % 64
    view = memoryview(buffer)[lead : lead + len(content)]
    view[:] = content
    return buffer, view
