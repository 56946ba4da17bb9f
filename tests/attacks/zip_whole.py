"""Archives as a whole: odd but valid, cut, joined, or two things at once."""

import gzip
import io
import struct
import zipfile
import zlib
from functools import partial

import assembler
import legacy_files
import tar_files
from assembler import DATA, Entry, archive, checkpoint, entries, pickle, zip64

from attacks.attack import Attack, Expected, Family
from attacks.zip_parts import (
    DATA_0,
    DATA_PKL,
    DIRECTORY_SIZE,
    HEADERS,
    MORE,
    ONES,
    SIZE,
    VERSION,
    changed,
    crowded,
    made,
    offsets,
    with_more,
)

OTHER = {"0": bytes(64)}  # the storages of a second checkpoint, which must not be taken for the first


def described(form="<4s3I", kept=slice(None), sizes=None):
    """Return a checkpoint as torch.save writes it: sizes not in the local headers, but behind the data."""
    records = changed(
        local={"flags": 0x0808, "size": 0, "stored_size": 0, "crc": 0}, central={"flags": 0x0808}
    )
    for record in records:
        size, crc = len(record.data) if sizes is None else sizes, zlib.crc32(record.data)
        record.descriptor = struct.pack(form, b"PK\7\x08", crc, size, size)[kept]
    return archive(records)


def wide_sizes(local=True, header=None):
    """Return a checkpoint whose sizes are in zip64 fields, and with `header` the offsets too."""
    records = entries()
    for record, at in zip(records, HEADERS if header is None else header, strict=False):
        sizes = (len(record.data), len(record.data))
        ones = {"size": ONES, "stored_size": ONES}
        record.align = 1
        record.local = {**ones, "extra": zip64(*sizes)} if local else {"extra": b""}
        record.central = {**ones, "extra": zip64(*sizes)}
        if header is not None:
            record.central |= {"header": ONES, "extra": zip64(*sizes, at)}
    return archive(records)


def unaligned():
    return changed(align=1)


def zipped_anew(method):
    """Return a checkpoint written by Python's zipfile, which aligns nothing."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for record in entries():
            target.writestr(zipfile.ZipInfo(record.name), record.data, method)
    return out.getvalue()


def with_zip64_end(extensible=b"", **fields):
    """Return a checkpoint whose zip64 end record has `extensible` data behind it."""
    whole = checkpoint(wide={"record_size": 44 + len(extensible), **fields})
    return whole[: -20 - 22] + extensible + whole[-20 - 22 :]


def stored_blocks():
    """Return raw DEFLATE of DATA that does not compress it."""
    squeeze = zlib.compressobj(0, zlib.DEFLATED, -15)
    return squeeze.compress(DATA) + squeeze.flush()


def renamed(root):
    return archive(
        [
            Entry(record.name.replace("archive", root, 1), record.data, central={"flags": 0x800})
            for record in entries()
        ]
    )


NEWER = (
    Entry("archive/byteorder", b"little"),
    Entry("archive/.format_version", b"1"),
    Entry("archive/.storage_alignment", b"64"),
    Entry("archive/.data/serialization_id", b"0" * 40),
)
UNKNOWN_FIELD = b"\x99\x99\4\0abcd"
FOLDERS = (Entry("archive/", b""), Entry("archive/data/", b"", central={"attributes": 0x10}))
WRONG_CRC = {"crc": 1}

_ODD = {
    "plain": checkpoint,
    "zip64 end record": partial(checkpoint, wide={}),
    "zip64 end record that has every number": partial(
        checkpoint, wide={}, entries=MORE, here=MORE, size=ONES, offset=ONES
    ),
    "zip64 end record with extensible data": partial(with_zip64_end, b"\x99\x99\4\0\0\0abcd"),
    "sizes in data descriptors": described,
    "data descriptors without a signature": partial(described, kept=slice(4, None)),
    "data descriptors of zip64": partial(described, "<4sI2Q"),
    "data descriptors of zip64 without a signature": partial(described, "<4sI2Q", kept=slice(4, None)),
    "data descriptors announced and not there": partial(described, kept=slice(0)),
    "data descriptors that lie": partial(described, sizes=2**31),
    "comment": partial(checkpoint, comment=b"a comment"),
    "comment of 65535 bytes": partial(checkpoint, comment=b"x" * 65535),
    "comment, its last byte missing": partial(checkpoint, comment=b"ab", comment_size=3),
    "comment longer than its size": partial(checkpoint, comment=b"abc", comment_size=1),
    "one byte after": partial(checkpoint, after=b"x"),
    "newline after": partial(checkpoint, after=b"\n"),
    "as many bytes after as torch searches": partial(checkpoint, after=bytes(69_562)),
    "beginning of an end record after": partial(checkpoint, after=b"PK\5\6" + bytes(17)),
    "archive, then a legacy file": lambda: checkpoint() + legacy_files.checkpoint(),
    "archive, then a tar": lambda: checkpoint() + tar_files.checkpoint(),
    "comment with a local header": partial(checkpoint, comment=b"PK\3\4" + bytes(26)),
    "directory in another order": partial(checkpoint, reverse=True),
    "data.pkl behind the storages": lambda: archive(entries()[::-1]),
    "folder entries": partial(with_more, *FOLDERS),
    "records of newer releases": partial(with_more, *NEWER),
    "record that nobody knows": partial(with_more, Entry("archive/something/else", b"?")),
    "archive in a record": lambda: with_more(Entry("archive/other.pt", checkpoint(storages=OTHER))),
    "unknown extra field in the directory": lambda: archive(changed(central={"extra": UNKNOWN_FIELD})),
    "unknown extra field in the local headers": lambda: archive(
        changed(align=1, local={"extra": UNKNOWN_FIELD})
    ),
    "extra data that are no fields": lambda: archive(changed(central={"extra": b"\1"})),
    "sizes in zip64 fields": wide_sizes,
    "sizes in zip64 fields of the directory": partial(wide_sizes, local=False),
    "sizes and offsets in zip64 fields": lambda: wide_sizes(
        header=offsets(changed(align=1, local={"extra": zip64(0, 0)}))
    ),
    "zip64 field with more numbers than are needed": lambda: archive(
        changed(DATA_0, central={"size": ONES, "extra": zip64(64, 1, 2)})
    ),
    "no alignment": lambda: archive(unaligned()),
    "storage at an odd offset": lambda: archive([Entry("archive/x", b"x", align=1), *unaligned()]),
    "zipped anew by zipfile": partial(zipped_anew, zipfile.ZIP_STORED),
    "zipped anew and deflated by zipfile": partial(zipped_anew, zipfile.ZIP_DEFLATED),
    "all records deflated": lambda: archive(changed(method=8)),
    "data.pkl deflated": lambda: archive(changed(DATA_PKL, method=8)),
    "storage deflated": lambda: archive(changed(DATA_0, method=8)),
    "version deflated": lambda: archive(changed(VERSION, method=8)),
    "storage in stored blocks of DEFLATE": lambda: archive(changed(DATA_0, method=8, stored=stored_blocks())),
    "CRC 0": lambda: archive(changed(central={"crc": 0}, local={"crc": 0})),
    "CRC of a storage wrong": lambda: archive(changed(DATA_0, central=WRONG_CRC, local=WRONG_CRC)),
    "CRC of a deflated storage wrong": lambda: archive(
        changed(DATA_0, method=8, central=WRONG_CRC, local=WRONG_CRC)
    ),
    "CRC of data.pkl wrong": lambda: archive(changed(DATA_PKL, central=WRONG_CRC, local={"crc": 2})),
    "versions of zip that do not exist": lambda: archive(
        changed(central={"version": 65535, "made_by": 65535}, local={"version": 0})
    ),
    "flags for names in UTF-8 and for the level of compression": lambda: archive(
        changed(central={"flags": 0x806}, local={"flags": 0})
    ),
    "made on Unix, mode of a symbolic link": lambda: archive(
        changed(central={"made_by": 0x31E, "attributes": 0o120777 << 16})
    ),
    "comments on entries": lambda: archive(changed(central={"comment": b"hello"})),
    "root folder with spaces, dots and letters beyond ASCII": partial(renamed, "mod\u00e8le v1.2 \u2603"),
    "root folder of 1000 characters": partial(renamed, "r" * 1000),
}  # fmt: skip

ODD_ARCHIVES = Family(
    "Archives that are odd but valid",
    (
        *made(Expected.EQUAL, _ODD),
        Attack(
            "70 000 more records",
            partial(crowded, 70_000, wide={"entries64": 70_003, "here64": 70_003}, entries=MORE, here=MORE),
            Expected.EQUAL,
        ),
    ),
)


def end_record(comment=b"", entries=0, size=0, offset=0, comment_size=None):
    """Return an end record, by default that of an empty archive."""
    comment_size = len(comment) if comment_size is None else comment_size
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, size, offset, comment_size) + comment


def two_directories(spoiled):
    """Return an archive whose comment has another directory over the same records.

    In the first directory archive/other is a record nobody asks for, in the second it is data.pkl. The bytes
    after the second end record decide which of them a reader takes that does not check comments.
    """
    other = Entry("archive/other", pickle("the other one"))
    records = [*entries(), other]
    names = [b"archive/data.old", b"archive/data/0", b"archive/version", b"archive/data.pkl"]
    at = offsets(records)
    second = b"".join(
        assembler._central(Entry(name, record.data), header)
        for name, record, header in zip(names, records, at, strict=False)
    )
    begins = len(archive(records))
    return archive(records, comment=second + end_record(spoiled, 4, len(second), begins, 0))


def end_record_in_a_record():
    """Return an archive whose last record is an end record, with a comment as long as what follows it."""
    whole = with_more(Entry("archive/z", end_record()))
    return with_more(Entry("archive/z", end_record(comment_size=len(whole) - whole.index(b"PK\5\6") - 22)))


def damaged(at, new=b"\0"):
    data = checkpoint()
    return data[:at] + new + data[at + len(new) :]


def joined(first, second):
    """Return two archives, the second one with offsets from the beginning of the file."""
    whole = archive(second, before=first, offset=len(first) + offsets(second)[-1])
    at = len(first) + offsets(second)[-1]
    for header in offsets(second)[:-1]:
        whole = whole[: at + 42] + struct.pack("<I", len(first) + header) + whole[at + 46 :]
        at = whole.find(b"PK\1\2", at + 46)
    return whole


_CUT = {
    **{f"cut at {n} sixteenths": lambda n=n: checkpoint()[: SIZE * n // 16] for n in range(1, 16)},
    "last byte missing": lambda: checkpoint()[:-1],
    "end record missing": lambda: checkpoint()[:-22],
    "end record missing behind a zip64 one": lambda: checkpoint(wide={})[:-22],
    "one byte": lambda: b"P",
    "first signature only": lambda: b"PK\3\4",
    "end record of an empty archive": end_record,
    "first record only, and an end record that counts none": lambda: (
        checkpoint()[: HEADERS[1]] + end_record(offset=HEADERS[1])
    ),
}
_SOMETHING_ELSE = {
    "empty file": lambda: b"",
    "zeros": lambda: bytes(4096),
    "PNG": lambda: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "gzip of a checkpoint": lambda: gzip.compress(checkpoint(), mtime=0),
    "first signature damaged": lambda: damaged(0),
    "first signature is that of a spanned archive": lambda: damaged(0, b"PK00"),
    "HTML page": lambda: b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
    "git-lfs pointer": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
}
_JOINED = {
    "one byte before": lambda: checkpoint(before=b"x"),
    "newline before": lambda: checkpoint(before=b"\n"),
    "4096 bytes before": lambda: checkpoint(before=b"#!" + bytes(4094)),
    "local signature before": lambda: checkpoint(before=b"PK\3\4" + bytes(28)),
    "mark of a spanned archive before": lambda: checkpoint(before=b"PK\7\x08"),
    "more bytes after than torch searches": lambda: checkpoint(after=bytes(69_563)),
    "end record after": lambda: checkpoint(after=end_record()),
    "two archives joined": lambda: checkpoint() + checkpoint(storages=OTHER),
    "two archives joined, offsets from the beginning of the file": lambda: joined(
        checkpoint(), entries(storages=OTHER)
    ),
    "archive hidden before the directory": lambda: checkpoint(gap=checkpoint(storages=OTHER)),
    "byte hidden before the directory": lambda: checkpoint(gap=b"x"),
    "byte hidden behind a record": lambda: archive(changed(DATA_0, after=b"x")),
    "16 bytes hidden behind a record": lambda: archive(changed(DATA_0, after=bytes(16))),
    "16 bytes hidden behind a record, as a data descriptor": lambda: archive(
        changed(DATA_0, after=b"PK\7\x08" + bytes(12))
    ),
    "100 000 bytes hidden behind a record": lambda: archive(changed(DATA_0, after=bytes(100_000))),
    "13 bytes for a data descriptor": lambda: archive(
        changed(DATA_0, after=bytes(13), central={"flags": 8}, local={"flags": 8})
    ),
    "28 bytes for a data descriptor": lambda: archive(
        changed(DATA_0, after=bytes(28), central={"flags": 8}, local={"flags": 8})
    ),
    "record that the directory lacks": lambda: archive(
        changed(DATA_0, after=checkpoint()[HEADERS[DATA_0] : HEADERS[VERSION]])
    ),
    "bytes between zip64 end record and end record": lambda: (
        checkpoint(wide={})[:-22] + b"x" + checkpoint(wide={})[-22:]
    ),
    "bytes between directory and zip64 end record": lambda: checkpoint(
        wide={"size64": DIRECTORY_SIZE}, size=DIRECTORY_SIZE, spare=b"x"
    ),
    "end record in the comment": lambda: checkpoint(comment=end_record()),
    "end record with a comment in the comment": lambda: checkpoint(comment=end_record(b"12345")),
    "end record in the comment, not at its end": lambda: checkpoint(comment=end_record() + b"x"),
    "end record in the comment, bytes after": lambda: checkpoint(comment=end_record()) + b"\n",
    "legacy file, then an archive and a byte": lambda: legacy_files.checkpoint() + checkpoint() + b"\n",
    "end record in the last record": end_record_in_a_record,
    "another directory in the comment": lambda: two_directories(b""),
    "another directory in the comment, a byte behind it": lambda: two_directories(b"x"),
    "archive in the comment": lambda: checkpoint(comment=checkpoint(storages=OTHER)),
    "archive in the comment, a byte behind it": lambda: checkpoint(comment=checkpoint(storages=OTHER) + b"x"),
    "legacy file, then an archive": lambda: legacy_files.checkpoint() + checkpoint(),
    "tar, then an archive": lambda: tar_files.checkpoint() + checkpoint(),
    "pickle, then an archive": lambda: pickle({}) + checkpoint(),
}
_SAYS = {
    "cut at 8 sixteenths": "truncated",
    "end record missing": "incomplete download",
    "empty file": "empty",
    "HTML page": "HTML",
    "git-lfs pointer": "git lfs pull",
    "another directory in the comment": "two end-of-directory records",
}

CUTS_AND_JOINS = Family(
    "Archives cut, joined, or two things at once",
    (
        *(
            Attack(name, make, Expected.FORMAT, (_SAYS[name],) if name in _SAYS else ())
            for name, make in (_CUT | _SOMETHING_ELSE | _JOINED).items()
        ),
        # 'P' is the opcode of a persistent id in text.
        Attack(
            "data.pkl is an archive", lambda: checkpoint(checkpoint()), Expected.REFUSED, ("opcode 0x50",)
        ),
        Attack(
            "data.pkl is a legacy file",
            lambda: checkpoint(legacy_files.checkpoint()),
            Expected.EQUAL,
            value=lambda: legacy_files.MAGIC,  # what is behind the end of a pickle is not read
        ),
    ),
)
