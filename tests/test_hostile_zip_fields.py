"""Archives whose headers lie: the threat list, §7.7 to §7.10."""

import assembler as a
import hostile
import pytest
from assembler import DATA, Entry, checkpoint, deflate, entries, zip64

import zerocopy

ONES = 2**32 - 1
#: Where the local header of data/0 begins.
SECOND = len(a.archive(entries()[:1])) - 22 - 46 - len("archive/data.pkl")


def data0(**central):
    """A checkpoint in which the directory says something else of data/0."""
    return one(central=central)


def wide(size=64, stored=64, *header):
    """data/0 with all its numbers in a zip64 field."""
    fields = {"size": ONES, "stored_size": ONES} | ({"header": ONES} if header else {})
    return data0(**fields, extra=zip64(size, stored, *header))


def one(index=1, **fields):
    records = entries()
    for key, value in fields.items():
        setattr(records[index], key, value)
    return a.archive(records)


def more(*records):
    return a.archive([*entries(), *records])


def without(index):
    return a.archive([record for i, record in enumerate(entries()) if i != index])


def version(content):
    return one(2, data=content)


DIRECTORY = {
    "count too high": checkpoint(entries=4, here=4),
    "count too low": checkpoint(entries=2, here=2),
    "count 0": checkpoint(entries=0, here=0),
    "count 0xFFFF without zip64": checkpoint(entries=0xFFFF, here=0xFFFF),
    "46 spare bytes": checkpoint(spare=bytes(46)),
    "46 spare bytes, an entry": checkpoint(spare=b"PK\1\2" + bytes(42)),
    "size too big": checkpoint(size=10_000),
    "size one more": checkpoint(size=len(checkpoint()) - 22 - 512 + 1),
    "size too small": checkpoint(size=46),
    "size 0": checkpoint(size=0),
    "offset past the end": checkpoint(offset=10**9),
    "offset all ones without zip64": checkpoint(offset=ONES),
    "size all ones without zip64": checkpoint(size=ONES),
    "offset 0": checkpoint(offset=0),
    "offset one more": checkpoint(offset=SECOND + 1),
    "disk 1": checkpoint(disk=1),
    "directory's disk 1": checkpoint(directory_disk=1),
    "fewer entries here": checkpoint(here=2),
    "zip64: disk 1": checkpoint(wide={"disk64": 1}),
    "zip64: directory's disk 1": checkpoint(wide={"directory_disk64": 1}),
    "zip64: locator's disk 1": checkpoint(wide={"locator_disk": 1}),
    "zip64: 2 disks": checkpoint(wide={"disks": 2}),
    "entry on disk 1": data0(disk=1),
    "entry on disk 65535": data0(disk=65535),
    "comment past the end": checkpoint(comment_size=1),
    "comment longer than its size": checkpoint(comment=b"abc", comment_size=1),
    "zip64: count 2^32": checkpoint(wide={"entries64": 2**32, "here64": 2**32}, entries=0xFFFF, here=0xFFFF),
    "zip64: count 2^63": checkpoint(wide={"entries64": 2**63, "here64": 2**63}, entries=0xFFFF, here=0xFFFF),
    "zip64: another count": checkpoint(wide={"entries64": 2, "here64": 2}),
    "zip64: size 2^63": checkpoint(wide={"size64": 2**63}, size=ONES),
    "zip64: offset 2^64-1": checkpoint(wide={"offset64": 2**64 - 1}, offset=ONES),
    "zip64: offset + size wraps": checkpoint(
        wide={"offset64": 2**64 - 100, "size64": 200}, offset=ONES, size=ONES
    ),
    "zip64: record too small": checkpoint(wide={"record_size": 43}),
    "zip64: record of 2^64-1": checkpoint(wide={"record_size": 2**64 - 1}),
    "zip64: record too big": checkpoint(wide={"record_size": 45}),
    "zip64: locator past the end": checkpoint(wide={"record_at": 10**9}),
    "zip64: locator wraps": checkpoint(wide={"record_at": 2**64 - 8}),
    "zip64: locator at a local header": checkpoint(wide={"record_at": 0}),
    "name length 65535": data0(name_size=65535),
    "extra length 65535": data0(extra_size=65535),
    "comment length 65535": data0(comment_size=65535),
    "signature of an entry": data0(signature=b"PK\1\3"),
}

ENTRIES = {
    "offset past the end": data0(header=10**8),
    "header cut by the end": data0(header=len(checkpoint()) - 10),
    "offset all ones, no zip64": data0(header=ONES),
    "zip64 offset 2^63": wide(64, 64, 2**63),
    "zip64 offset 2^64-1": wide(64, 64, 2**64 - 1),
    "zip64 offset, +30 wraps": wide(64, 64, 2**64 - 30),
    "offset into data": data0(header=SECOND + 64),
    "offset into the directory": data0(header=len(checkpoint()) - 22 - 100),
    "offset of another record": data0(header=0),
    "zip64 sizes 2^63": wide(2**63, 2**63),
    "zip64 sizes 2^64-1": wide(2**64 - 1, 2**64 - 1),
    "zip64 size wraps to the start": wide(2**64 - SECOND - 44, 2**64 - SECOND - 44),
    "zip64 stored 0 of 64": wide(64, 0),
    "stored 8 of 64": data0(stored_size=8),
    "stored 64 of 8": data0(size=8),
    "sizes all ones, no zip64": data0(size=ONES, stored_size=ONES),
    "zip64 field too short": data0(size=ONES, stored_size=ONES, extra=zip64(64)),
    "zip64 field longer than the extra data": data0(
        size=ONES, stored_size=ONES, extra=b"\1\0\x10\0" + bytes(8)
    ),
    "zip64 field empty": data0(extra=zip64()),
    "zip64 field that nothing needs": data0(extra=zip64(64, 64)),
    "two zip64 fields": data0(size=ONES, stored_size=ONES, extra=zip64(64, 64) + zip64(8, 8)),
    "size past the end": data0(size=10**8, stored_size=10**8),
    "size into the directory": data0(size=400, stored_size=400),
    "size into the next record": data0(size=100, stored_size=100),
    "size smaller": data0(size=60, stored_size=60),
    "local sizes differ": one(local={"size": 60, "stored_size": 60}),
    "local sizes 0 without descriptor": one(local={"size": 0, "stored_size": 0}),
    "local size all ones without field": one(local={"size": ONES, "stored_size": ONES}, align=1),
    "local method differs": one(local={"method": 8}),
    "local name differs": one(local={"name": b"archive/data/1"}),
    "local name of data.pkl differs": one(0, local={"name": b"archive/data.pkx"}),
    "local name in another case": one(0, local={"name": b"archive/DATA.PKL"}),
    "local name length +16": one(local={"name_size": 30}),
    "local extra length 0": one(local={"extra_size": 0}),
    "local extra length +1": one(2, local={"extra_size": 65}),
    "local name length 65535": one(local={"name_size": 65535}),
    "local extra length 65535": one(local={"extra_size": 65535}),
    "local signature": one(local={"signature": b"PK\3\5"}),
    "directory bit": data0(attributes=0x10),
    "encryption in the local header only": one(local={"flags": 1}),
    "data/1 on data/0": more(
        Entry("archive/data/1", b"", central={"header": SECOND, "size": 64, "stored_size": 64})
    ),
    "data/1 inside data/0": more(Entry("archive/data/1", b"", central={"header": SECOND + 60})),
    "deflated, content is not": one(method=8, stored=b"\xff" * 64),
    "deflated, cut": one(method=8, stored=deflate(DATA)[:-3]),
    "deflated, bytes after": one(method=8, stored=deflate(DATA) + b"x"),
    "deflated, empty": one(method=8, stored=b""),
    "deflated, more than it says": one(method=8, stored=deflate(bytes(2**20))),
    "deflated, less than it says": one(method=8, data=bytes(4096), stored=deflate(bytes(64))),
    "deflated, ratio": one(method=8, central={"size": 2**31}, local={"size": 2**31}),
}

UNSUPPORTED = {
    **{f"method {m}": one(method=m, stored=DATA) for m in (1, 9, 12, 14, 93, 95, 99, 65535)},
    **{
        f"flag {flag:#x} of {what}": one(i, central={"flags": flag}, local={"flags": flag})
        for flag in (0x1, 0x20, 0x40, 0x2000)
        for i, what in ((0, "data.pkl"), (1, "data/0"))
    },
    "version 11": version(b"11\n"),
    "version 99999": version(b"99999\n"),
    "version 2^64+3": version(b"18446744073709551619\n"),
    "constants.pkl": more(Entry("archive/constants.pkl", b"\x80\x02).")),
}

NAMES = {
    "absolute": more(Entry("/archive/x", b"")),
    "backslash": more(Entry("archive\\x", b"")),
    "backslash inside": more(Entry("archive/a\\b", b"")),
    "empty": more(Entry("", b"")),
    "the root alone": more(Entry("archive", b"")),
    "second root": more(Entry("other/x", b"")),
    "longer root": more(Entry("archive2/x", b"")),
    "not UTF-8": more(Entry(b"archive/\xff", b"")),
    "NUL": more(Entry("archive/data/0\0x", b"")),
    "no folder": a.archive([Entry(record.name.split("/", 1)[1], record.data) for record in entries()]),
    "root is empty": a.archive(
        [Entry(record.name.replace("archive", ""), record.data) for record in entries()]
    ),
    "two data.pkl": more(Entry("archive/data.pkl", a.pickle({}))),
    "two data/0": more(Entry("archive/data/0", bytes(64))),
    "DATA.PKL beside data.pkl": more(Entry("archive/DATA.PKL", a.pickle({}))),
    "only upper case": a.archive([Entry("archive/" + r.name[8:].upper(), r.data) for r in entries()]),
    "a folder that holds bytes": more(Entry("archive/folder/", b"x")),
    "data/0 missing": without(1),
    "data.pkl missing": without(0),
    "version missing": without(2),
    "version empty": version(b""),
    "version text": version(b"three"),
    "version 0": version(b"0\n"),
    "version -1": version(b"-1\n"),
    "version 3x": version(b"3x"),
    "version of 21 digits": version(b"1" * 21),
    "version of a megabyte": version(b"1" * 2**20),
    "byteorder middle": more(Entry("archive/byteorder", b"middle")),
    "byteorder empty": more(Entry("archive/byteorder", b"")),
    "byteorder Little": more(Entry("archive/byteorder", b"Little")),
}

FORMAT = {
    f"{group}: {case}": data
    for group, cases in {"directory": DIRECTORY, "entry": ENTRIES, "name": NAMES}.items()
    for case, data in cases.items()
}


@pytest.mark.parametrize("case", FORMAT)
def test_format_error(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", FORMAT[case])) is zerocopy.FormatError


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", UNSUPPORTED[case])) is zerocopy.UnsupportedError


def test_container_outranks_the_pickle(tmp_path):
    """A fault of the archive is reported although the pickle names what is refused."""
    data = a.archive([*entries(a.pickle(a.name("builtins", "eval"))), Entry("archive/DATA.pkl", b"")])
    assert type(hostile.refusal(tmp_path / "x.pt", data)) is zerocopy.FormatError


def test_torchscript_is_refused_before_its_pickle(tmp_path):
    data = a.archive([*entries(a.pickle(a.name("builtins", "eval"))), Entry("archive/constants.pkl", b"")])
    error = hostile.refusal(tmp_path / "x.pt", data)
    assert type(error) is zerocopy.UnsupportedError
    assert "jit.load" in str(error)


def test_big_endian_loads_swapped(tmp_path):
    data = a.archive([*entries(storages={"0": b"".join(DATA[i : i + 4][::-1] for i in range(0, 64, 4))}),
                      Entry("archive/byteorder", b"big")])  # fmt: skip
    (tmp_path / "x.pt").write_bytes(data)
    assert zerocopy.load(tmp_path / "x.pt")["weight"].tolist() == [float(i) for i in range(16)]


def test_names_are_quoted_in_messages(tmp_path):
    name = "archive/\x1b[2J\u202e" + "x" * 1000
    error = hostile.refusal(tmp_path / "x.pt", more(Entry(name, b"", central={"disk": 1})))
    assert str(error).isascii() and "x" * (hostile.LONGEST_ECHO + 1) not in str(error)
