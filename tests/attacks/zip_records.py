"""Compressed records, names of records, and the records that torch itself looks for."""

import gzip
import zlib
from functools import partial

import torch
from assembler import DATA, Entry, archive, checkpoint, deflate, entries, name, pickle, storage, tensor, zip64

from attacks.attack import MEBIBYTE, Attack, Expected, Family
from attacks.zip_parts import (
    DATA_0,
    DATA_PKL,
    ONES,
    VERSION,
    changed,
    each,
    made,
    repeated,
    wanting,
    with_more,
    with_record,
    without,
)

SQUEEZED = deflate(DATA)
MOST = 1032  # bytes that DEFLATE makes of one at most
METHODS = {
    1: "shrunk", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 99: "AES", 65535: "unknown",
}  # fmt: skip


def deflated(stored, size=64, which=DATA_0):
    """Return a checkpoint with a record of these deflated bytes, which inflate to `size` if one believes it."""
    numbers = {"size": size}
    if size >= ONES:
        numbers = {"size": ONES, "stored_size": ONES, "extra": zip64(size, len(stored))}
    records = wanting(size) if which == DATA_0 else entries()
    return archive(
        changed(which, method=8, stored=stored, local=numbers, central=numbers, align=1, records=records)
    )


def opcodes(unit, head=b"\x80\x02", tail=b"."):
    """Return a checkpoint whose data.pkl inflates to 128 MiB of the same opcodes."""
    part = unit * (MEBIBYTE // len(unit))
    size = len(head) + 128 * len(part) + len(tail)
    return deflated(repeated(part, 128, head, tail), size, DATA_PKL)


def zeros(mebibytes):
    """Return a checkpoint of a deflated storage of zeros, a thousandth of its size."""
    numel = mebibytes * MEBIBYTE // 4
    value = pickle(tensor(storage(numel=numel), 0, (numel,)))
    squeezed = repeated(bytes(MEBIBYTE), mebibytes)
    return archive(
        changed(
            DATA_0, method=8, stored=squeezed, local={"size": mebibytes * MEBIBYTE},
            central={"size": mebibytes * MEBIBYTE}, records=entries(value),
        )
    )  # fmt: skip


_BROKEN = {
    "content is floats": (DATA,),
    "content is all ones": (b"\xff" * 64,),
    "content has a header of zlib": (zlib.compress(DATA),),
    "content has a header of gzip": (gzip.compress(DATA, mtime=0),),
    "stream cut by one byte": (SQUEEZED[:-1],),
    "stream cut by three bytes": (SQUEEZED[:-3],),
    "stream cut to one byte": (SQUEEZED[:1],),
    "stream without its last block": (repeated(DATA, 1)[:-2],),
    "stream with a byte behind it": (SQUEEZED + b"x",),
    "stream with another one behind it": (SQUEEZED + SQUEEZED,),
    "stream that reaches back before its beginning": (b"\x03\x02\x00",),
    "empty stream": (b"",),
    "stream gives a byte more": (deflate(DATA + b"x"),),
    "stream gives a byte less": (deflate(DATA[:-1]),),
    "stream gives nothing": (deflate(b""),),
    "stream gives 1 MiB": (deflate(bytes(MEBIBYTE)),),
    "stream gives 64 bytes of 4096": (SQUEEZED, 4096),
    "stream gives 64 bytes of 16 MiB, which it could": (SQUEEZED + bytes(16300), 16 * MEBIBYTE),
    "record claims more than DEFLATE can give": (SQUEEZED, MOST * (len(SQUEEZED) + 1) + 64),
    "record claims 2 GiB": (SQUEEZED, 2**31),
    "record claims 1 TiB": (SQUEEZED, 2**40),
    "record claims 2^63 bytes": (SQUEEZED, 2**63),
    "record claims 2^64 - 1 bytes": (SQUEEZED, 2**64 - 1),
    "record claims 0 bytes": (SQUEEZED, 0),
    "data.pkl: content is a pickle": (checkpoint()[64:320], 256, DATA_PKL),
    "data.pkl: stream cut": (deflate(bytes(512))[:-1], 512, DATA_PKL),
    "data.pkl: claims 1 TiB": (deflate(bytes(512)), 2**40, DATA_PKL),
    "data.pkl: stream gives more": (deflate(bytes(512)), 256, DATA_PKL),
    "version: stream cut": (deflate(b"3\n")[:-1], 2, VERSION),
    "version: claims 64 of 2 bytes": (deflate(b"3\n"), 64, VERSION),
}

COMPRESSION = Family(
    "Compressed records",
    (
        *(
            Attack(
                f"{what}: method {method} ({title})",
                partial(with_record, which, method=method, stored=DATA),
                Expected.UNSUPPORTED,
                (f"compression method {method}", record),
            )
            for what, which, record in (
                ("storage", DATA_0, "archive/data/0"),
                ("data.pkl", DATA_PKL, "data.pkl"),
            )
            for method, title in METHODS.items()
        ),
        *each(Expected.FORMAT, deflated, _BROKEN),
        *made(
            Expected.FORMAT,
            {
                "stream gives 64 MiB of 64 bytes": lambda: deflated(repeated(bytes(MEBIBYTE), 64)),
                "stream gives 1 GiB of 64 bytes": lambda: deflated(repeated(bytes(MEBIBYTE), 1024)),
                "data.pkl: more than 1 GiB": lambda: deflated(bytes(2**20 + 2**14), 2**30 + 1, DATA_PKL),
            },
        ),
        Attack(
            "data.pkl: 128 MiB of NONE in 130 kB",
            lambda: opcodes(b"N"),
            Expected.FORMAT,
            ("is deflated to",),
            memory=192 * MEBIBYTE,
        ),
        Attack(
            "data.pkl: 128 MiB of empty dicts in 130 kB",
            lambda: opcodes(b"}" * 1023 + b"e(", b"\x80\x02](", b"e."),
            Expected.FORMAT,
            memory=192 * MEBIBYTE,
        ),
        Attack(
            "storage of 16 MiB of zeros in 16 kB",
            partial(zeros, 16),
            Expected.EQUAL,
            value=lambda: torch.zeros(16 * MEBIBYTE // 4),
        ),
    ),
)


def version(content):
    return with_record(VERSION, data=content)


def with_byteorder(content, title="byteorder", data=DATA):
    return archive([*entries(storages={"0": data}), Entry(f"archive/{title}", content)])


def named(change):
    """Return a checkpoint of which the names of all records are changed."""
    return archive([Entry(change(record.name), record.data) for record in entries()])


SWAPPED = b"".join(DATA[i : i + 4][::-1] for i in range(0, len(DATA), 4))
EVAL = pickle(name("builtins", "eval"))
CONSTANTS = Entry("archive/constants.pkl", b"\x80\x02).")

_HARMLESS = {
    "../ in the name of another record": [Entry("archive/../../../etc/passwd", b"x")],
    "newline in the name of another record": [Entry("archive/a\nb", b"x")],
    "60 000 characters in the name of another record": [Entry("archive/" + "x" * 60_000, b"x")],
    "name with two slashes": [Entry("archive//data.pkl", b"x")],
    "name that goes on behind data.pkl": [Entry("archive/data.pkl.sig", b"x")],
    "data.pkl in a folder of its own": [Entry("archive/data/data.pkl", EVAL)],
    "storage that nobody asks for": [Entry("archive/data/1", bytes(64))],
    "byteorder little": [Entry("archive/byteorder", b"little")],
    "format version and alignment that are no numbers": [
        Entry("archive/.format_version", b"x"),
        Entry("archive/.storage_alignment", b"-1"),
    ],
    "constants.pkl in capitals": [Entry("archive/CONSTANTS.PKL", b"\x80\x02).")],
    "constants.pkl in a folder": [Entry("archive/data/constants.pkl", b"\x80\x02).")],
}
_NAMES = {
    "absolute name": [Entry("/archive/x", b"")],
    "../ before the root folder": [Entry("../archive/x", b"")],
    "backslash for a slash": [Entry("archive\\x", b"")],
    "backslash within the root folder": [Entry("archive/a\\b", b"")],
    "empty name": [Entry("", b"")],
    "name is the root folder's": [Entry("archive", b"")],
    "second root folder": [Entry("other/x", b"")],
    "root folder in another case": [Entry("ARCHIVE/x", b"")],
    "root folder goes on": [Entry("archive2/x", b"")],
    "name is not UTF-8": [Entry(b"archive/\xff", b"")],
    "name is overlong UTF-8": [Entry(b"archive/\xc0\xaf", b"")],
    "name has a surrogate": [Entry(b"archive/\xed\xa0\x80", b"")],
    "NUL in the name of another record": [Entry("archive/x\0y", b"")],
    "NUL behind the name of a storage": [Entry("archive/data/0\0x", b"")],
    "NUL behind data.pkl": [Entry("archive/data.pkl\0.txt", EVAL)],
    "two data.pkl with other content": [Entry("archive/data.pkl", pickle({}))],
    "two data.pkl with the same content": [Entry("archive/data.pkl", entries()[DATA_PKL].data)],
    "two data/0 with other content": [Entry("archive/data/0", bytes(64))],
    "two version": [Entry("archive/version", b"3\n")],
    "two of a record that nobody asks for": [Entry("archive/x", b""), Entry("archive/x", b"")],
    "DATA.PKL beside data.pkl": [Entry("archive/DATA.PKL", pickle({}))],
    "DATA/0 beside data/0": [Entry("archive/DATA/0", bytes(64))],
    "folder that holds bytes": [Entry("archive/folder/", b"x")],
    "fault of the archive beside a pickle that is refused": [Entry("archive/DATA.pkl", EVAL)],
    "terminal's escapes in the name of a faulty entry": [
        Entry("archive/\x1b[2J\u202e\n" + "x" * 1000, b"", central={"disk": 1})
    ],
}
_NAMED = {
    "no root folder": [lambda title: title.partition("/")[2]],
    "root folder without a name": [lambda title: title.removeprefix("archive")],
    "names in capitals only": [lambda title: "archive" + title[7:].upper()],
    "names with backslashes": [lambda title: title.replace("/", "\\")],
    "names with a space behind them": [lambda title: title + " "],
}  # fmt: skip
_VERSIONS = {
    "empty": b"", "a word": b"three", "0": b"0\n", "-1": b"-1\n", "+3": b"+3\n", "3 and a letter": b"3x",
    "3.0": b"3.0\n", "3 behind a space": b" 3", "0x3": b"0x3", "in digits beyond ASCII": "\u0663\n".encode(),
    "NUL behind 3": b"3\0",
    "of 21 digits": b"1" * 21, "of a megabyte": b"1" * MEBIBYTE,
}  # fmt: skip
_NEWER = {
    "11": b"11\n", "99999": b"99999\n", "of 20 digits": b"12345678901234567890", "2^64 + 3": b"18446744073709551619\n",
    "2^32 + 3": b"4294967299\n",
}  # fmt: skip
_OLDER = {"1": b"1\n", "10": b"10\n", "without a newline": b"3", "with zeros before it": b"0003\n"}
_ORDERS = {
    "middle": b"middle",
    "empty": b"",
    "Little": b"Little",
    "little and a newline": b"little\n",
    "NUL": b"big\0",
}
_MISSING = {"data.pkl": DATA_PKL, "data/0": DATA_0, "version": VERSION}

RECORDS = Family(
    "Names of records, and torch's own records",
    (
        *each(Expected.EQUAL, with_more, _HARMLESS),
        *each(Expected.FORMAT, with_more, _NAMES),
        Attack(
            "root folder ..", partial(named, lambda title: title.replace("archive", "..")), Expected.EQUAL
        ),
        *each(Expected.FORMAT, named, _NAMED),
        *(
            Attack(f"{record} missing", partial(without, which), Expected.FORMAT, (record, "missing"))
            for record, which in _MISSING.items()
        ),
        Attack(
            "version missing beside constants.pkl",
            partial(archive, [*entries()[:VERSION], CONSTANTS]),
            Expected.FORMAT,
            ("version",),
        ),
        Attack("data.pkl empty", partial(with_record, DATA_PKL, data=b""), Expected.FORMAT),
        *(
            Attack(f"version {what}", partial(version, text), Expected.FORMAT, ("version",))
            for what, text in _VERSIONS.items()
        ),
        *(
            Attack(f"version {what}", partial(version, text), Expected.UNSUPPORTED, ("newer",))
            for what, text in _NEWER.items()
        ),
        *(Attack(f"version {what}", partial(version, text), Expected.EQUAL) for what, text in _OLDER.items()),
        *(
            Attack(f"byteorder {what}", partial(with_byteorder, text), Expected.FORMAT, ("byte order",))
            for what, text in _ORDERS.items()
        ),
        Attack(
            "byteorder of a megabyte",
            partial(with_byteorder, b"big" * MEBIBYTE),
            Expected.FORMAT,
            ("byteorder",),
        ),
        Attack("byteorder big", partial(with_byteorder, b"big", data=SWAPPED), Expected.EQUAL),
        Attack(
            "BYTEORDER big, in capitals",
            partial(with_byteorder, b"big", "BYTEORDER"),
            Expected.FORMAT,
            ("BYTEORDER",),
        ),
        *each(
            Expected.UNSUPPORTED,
            archive,
            {
                "constants.pkl": [[*entries(), CONSTANTS]],
                "constants.pkl before data.pkl": [[CONSTANTS, *entries()]],
                "constants.pkl that is no pickle": [[*entries(), Entry("archive/constants.pkl", b"")]],
                "constants.pkl beside a pickle that is refused": [[*entries(EVAL), CONSTANTS]],
                "constants.pkl deflated": [
                    [*entries(), Entry("archive/constants.pkl", b"\x80\x02).", method=8)]
                ],
            },
            says=("jit.load",),
        ),
    ),
)
