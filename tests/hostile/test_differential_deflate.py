"""Deflated records against zlib: its bytes, and refused exactly where zlib refuses."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import assembler as a
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zerocopy

examples = pytest.mark.parametrize(
    "examples", [40, pytest.param(600, marks=pytest.mark.slow("600 streams a test"))]
)


def each(examples: int, check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Check so many examples, the same ones each time."""
    profile = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    profile(given(*strategies)(check))()


FLUSHES = (zlib.Z_NO_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_BLOCK)
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)
#: The core reads as much of a record at a time.
PIECE = 256 * 1024


def inflated(stream: bytes, size: int) -> bytes | None:
    """Return what zlib makes of a whole stream of `size` bytes, or None if it is not that."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(stream, size + 1)
    except zlib.error:
        return None
    whole = inflate.eof and not inflate.unused_data and not inflate.unconsumed_tail
    return content if whole and len(content) == size else None


def loaded(stream: bytes, size: int) -> bytes | None:
    """Return what zerocopy makes of a storage of `size` bytes, or None if it refuses the file."""
    data_pkl = a.pickle(a.tensor(a.storage(kind="ByteStorage", numel=size), size=(size,)))
    record = a.Entry("archive/data/0", bytes(size), method=8, stored=stream)
    file = a.archive([a.entries(data_pkl)[0], record, a.entries()[2]])
    try:
        return bytes(zerocopy.load(file).numpy().tobytes())
    except zerocopy.FormatError:
        return None


def stored_block(content: bytes, last: bool) -> bytes:
    """Return a block that is not compressed. Only whole bytes may come before it."""
    return struct.pack("<BHH", last, len(content), len(content) ^ 0xFFFF) + content


def contents() -> st.SearchStrategy[bytes]:
    """Return bytes as they come in checkpoints: repeated, of few values, random."""
    runs = st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 3000)).map(
        lambda run: run[0] * run[1]
    )
    noise = st.tuples(st.randoms(use_true_random=False), st.integers(0, 5000)).map(
        lambda drawn: drawn[0].randbytes(drawn[1])
    )
    return st.lists(runs | noise | st.binary(max_size=40), max_size=4).map(b"".join)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return bytes, and the same deflated in one of zlib's ways, in pieces with flushes between them."""
    content = draw(contents())
    squeeze = zlib.compressobj(
        draw(st.integers(0, 9)),
        zlib.DEFLATED,
        -draw(st.integers(9, 15)),
        draw(st.integers(1, 9)),
        draw(st.sampled_from(STRATEGIES)),
    )
    stream, at = b"", 0
    for size in draw(st.lists(st.integers(0, 6000), max_size=4)):
        stream += squeeze.compress(content[at : at + size]) + squeeze.flush(draw(st.sampled_from(FLUSHES)))
        at += size
    return content, stream + squeeze.compress(content[at:]) + squeeze.flush()


@st.composite
def handmade(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return bytes, and the same in stored blocks, empty ones among them, before a last one of any kind."""
    pieces = draw(st.lists(contents().map(lambda content: content[:0xFFFF]), max_size=4))
    content, stream = draw(streams())
    blocks = b"".join(stored_block(piece, False) for piece in pieces)
    return b"".join(pieces) + content, blocks + stream


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return a stream with some of its bytes changed, lost or added, and a size it may be said to have."""
    content, whole = draw(streams() | handmade())
    stream = bytearray(whole)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(stream)))
        match draw(st.sampled_from(("change", "cut", "lose", "add", "append"))):
            case "change" if at < len(stream):
                stream[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del stream[at:]
            case "lose":
                del stream[at : at + draw(st.integers(1, 5))]
            case "add":
                stream[at:at] = draw(st.binary(min_size=1, max_size=5))
            case "append":
                stream += draw(st.binary(min_size=1, max_size=5) | st.just(whole))
    return bytes(stream), max(len(content) + draw(st.sampled_from((0, 0, 0, 1, -1, 64))), 0)


@examples
def test_every_way_of_deflating_is_read(examples: int) -> None:
    def check(made: tuple[bytes, bytes]) -> None:
        content, stream = made
        assert inflated(stream, len(content)) == content, "zlib reads what it writes"
        assert loaded(stream, len(content)) == content

    each(examples, check, streams() | handmade())


@examples
def test_stream_is_refused_where_zlib_refuses(examples: int) -> None:
    def check(stream: bytes, size: int) -> None:
        assert loaded(stream, size) == inflated(stream, size)

    each(examples, lambda made: check(*made), damaged())
    each(examples, check, st.binary(max_size=40), st.integers(0, 80))


def test_each_bit_of_a_short_stream_is_read_as_zlib_reads_it() -> None:
    """A block of its own codes, whose header decides what each later bit means."""
    content = b"abracadabra " * 3
    for flip in range(8 * 12):
        stream = bytearray(a.deflate(content))
        stream[flip // 8] ^= 1 << flip % 8
        for size in (len(content) - 1, len(content), len(content) + 1):
            assert loaded(bytes(stream), size) == inflated(bytes(stream), size), (flip, size)


def test_stream_that_ends_where_one_read_ends_is_read_as_zlib_reads_it() -> None:
    """A stream of as many bytes as are read at a time, and one more or less."""
    for size in (PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1):
        blocks, content = b"", bytes(i % 251 for i in range(size))
        filled = content[: size - 5 * (size // 0xFFFF + 2)]
        for at in range(0, len(filled), 0xFFFF):
            blocks += stored_block(filled[at : at + 0xFFFF], False)
        last = content[: size - len(blocks) - 5]
        stream = blocks + stored_block(last, True)
        assert len(stream) == size
        for whole in (stream, stream + b"?"):
            assert loaded(whole, len(filled + last)) == inflated(whole, len(filled + last)), size


def test_greatest_ratio_is_accepted() -> None:
    """zlib's best compression of zeros."""
    content = bytes(5_000_000)
    stream = a.deflate(content)
    assert loaded(stream, len(content)) == content
    assert loaded(stream, len(content) + 1) is None


def test_deflated_pickle_is_read_and_bytes_behind_it_are_refused() -> None:
    whole = a.entries()
    whole[0] = a.Entry("archive/data.pkl", a.good(), method=8)
    assert torch.equal(zerocopy.load(a.archive(whole))["weight"], torch.arange(16.0))
    whole[0].stored = a.deflate(a.good()) + b"?"
    with pytest.raises(zerocopy.FormatError, match="bytes after the stream"):
        zerocopy.load(a.archive(whole))
