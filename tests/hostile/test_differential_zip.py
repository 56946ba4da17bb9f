"""The zip index against Python's zipfile and torch's reader: the same records, or a documented reason to refuse.

Archives are drawn over what :mod:`assembler` can write: order, alignment, methods, descriptors, zip64 fields,
comments, extra fields, folders, names, gaps, fields that lie, cuts, flips.
"""

from __future__ import annotations

import contextlib
import io
import re
import resource
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import assembler as a
import pytest
import torch
from equality import assert_same

import zerocopy
from zerocopy import _C

ROOT = "archive"
ONES = 2**32 - 1
CLEAN = ("FormatError", "UnsupportedError", "UnpicklingError")
NAMES = (
    "archive/x", "archive/.data/serialization_id", "archive/../y", "archive/a\nb", "archive/é", "archive/data/9",
    "archive/byteorder ", "archive/", "archive/data/", "archive/DATA.PKL", "archive/Version", "archive/data/0",
    "other/x", "archive2/x", "x", "/x", "archive\\x", "archive/a\\b", "archive/nul\0l", "archive", "", b"archive/\xff",
)  # fmt: skip


@dataclass(frozen=True)
class Reason:
    """Why zerocopy may refuse an archive that zipfile and torch both read, or the other way about.

    Parameters
    ----------
    name : str
        Unique.
    says : str
        A regular expression for the message of the reader that refuses.
    why : str
        For docs/reference/differences.md.
    example : callable
        Returns an archive that it is about.
    """

    name: str
    says: str
    why: str
    example: Callable[[], bytes]


# ------------------------------------------------------------------------------------ archives


def archive(random: Random) -> bytes:
    """Write an archive, mostly a good one."""

    def rarely(times: int) -> bool:
        return random.randrange(times) == 0

    sizes = [random.choice((0, 1, 7, 16, 40)) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    storages = {str(key): random.randbytes(size) for key, size in enumerate(sizes)}
    tensors = [
        a.tensor(a.storage(key, "ByteStorage", "cpu", len(data)), size=(len(data),))
        for key, data in storages.items()
    ]
    records = a.entries(a.pickle(tensors), storages)
    if rarely(3):
        records.append(a.Entry(f"{ROOT}/byteorder", b"little"))
    for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
        name = random.choice(NAMES[:9] if random.randrange(4) else NAMES)
        is_folder = name in (f"{ROOT}/", f"{ROOT}/data/")
        records.append(a.Entry(name, b"" if is_folder and random.randrange(10) else b"something"))
    if rarely(25):
        del records[random.randrange(len(records))]
    if rarely(3):
        random.shuffle(records)
    descriptors, align = rarely(3), random.choice((64, 64, 1, 8, 4096))
    for record in records:
        record.align = align
        _decorate(random, record, descriptors)
    if rarely(2):
        _lie(random, random.choice(records))
    options: dict[str, Any] = {"reverse": rarely(5), "comment": random.choice((b"", b"", b"", b"a comment"))}
    if rarely(3):
        options["wide"] = {}
        options |= {field: ones for field, ones in _DEFERRED.items() if rarely(3)}
    if rarely(6):
        options |= _wrong_end(random, options)
    data = a.archive(records, **options)
    return _damaged(random, data) if rarely(6) else data


_DEFERRED = {"entries": 0xFFFF, "here": 0xFFFF, "size": ONES, "offset": ONES}


def _decorate(random: Random, record: a.Entry, descriptors: bool) -> None:
    """Write a record in one of the ways that are all right."""
    if random.randrange(5) == 0:
        record.method = 8
    size, stored = len(record.data), len(record.payload())
    if descriptors:
        record.local |= {"flags": 0x0808, "size": 0, "stored_size": 0, "crc": 0}
        record.central |= {"flags": 0x0808}
        form = random.choice(("<4sIII", "<4sIII", "<4sIQQ"))
        record.descriptor = struct.pack(form, b"PK\7\x08", zlib.crc32(record.data), stored, size)
        if random.randrange(4) == 0:
            record.descriptor = record.descriptor[4:]
    extra = random.choice((b"", b"", b"", b"\x99\x99\4\0abcd", b"\x75\x70\0\0"))
    match random.randrange(8):
        case 0:
            record.central |= {"size": ONES, "stored_size": ONES, "extra": a.zip64(size, stored) + extra}
        case 1 if not descriptors:
            record.align = 1
            record.local |= {"size": ONES, "stored_size": ONES, "extra": a.zip64(size, stored) + extra}
        case 2:
            record.central |= {"extra": extra, "comment": b"a comment"}
        case 3:
            record.local |= {"extra": extra}
    if random.randrange(30) == 0:
        record.central |= {
            "version": random.choice((0, 10, 45, 63)),
            "made_by": random.choice((0, 0x031E, 0xFFFF)),
        }


def _lie(random: Random, record: a.Entry) -> None:
    """Write one field wrong, in one header or in both."""
    size, stored = len(record.data), len(record.payload())
    field, values = random.choice(
        (
            ("size", (size + 1, size - 1, 0, size + 64, ONES)),
            ("stored_size", (stored + 1, stored - 1, 0, stored + 64, ONES)),
            ("crc", (0, 1)),
            ("method", (0, 8, 9, 12, 99)),
            ("flags", (0, 0x0800, 0x0008, 0x0001, 0x0006, 0x0020, 0x2000, 0x0040)),
            ("name", (b"archive/other", b"archive/data/1", b"ARCHIVE/data.pkl", b"archive/data/0\0")),
            ("name_size", (len(record.name) + 1, len(record.name) - 1, 0, 65535)),
            ("extra_size", (0, 1, 4, 65535)),
            (
                "extra",
                (a.zip64(), a.zip64(size), a.zip64(size, stored) * 2, b"\1\0\x10\0", b"??", b"\1\0\0\0" * 2),
            ),
            ("header", (0, 1, 30, 64, ONES)),
            ("disk", (1, 65535)),
            ("attributes", (0x10, 0x01, 0o100644 << 16)),
            ("comment_size", (1, 65535)),
            ("signature", (b"PK\3\5", b"PK\1\2", b"PK\3\4")),
        )
    )
    value = random.choice(values)
    value = max(value, 0) if isinstance(value, int) else value
    sides = random.choice(([record.central], [record.local], [record.central, record.local]))
    for side in sides:
        side[field] = value
    if random.randrange(20) == 0:
        record.after = random.choice((b"?", bytes(12), bytes(64)))
    if random.randrange(20) == 0:
        record.stored = record.payload()[: random.randrange(stored + 1)]


def _wrong_end(random: Random, options: dict[str, Any]) -> dict[str, Any]:
    form = random.randrange(8)
    if form < 4:
        field = random.choice(("before", "gap", "spare", "after"))
        return {field: random.choice((b"?", bytes(22), b"PK\5\6" + bytes(18), bytes(46), a.checkpoint()))}
    if form == 4 and "wide" in options:
        numbers = (0, 1, 2, 3, 44, 45, 2**31, 2**32, 2**63, 2**64 - 1)
        fields = ("record_size", "entries64", "here64", "size64", "offset64", "record_at", "disks", "disk64")
        field = random.choice(fields)
        return {"wide": {field: random.choice(numbers[:7] if field.startswith("disk") else numbers)}}
    field = random.choice(("disk", "directory_disk", "here", "entries", "size", "offset", "comment_size"))
    return {field: random.choice((0, 1, 2, 3, 4, 46, 200, 65535))}


def _damaged(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    at = random.choice((random.randrange(len(data)), random.randrange(max(len(data) - 300, 0), len(data))))
    match random.randrange(6):
        case 0:
            return data[:at]
        case 1:
            del changed[at : at + random.choice((1, 4, 30))]
        case 2:
            changed[at:at] = random.choice((b"?", bytes(4), b"PK\3\4"))
        case 3:
            changed += data
        case _:
            changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


# ------------------------------------------------------------------------------------- readers


def _matters(name: str) -> bool:
    return name in ("data.pkl", "version", "byteorder") or (name.startswith("data/") and name[-1] != "/")


def by_zipfile(data: bytes) -> dict[str, bytes]:
    """Return what Python reads, by the names within the folder."""
    with zipfile.ZipFile(io.BytesIO(data)) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = {}
        for info in opened.infolist():
            content = opened.read(info)
            name = info.filename.partition("/")[2]
            if _matters(name):
                assert len(content) == info.file_size
                read[name] = content
        return read


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Refuse allocations beyond 1 GiB: torch allocates any size that a directory claims, and then refuses it."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def by_torch(data: bytes) -> tuple[dict[str, bytes], Any]:
    """Return what torch's reader gives of the same, and what torch.load makes of the archive."""
    with little_memory():
        reader = torch._C.PyTorchFileReader(io.BytesIO(data))
        names = [name for name in reader.get_all_records() if _matters(name)]
        read = {name: bytes(reader.get_record(name)) for name in names}
        return read, torch.load(io.BytesIO(data), weights_only=True)


def by_zerocopy(path: Path) -> tuple[dict[str, bytes], Any]:
    """Return the pickle and the storages, and what zerocopy.load makes of the archive."""
    value = zerocopy.load(path)
    opened = _C.Archive.open(bytes(path), "c", "whole")
    read = {"data.pkl": opened.pickle()}
    for i, tensor in enumerate(value.values() if isinstance(value, dict) else value):
        read[f"data/{i}"] = tensor.numpy().tobytes()
    return read, value


def refusal(read: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a reader gives, or None and the message with which it refuses."""
    try:
        return read(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def verdict(data: bytes, path: Path) -> str:
    """Compare the readers, and return the name of the reason why they differ, if they do."""
    path.write_bytes(data)
    ours, our_refusal = refusal(lambda: by_zerocopy(path))
    zips, zips_refusal = refusal(lambda: by_zipfile(data))
    torchs, torchs_refusal = refusal(lambda: by_torch(data))
    if our_refusal:
        assert our_refusal.startswith(CLEAN), our_refusal
        return "" if zips_refusal or torchs_refusal else explained(REFUSED, our_refusal)
    read, value = ours
    name = explained(NOT_BY_ZIPFILE, zips_refusal) if zips_refusal else ""
    if torchs_refusal:
        name = explained(NOT_BY_TORCH, torchs_refusal)
    else:
        assert_same(value, torchs[1])
    others = ([] if zips_refusal else [zips]) + ([] if torchs_refusal else [torchs[0]])
    for other in others:
        assert {key: other.get(key) for key in read} == read
        assert other == others[0], "zipfile and torch agree on what zerocopy loads"
    return name


def explained(reasons: tuple[Reason, ...], refusal: str) -> str:
    """Return the name of the reason that a message belongs to."""
    names = [reason.name for reason in reasons if re.search(reason.says, refusal)]
    assert names, f"no reason is documented for: {refusal}"
    return names[0]


def _one(index: int = 1, **fields: Any) -> bytes:
    """Return a checkpoint in which one record has other fields."""
    records = a.entries()
    for name, value in fields.items():
        setattr(records[index], name, value)
    return a.archive(records)


def _and(name: str, data: bytes = b"x", **fields: Any) -> bytes:
    return a.archive([*a.entries(), a.Entry(name, data, **fields)])


def _endless(data: bytes) -> bytes:
    """Return a stream that gives all bytes and does not end."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush(zlib.Z_SYNC_FLUSH)


#: Archives that torch and zipfile both read, and zerocopy refuses.
REFUSED = (
    Reason("bytes between the records", "bytes that do not belong to a record",
           "the gap may contain a second file that only some readers see", lambda: _one(after=b"?")),
    Reason("two archives, one behind the other",
           "the central directory does not end where the end record begins",
           "torch loads the first by the directory of the second, zipfile the second",
           lambda: a.checkpoint() * 2),
    Reason("two end records that disagree", "the end record and the zip64 end record disagree",
           "some readers use the first record, some the second", lambda: a.checkpoint(wide={}, entries=2)),
    Reason("a zip64 end record of another length", "zip64 end record at .* does not end at its locator",
           "the record contains bytes without a meaning", lambda: a.checkpoint(wide={"record_size": 45})),
    Reason("two records of one name, also if only the case differs", "has the name of another record",
           "torch takes the first it finds and ignores case, zipfile takes the last",
           lambda: _and("archive/DATA.PKL")),
    Reason("names with NUL, backslash or bytes that are not UTF-8",
           "has a name with NUL, backslash or bytes that are not UTF",
           "other readers end the name there, split it there or read other characters",
           lambda: _and("archive/a\\b")),
    Reason("a local header with another name, method or encryption flag than the directory",
           "local header and central directory disagree",
           "streaming readers use the local header, torch uses the directory",
           lambda: _one(local={"method": 8})),
    Reason("a local header with other sizes than the directory",
           "local header and central directory give different sizes",
           "streaming readers use the local header, torch uses the directory",
           lambda: _one(local={"size": 63})),
    Reason("zip64 fields that are duplicate, too short or not needed",
           "zip64 field|zip extra field: truncated", "readers use different numbers",
           lambda: _one(central={"extra": a.zip64(64)})),
    Reason("a second name in a Unicode path field", r"a second name, in a Unicode path field \(0x7075\)",
           "zipfile takes this name, torch the other", lambda: _one(central={"extra": b"\x75\x70\0\0"})),
    Reason("a record with bytes that is marked or named as a folder",
           "is marked as a folder, but holds bytes", "torch returns uninitialised memory for it",
           lambda: _and("archive/folder/", b"bytes")),
    Reason("a record on another disk", "lies on another disk", "an archive has one file only",
           lambda: _one(central={"disk": 1})),
    Reason("flags that neither reader knows", r"otherwise special \(flags",
           "a flag may mean that the bytes are encoded", lambda: _one(central={"flags": 0x0010})),
    Reason("a deflated stream that is longer or shorter than the directory says",
           "deflated record at .*(truncated|bytes after the stream|inflates to more than)",
           "zipfile and torch stop at the directory's size, and ignore the rest",
           lambda: _one(method=8, stored=_endless(a.DATA))),
    Reason("a record whose size differs from the directory",
           "is stored, but has two sizes|holds .* bytes, its storage needs",
           "torch before 2.10 does not compare the two",
           lambda: a.checkpoint(storages={"0": a.DATA + b"more"})),
)  # fmt: skip

#: Archives that zerocopy loads, and zipfile refuses.
NOT_BY_ZIPFILE = (
    Reason(
        "wrong CRCs",
        "Bad CRC-32",
        "torch does not check them and can be told to write wrong ones; a check would read every byte",
        lambda: _one(central={"crc": 1}, local={"crc": 1}),
    ),
    Reason(
        "a local header alone without the flag of UTF-8",
        "File name in directory .* and header .* differ",
        "the bytes of the two names are equal; zipfile reads them in two encodings",
        lambda: _and("archive/é", local={"flags": 0}, central={"flags": 0x0800}),
    ),
    Reason(
        "versions newer than the format's latest",
        "zip file version",
        "the method and flags say how the record is stored, the number does not",
        lambda: _one(central={"version": 99}),
    ),
)

#: Archives that zerocopy and zipfile load, and torch refuses.
NOT_BY_TORCH = (
    Reason(
        "a zip64 locator that counts no disk",
        "unsupported multidisk archive",
        "some writers wrote 0 for 1",
        lambda: a.checkpoint(wide={"disks": 0}),
    ),
)


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(200, 2000), marks=pytest.mark.slow("1800 archives"))], ids=str
)
def test_readers_agree_or_differ_for_a_known_reason(seeds: range, tmp_path: Path) -> None:
    path, unexplained, refused = tmp_path / "x.pt", [], 0
    for seed in seeds:
        try:
            verdict(archive(Random(seed)), path)
        except AssertionError as error:
            unexplained.append(f"{seed}: {error}")
        refused += bool(refusal(lambda: by_zerocopy(path))[1])
    assert not unexplained, "\n".join(unexplained)[:5000]
    assert 0.2 < refused / len(seeds) < 0.8  # many load, and many do not
