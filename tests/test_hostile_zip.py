"""Archives that are odd but valid, cut, joined, or two things at once: the threat list, §7.5 and §7.6."""

import io
import struct
import zipfile
import zlib

import assembler as a
import hostile
import pytest
import torch
from assembler import Entry, checkpoint, entries

import zerocopy


def weight(path):
    return zerocopy.load(path)["weight"]


def described(extra=b"\x01\x02\x03\x04", sizes=(64, 64)):
    """Records as torch.save writes them: flag bit 3, no sizes in the local header, but behind the data."""
    records = entries()
    for record in records:
        head = {"flags": 0x0808, "size": 0, "stored_size": 0, "crc": 0}
        record.local, record.central = head, {"flags": 0x0808}
        size = len(record.data) if sizes is None else sizes[0]
        record.descriptor = struct.pack("<4s3I", b"PK\7\x08", zlib.crc32(record.data), size, size)
    return records


def local_zip64():
    records = entries()
    for record in records:
        wide = {"size": 2**32 - 1, "stored_size": 2**32 - 1}
        record.align = 1
        record.local = {**wide, "extra": a.zip64(len(record.data), len(record.data))}
        record.central = {**wide, "extra": a.zip64(len(record.data), len(record.data))}
    return records


def newer():
    return [
        *entries(),
        Entry("archive/byteorder", b"little"),
        Entry("archive/.format_version", b"1"),
        Entry("archive/.storage_alignment", b"64"),
        Entry("archive/.data/serialization_id", b"0" * 40),
        Entry("archive/something/else", b"?"),
    ]


def changed(index, **fields):
    records = entries()
    for key, value in fields.items():
        setattr(records[index], key, value)
    return records


def each(**fields):
    records = entries()
    for record in records:
        for key, value in fields.items():
            setattr(record, key, value)
    return records


def folders():
    return [*entries(), Entry("archive/", b""), Entry("archive/data/", b"", central={"attributes": 0x10})]


VALID = {
    "plain": checkpoint,
    "zip64 end record": lambda: checkpoint(wide={}),
    "zip64 end record, all deferred": lambda: checkpoint(
        wide={}, entries=0xFFFF, here=0xFFFF, size=2**32 - 1, offset=2**32 - 1
    ),
    "descriptors": lambda: a.archive(described(sizes=None)),
    "descriptors that lie": lambda: a.archive(described()),
    "comment": lambda: checkpoint(comment=b"a comment"),
    "comment of 65535 bytes": lambda: checkpoint(comment=b"x" * 65535),
    "directory in another order": lambda: checkpoint(reverse=True),
    "folder entries": lambda: a.archive(folders()),
    "records of newer torch": lambda: a.archive(newer()),
    "unknown extra field": lambda: a.archive(each(central={"extra": b"\x99\x99\4\0abcd"})),
    "sizes in zip64 fields": lambda: a.archive(local_zip64()),
    "no alignment": lambda: a.archive(each(align=1)),
    "all deflated": lambda: a.archive(each(method=8)),
    "data.pkl deflated": lambda: a.archive(changed(0, method=8)),
    "storage deflated": lambda: a.archive(changed(1, method=8)),
    "CRC 0": lambda: a.archive(each(central={"crc": 0}, local={"crc": 0})),
    "CRC of the storage wrong": lambda: a.archive(changed(1, central={"crc": 1}, local={"crc": 1})),
    "CRC of data.pkl wrong": lambda: a.archive(changed(0, central={"crc": 1}, local={"crc": 2})),
    "odd versions": lambda: a.archive(
        each(central={"version": 65535, "made_by": 65535}, local={"version": 0})
    ),
    "entry comments": lambda: a.archive(each(central={"comment": b"hello"})),
    "extra record ../": lambda: a.archive([*entries(), Entry("archive/../../../etc/passwd", b"x")]),
    "extra record with a newline": lambda: a.archive([*entries(), Entry("archive/a\nb", b"x")]),
    "extra record of 60 000 bytes": lambda: a.archive([*entries(), Entry("archive/" + "x" * 60_000, b"x")]),
}


@pytest.mark.parametrize("case", VALID)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_loads_equal(case, backend, tmp_path):
    (tmp_path / "x.pt").write_bytes(VALID[case]())
    loaded = zerocopy.load(tmp_path / "x.pt", backend=backend)
    assert torch.equal(loaded["weight"], torch.arange(16.0))


@pytest.mark.parametrize("case", ["plain", "descriptors", "zip64 end record"])
def test_assembler_writes_what_others_read(case, tmp_path):
    (tmp_path / "x.pt").write_bytes(VALID[case]())
    assert torch.equal(torch.load(tmp_path / "x.pt")["weight"], torch.arange(16.0))
    if case == "plain":
        assert zipfile.ZipFile(tmp_path / "x.pt").testzip() is None


def test_repacked_by_zipfile(tmp_path):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.pt", "w", method) as file:
            for record in entries():
                file.writestr(record.name, record.data)
        assert torch.equal(weight(tmp_path / "x.pt"), torch.arange(16.0))


def test_sparse_file_of_a_tebibyte(tmp_path):
    """Maps, and reads nothing: the pickle and the directory are all that is looked at."""
    numel = 2**38
    path = tmp_path / "x.pt"
    records = [Entry("archive/data.pkl", a.pickle(a.tensor(a.storage(numel=numel), numel - 1, (1,))))]
    front = a.archive([*records, Entry("archive/version", b"3\n")])
    directory = struct.unpack("<I", front[-6:-2])[0]
    body, tail = front[:directory], front[directory:-22]
    size = 4 * numel
    wide = {"size": 2**32 - 1, "stored_size": 2**32 - 1}
    sizes = a.zip64(size, size)
    padding = -(len(body) + 30 + len("archive/data/0") + len(sizes) + 4) % 64
    aligned = sizes + struct.pack("<2sH", b"FB", padding) + bytes(padding)
    big = Entry("archive/data/0", b"", local={**wide, "extra": aligned}, central={**wide, "extra": sizes})
    header, entry = a._local(big, len(body)), a._central(big, len(body))
    central = tail + entry
    at = len(body) + len(header) + size
    fields = {"entries": 3, "size": len(central), "offset": at}
    end = a._zip64_end(fields, at + len(central))
    last = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 3, 3, len(central), 2**32 - 1, 0)
    try:
        with path.open("wb") as file:
            file.write(body + header)
            file.seek(at)
            file.write(central + end + last)
    except OSError as error:
        pytest.skip(f"no sparse file of that size here: {error}")
    assert zerocopy.load(path, backend="mmap").tolist() == [0.0]


def damaged(data, at, new=b"\0"):
    return data[:at] + new + data[at + len(new) :]


def hidden(other):
    return checkpoint(gap=other)


def legacy():
    file = io.BytesIO()
    torch.save({"weight": torch.arange(16.0)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


EMPTY_END = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)
REFUSED = {
    **{f"cut at {n}/16": lambda n=n: checkpoint()[: len(checkpoint()) * n // 16] for n in range(1, 16)},
    "last byte missing": lambda: checkpoint()[:-1],
    "end record missing": lambda: checkpoint()[:-22],
    "one byte": lambda: b"P",
    "magic only": lambda: b"PK\3\4",
    "empty archive": lambda: EMPTY_END,
    "empty file": lambda: b"",
    "zeros": lambda: bytes(4096),
    "PNG": lambda: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "first signature damaged": lambda: damaged(checkpoint(), 0),
    "HTML": lambda: b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
    "git-lfs pointer": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
    "one byte before": lambda: checkpoint(before=b"x"),
    "stub before": lambda: checkpoint(before=b"#!" + bytes(4094)),
    "PK34 before": lambda: checkpoint(before=b"PK\3\4" + bytes(28)),
    "one byte after": lambda: checkpoint(after=b"x"),
    "100 000 bytes after": lambda: checkpoint(after=bytes(100_000)),
    "two archives joined": lambda: checkpoint() + checkpoint(storages={"0": bytes(64)}),
    "another archive hidden": lambda: hidden(checkpoint(storages={"0": bytes(64)})),
    "bytes hidden after a record": lambda: a.archive(changed(1, after=b"x")),
    "16 bytes hidden after a record": lambda: a.archive(changed(1, after=bytes(16))),
    "100 000 bytes hidden after a record": lambda: a.archive(changed(1, after=bytes(100_000))),
    "comment with an end record": lambda: checkpoint(comment=EMPTY_END),
    "comment with an end record and more": lambda: checkpoint(
        comment=EMPTY_END[:-2] + struct.pack("<H", 5) + b"12345"
    ),
    "zip, then legacy": lambda: checkpoint() + legacy(),
    "legacy, then zip": lambda: legacy() + checkpoint(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    assert type(hostile.refusal(tmp_path / "x.pt", REFUSED[case]())) is zerocopy.FormatError


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("cut at 8/16", "truncated"),
        ("end record missing", "incomplete download"),
        ("empty file", "empty"),
        ("HTML", "HTML"),
        ("git-lfs pointer", "git lfs pull"),
    ],
)
def test_says_what_the_file_is(case, said, tmp_path):
    assert said in str(hostile.refusal(tmp_path / "x.pt", REFUSED[case]()))


def test_pickle_that_is_a_zip(tmp_path):
    assert isinstance(hostile.refusal(tmp_path / "x.pt", checkpoint(checkpoint())), hostile.CLEAN)


def test_rest_of_a_file_object(tmp_path):
    """The archive begins where the file object stands; what is before is not ours."""
    (tmp_path / "x.pt").write_bytes(b"junk" + checkpoint())
    with (tmp_path / "x.pt").open("rb") as file:
        file.seek(4)
        assert torch.equal(zerocopy.load(file)["weight"], torch.arange(16.0))
