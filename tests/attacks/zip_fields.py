"""Numbers in the central directory, its end records and the local headers that are not so."""

import struct
import zlib
from functools import partial

import assembler
from assembler import Entry, archive, checkpoint, zip64

from attacks.attack import Expected, Family
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
    each,
    made,
    wanting,
    with_both,
    with_entry,
    with_header,
    with_more,
)

DIRECTORY_AT = HEADERS[-1]
FIRST, SECOND = HEADERS[:2]
BEGIN = HEADERS[VERSION] - 64  # of the data of data/0, behind its local header
PADDING = BEGIN - SECOND - 30 - len("archive/data/0")
WIDE = 2**64


def counted(number):
    return {"entries": number, "here": number}


def wide(**fields):
    """Return the arguments for a zip64 end record with these fields."""
    return {"wide": fields}


def wide_counted(number):
    return {"wide": {"entries64": number, "here64": number}, **counted(MORE)}


def decoy(record_size):
    """Return a checkpoint with a zip64 end record before its directory, to which the locator leads."""
    numbers = {"entries": 3, "size": DIRECTORY_SIZE, "offset": DIRECTORY_AT + 56, "record_size": record_size}
    record = assembler._zip64_end(numbers, 0)[:56]
    return checkpoint(wide={"record_at": DIRECTORY_AT}, gap=record)


def without_zip64_record():
    """Return a checkpoint with a zip64 locator, and no record that it could lead to."""
    whole = checkpoint(wide={})
    return whole[: -22 - 20 - 56] + whole[-22 - 20 :]


_END = {
    "entries, one more": counted(4),
    "entries, one less": counted(2),
    "entries, none": counted(0),
    "entries, 65535 without zip64": counted(MORE),
    "entries on this disk, one less": {"here": 2},
    "entries on this disk, one more": {"here": 4},
    "46 spare bytes in the directory": {"spare": bytes(46)},
    "46 spare bytes in the directory, an entry": {"spare": b"PK\1\2" + bytes(42)},
    "one spare byte in the directory": {"spare": b"x"},
    "spare digital signature in the directory": {"spare": b"PK\5\5\0\0"},
    "directory size 10 000": {"size": 10_000},
    "directory size, one more": {"size": DIRECTORY_SIZE + 1},
    "directory size, one less": {"size": DIRECTORY_SIZE - 1},
    "directory size of one entry": {"size": 46},
    "directory size 0": {"size": 0},
    "directory size all ones without zip64": {"size": ONES},
    "directory offset past the end": {"offset": 10**9},
    "directory offset of the end record": {"offset": SIZE - 22},
    "directory offset all ones without zip64": {"offset": ONES},
    "directory offset of a local header": {"offset": 0},
    "directory offset, one more": {"offset": DIRECTORY_AT + 1},
    "directory offset, one less": {"offset": DIRECTORY_AT - 1},
    "directory offset of the second entry": {"offset": DIRECTORY_AT + 46 + len("archive/data.pkl")},
    "offset and size wrap in 32 bits": {"offset": ONES - 1, "size": DIRECTORY_AT + DIRECTORY_SIZE + 2},
    "disk 1": {"disk": 1},
    "disk 65535": {"disk": 65535},
    "directory's disk 1": {"directory_disk": 1},
    "zip64: disk 1": wide(disk64=1),
    "zip64: directory's disk 1": wide(directory_disk64=1),
    "zip64: locator's disk 1": wide(locator_disk=1),
    "zip64: two disks": wide(disks=2),
    "zip64: entries 2^32": wide_counted(2**32),
    "zip64: entries 2^32 + 3": wide_counted(2**32 + 3),
    "zip64: entries 2^63": wide_counted(2**63),
    "zip64: entries 2^64 - 1": wide_counted(WIDE - 1),
    "zip64: entries other than the end record's": wide(entries64=2, here64=2),
    "zip64: entries on this disk 2": {"wide": {"here64": 2}, **counted(MORE)},
    "zip64: directory size other than the end record's": wide(size64=DIRECTORY_SIZE - 1),
    "zip64: directory offset other than the end record's": wide(offset64=0),
    "zip64: directory size 2^63": {**wide(size64=2**63), "size": ONES},
    "zip64: directory size 2^64 - 1": {**wide(size64=WIDE - 1), "size": ONES},
    "zip64: directory offset 2^63": {**wide(offset64=2**63), "offset": ONES},
    "zip64: directory offset 2^64 - 1": {**wide(offset64=WIDE - 1), "offset": ONES},
    "zip64: directory offset, one more": {**wide(offset64=DIRECTORY_AT + 1), "offset": ONES},
    "zip64: directory offset and size wrap": {
        **wide(offset64=WIDE - 100, size64=200), "offset": ONES, "size": ONES,
    },
    "zip64: directory offset and size wrap to the right end": {
        **wide(offset64=WIDE - 1, size64=DIRECTORY_AT + DIRECTORY_SIZE + 1), "offset": ONES, "size": ONES,
    },
    "zip64: record size 0": wide(record_size=0),
    "zip64: record size, one less": wide(record_size=43),
    "zip64: record size, one more": wide(record_size=45),
    "zip64: record size 2^64 - 12": wide(record_size=WIDE - 12),
    "zip64: record size 2^64 - 1": wide(record_size=WIDE - 1),
    "zip64: locator past the end": wide(record_at=10**9),
    "zip64: locator to 2^63": wide(record_at=2**63),
    "zip64: locator to 2^64 - 8": wide(record_at=WIDE - 8),
    "zip64: locator to a local header": wide(record_at=0),
    "zip64: locator to itself": wide(record_at=SIZE - 22 + 56),
    "zip64: locator to the end record": wide(record_at=SIZE + 56 + 20 - 22),
    "zip64: locator to the directory": wide(record_at=DIRECTORY_AT),
    "zip64: locator, one less": wide(record_at=SIZE - 22 - 1),
}  # fmt: skip
_ENTRY = {
    **{
        f"{field} length 65535 of {what}": {"which": which, f"{field}_size": 65535}
        for what, which in (("the first entry", DATA_PKL), ("the second", DATA_0), ("the last", VERSION))
        for field in ("name", "extra", "comment")
    },
    "name length, one less": {"name_size": 13},
    "name length 0": {"name_size": 0},
    "comment length 1": {"comment_size": 1},
    "comment as long as the next entry": {"which": DATA_PKL, "comment_size": 46 + 14},
    "signature of an entry": {"signature": b"PK\1\3"},
    "signature of an entry is a local one": {"signature": b"PK\3\4"},
    "entry on disk 1": {"disk": 1},
    "entry on disk 65535": {"disk": 65535},
}
_MADE = {
    "zip64: locator to a record before the directory": partial(decoy, 44),
    "zip64: locator to a record that has the directory in it": partial(decoy, 44 + DIRECTORY_SIZE + 56),
    "zip64: locator without a record": without_zip64_record,
    "65 539 records, counted as three": partial(crowded, 2**16),
}

DIRECTORY = Family(
    "Fields of the directory and of its end",
    (
        *each(Expected.FORMAT, checkpoint, _END),
        *each(Expected.FORMAT, with_entry, _ENTRY),
        *made(Expected.FORMAT, _MADE),
    ),
)


def in_zip64(size=64, stored=64, *header, which=DATA_0):
    """Return a checkpoint whose directory has the numbers of a record in a zip64 field."""
    fields = {"size": ONES, "stored_size": ONES} | ({"header": ONES} if header else {})
    fields["extra"] = zip64(size, stored, *header)
    return archive(changed(which, central=fields, records=wanting(size)))


def of_size(size):
    """Return a checkpoint of which directory and pickle agree on the size of a record, which has 64 bytes."""
    return archive(changed(DATA_0, central=sizes(size), records=wanting(size)))


def last_of_size(size):
    """Return such a checkpoint, in which that record is the last one."""
    data_pkl, data_0, version = wanting(size)
    return archive(changed(2, central=sizes(size), records=[data_pkl, version, data_0]))


def sizes(number):
    return {"size": number, "stored_size": number}


_ALL_ONES = sizes(ONES)
_SIZES = {
    "size past the end": 10**8,
    "size to the end of the file": SIZE - BEGIN,
    "size into the directory": DIRECTORY_AT + 1 - BEGIN,
    "size into the next record": 100,
    "size, one more": 65,
    "size, one less": 63,
    "size 0": 0,
}
_OFFSETS = {
    "offset past the end": {"header": 10**8},
    "header cut by the end of the file": {"header": SIZE - 10},
    "header cut by the directory": {"header": DIRECTORY_AT - 29},
    "offset, one more": {"header": SECOND + 1},
    "offset, one less": {"header": SECOND - 1},
    "offset into data": {"header": BEGIN},
    "offset into the directory": {"header": DIRECTORY_AT},
    "offset of the end record": {"header": SIZE - 22},
    "offset of data.pkl": {"header": FIRST},
    "offset of version": {"header": HEADERS[VERSION]},
}
_ZIP64 = {
    "zip64 offset 2^63": (64, 64, 2**63),
    "zip64 offset 2^64 - 1": (64, 64, WIDE - 1),
    "zip64 offset that wraps with 30 bytes": (64, 64, WIDE - 30),
    "zip64 offset that wraps with header and data": (64, 64, WIDE - 30 - 14 - 64),
    "zip64 sizes 2^63": (2**63, 2**63),
    "zip64 sizes 2^64 - 1": (WIDE - 1, WIDE - 1),
    "zip64 sizes 2^40": (2**40, 2**40),
    "zip64 sizes that wrap to the beginning": (WIDE - BEGIN, WIDE - BEGIN),
    "zip64 sizes 2^32 + 64": (2**32 + 64, 2**32 + 64),
    "zip64 stored size 0 of 64": (64, 0),
    "zip64 stored size 64 of 0": (0, 64),
    "zip64 sizes 0": (0, 0),
}
#: Python's zipfile reads the name in this field, "archive/data/1", if the CRC-32 is that of the plain name.
UNICODE_PATH = struct.pack("<HHBI", 0x7075, 19, 1, zlib.crc32(b"archive/data/0")) + b"archive/data/1"
_CENTRAL = {
    "stored size 8 of 64": {"stored_size": 8},
    "stored size 0 of 64": {"stored_size": 0},
    "stored size 64 of 8": {"size": 8},
    "stored size 64 of 65": {"size": 65},
    "zip64 field that is empty": {"extra": zip64()},
    "zip64 field that nothing needs": {"extra": zip64(64, 64)},
    "two zip64 fields that disagree": {**_ALL_ONES, "extra": zip64(64, 64) + zip64(8, 8)},
    "two zip64 fields that agree": {**_ALL_ONES, "extra": zip64(64, 64) * 2},
    "a second name in a Unicode path field": {"extra": UNICODE_PATH},
    "an empty Unicode path field": {"extra": b"\x75\x70\0\0"},
    "method 8 in the directory only": {"method": 8},
    "directory bit on a storage": {"attributes": 0x10},
    "name of another record in the directory": {"name": b"archive/data/1"},
}
_TOO_SHORT = {
    "offset all ones without zip64": {"header": ONES},
    "sizes all ones without zip64": _ALL_ONES,
    "size all ones without zip64": {"size": ONES},
    "zip64 field of one number for two": {**_ALL_ONES, "extra": zip64(64)},
    "zip64 field of half a number": {"size": ONES, "extra": b"\1\0\4\0" + bytes(4)},
    "zip64 field longer than the extra data": {**_ALL_ONES, "extra": b"\1\0\x10\0" + bytes(8)},
    "zip64 field behind one that is too long": {**_ALL_ONES, "extra": b"\x99\x99\xff\xff" + zip64(64, 64)},
}
_LOCAL = {
    "sizes in the local header smaller": sizes(60),
    "sizes in the local header bigger": sizes(100),
    "stored size in the local header smaller": {"stored_size": 60},
    "sizes 0 in the local header without a descriptor": sizes(0),
    "zip64 sizes in the local header differ": {**_ALL_ONES, "extra": zip64(60, 60)},
    "sizes 60 in the local header with a descriptor's flag": {**sizes(60), "flags": 8},
    "method in the local header": {"method": 8},
    "name in the local header": {"name": b"archive/data/1"},
    "name in the local header in another case": {"name": b"archive/DATA/0"},
    "name in the local header of another length": {"name": b"archive/data/00"},
    "name in the local header is empty": {"name": b""},
    "name length in the local header, 16 more": {"name_size": 30},
    "name length in the local header, one less": {"name_size": 13},
    "name length in the local header 65535": {"name_size": 65535},
    "extra length in the local header 0": {"extra_size": 0},
    "extra length in the local header, one less": {"extra_size": PADDING - 1},
    "extra length in the local header, one more": {"extra_size": PADDING + 1},
    "extra length in the local header 65535": {"extra_size": 65535},
    "signature of the local header": {"signature": b"PK\3\5"},
    "signature of the local header is the directory's": {"signature": b"PK\1\2"},
    "encryption in the local header only": {"flags": 1},
}
_OF_DATA_PKL = {
    "name of data.pkl in the local header": {"name": b"archive/data.pkx"},
    "name of data.pkl in the local header in another case": {"name": b"archive/DATA.PKL"},
    "encryption of data.pkl in the local header only": {"flags": 1},
    "extra length of data.pkl's local header 0": {"extra_size": 0},
}
_FLAGS = {
    "encryption": 0x1,
    "enhanced deflating": 0x10,
    "patch": 0x20,
    "strong encryption": 0x41,
    "strong encryption alone": 0x40,
    "unused bit": 0x80,
    "masked headers": 0x2000,
    "all flags": 0xFFFF,
}

ENTRIES = Family(
    "Entries of the directory, and local headers that differ",
    (
        *each(Expected.FORMAT, of_size, {title: (size,) for title, size in _SIZES.items()}, says=("data/0",)),
        *each(
            Expected.FORMAT,
            last_of_size,
            {"size of the last record into the directory": (65,)},
            says=("data/0",),
        ),
        *each(Expected.FORMAT, with_entry, _OFFSETS, says=("archive/data",)),
        *each(Expected.FORMAT, with_entry, _CENTRAL, says=("data/0",)),
        *each(Expected.FORMAT, with_entry, _TOO_SHORT, says=("truncated",)),
        *each(Expected.FORMAT, in_zip64, _ZIP64, says=("data/0",)),
        *each(Expected.FORMAT, with_header, _LOCAL, says=("archive/data/0",)),
        *each(
            Expected.FORMAT,
            with_header,
            {"sizes all ones in the local header without zip64": _ALL_ONES},
            says=("truncated",),
        ),
        *each(
            Expected.FORMAT,
            with_header,
            {"extra length of version's local header, one more": {"which": VERSION, "extra_size": 65}},
            says=("archive/version",),
        ),
        *each(Expected.FORMAT, partial(with_header, DATA_PKL), _OF_DATA_PKL, says=("archive/data.pkl",)),
        *each(
            Expected.FORMAT,
            partial(with_entry, DATA_PKL),
            {
                "directory bit on data.pkl": {"attributes": 0x10},
                "offset of data.pkl is that of a storage": {"header": SECOND},
                "name of data.pkl in the directory only": {"name": b"archive/data.old"},
            },
        ),
        *each(
            Expected.FORMAT,
            with_more,
            {
                "storage on another one's bytes": [
                    Entry("archive/data/1", b"", central={"header": SECOND, **sizes(64)})
                ],
                "storage whose header lies in another one's data": [
                    Entry("archive/data/1", b"", central={"header": SECOND + 60})
                ],
                "entry on another one's bytes, of size 0": [
                    Entry("archive/x", b"", central={"header": SECOND})
                ],
            },
            says=("overlaps",),
        ),
        *each(
            Expected.UNSUPPORTED,
            with_both,
            {
                f"flag of {what}: {flag}": {"which": which, "flags": bits}
                for what, which in (("data.pkl", DATA_PKL), ("a storage", DATA_0), ("version", VERSION))
                for flag, bits in _FLAGS.items()
            },
            says=("archive/",),
        ),
    ),
)
