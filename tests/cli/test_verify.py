"""``zerocopy verify``: damage of every kind is named, whole files are fine, and ``--compare`` tells what differs."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import subprocess
import sys
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import legacy_files
import pytest
import torch
from archives import big_endian, payload_offset, rezip
from assembler import DATA, Entry, archive, checkpoint, entries, good, name, storage, tensor
from assembler import pickle as stream
from attacks.hdf5 import attributed, external, foreign, hdf5, short, swapped, table, without
from attacks.hdf5 import storage as storage_of_hdf5
from commands import Capture, run_without_torch
from conftest import Child, Saver, saved_bytes

import zerocopy
from zerocopy.__main__ import main
from zerocopy.cli import comparison

STATE = {"weight": torch.arange(5000.0), "flags": torch.tensor([True, False, True]), "empty": torch.ones(0)}


def verify(path: Path, capsys: Capture, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the one entry of ``files``."""
    status = main(["verify", "--json", *options, str(path)])
    printed = capsys.readouterr()
    assert printed.out.isascii()
    report = json.loads(printed.out)
    assert report["schema"] == 1 and report["command"] == "verify"
    (entry,) = report["files"]
    assert report["verdict"] == entry["verdict"] == ["fine", "damaged", "trouble"][status]
    assert status == 2 or printed.err == ""
    return status, entry


def test_data_that_were_changed_in_place(tmp_path: Path, capsys: Capture) -> None:
    """Nobody can tell that from damage, so both is said; saved from that mapping the file has its checksums again."""
    path = tmp_path / "m.pt"
    zerocopy.save(STATE, path)
    before, status = path.read_bytes(), path.stat()
    state = zerocopy.load(path, mode="r+")
    zerocopy.open(path, mode="r+").get_tensor("weight")
    assert path.read_bytes() == before and path.stat().st_mtime_ns == status.st_mtime_ns
    state["weight"][3] = -1
    code, entry = verify(path, capsys)
    assert code == 1 and entry["reasons"] == [{"kind": "checksum", "text": "CRC-32 differs: archive/data/0"}]
    assert "changed in place" in entry["notes"][-1]
    zerocopy.save(state, path)
    assert verify(path, capsys)[0] == 0 and zerocopy.load(path)["weight"][3] == -1

    zerocopy.save(STATE, path, checksum=False)
    zerocopy.open(path, mode="r+")["weight"].neg_()
    code, entry = verify(path, capsys)
    assert code == 0 and len(entry["notes"]) == 1


@pytest.mark.parametrize(
    ("place", "bit"), [(8, 0x10), (8, 0x01), (10, 0x20)], ids=["flags", "encrypted", "method"]
)
def test_directory_that_cannot_be_read_is_trouble_and_never_fine(
    place: int, bit: int, tmp_path: Path, capsys: Capture
) -> None:
    """No checksum is compared then."""
    path, content = tmp_path / "m.pt", bytearray(saved_bytes(STATE))
    content[content.index(b"PK\1\2") + place] ^= bit
    path.write_bytes(content)
    code, entry = verify(path, capsys)
    assert code == 2 and entry["verdict"] == "trouble"


GOOD = {
    "zip": lambda: saved_bytes(STATE),
    "deflated": lambda: rezip(saved_bytes(STATE), zipfile.ZIP_DEFLATED),
    "unaligned": lambda: rezip(saved_bytes(STATE)),
    "big-endian": lambda: big_endian([torch.arange(9.0)]),
    "legacy": lambda: saved_bytes(STATE, _use_new_zipfile_serialization=False),
    "legacy without storages": lambda: saved_bytes([1], _use_new_zipfile_serialization=False),
    "module": lambda: saved_bytes(torch.nn.Linear(2, 3)),
    "large deflated": lambda: rezip(saved_bytes(torch.zeros(3_000_000)), zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("content", GOOD.values(), ids=GOOD)
def test_fine(content, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content())
    status, entry = verify(path, capsys, "--records")
    assert (status, entry["reasons"]) == (0, [])
    assert (
        entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        and entry["size"] == path.stat().st_size
    )


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_records_against_zipfile(compression: int, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(rezip(saved_bytes(STATE), compression))
    status, entry = verify(path, capsys, "--records")
    with zipfile.ZipFile(path) as source:
        wanted = [
            (info.filename, info.CRC, info.file_size, hashlib.sha256(source.read(info)).hexdigest())
            for info in source.infolist()
        ]
    assert status == 0
    assert [(r["name"], r["crc32"], r["size"], r["sha256"]) for r in entry["records"]] == wanted
    assert {r["state"] for r in entry["records"]} == {"ok"}
    assert all(r["crc32_recorded"] == r["crc32"] for r in entry["records"])


def test_records_of_a_legacy_file(save: Saver, capsys: Capture) -> None:
    path = save(STATE, _use_new_zipfile_serialization=False)
    _, entry = verify(path, capsys, "--records")
    hashes = {hashlib.sha256(STATE[key].numpy().tobytes()).hexdigest() for key in ("weight", "flags")}
    assert {r["sha256"] for r in entry["records"]} == hashes
    assert {r["state"] for r in entry["records"]} == {"no checksum"}
    assert "no checksums" in entry["notes"][0]


def flipped(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("record", ["data.pkl", "data/0", "data/1", "version"])
def test_a_flipped_bit_is_named(record: str, save: Saver, capsys: Capture) -> None:
    path = save(STATE)
    flipped(path, payload_offset(path, record))
    status, entry = verify(path, capsys)
    assert status == 1
    assert f"checkpoint/{record}" in " ".join(r["text"] for r in entry["reasons"] if r["kind"] == "checksum")
    assert main(["verify", str(path)]) == 1
    assert f"checkpoint/{record}" in capsys.readouterr().out


DAMAGED = {
    "cut": (checkpoint()[:-9], "truncated"),
    "hidden bytes": (checkpoint(gap=b"hidden"), "do not belong to a record"),
    "local name": (
        archive([*entries()[:1], Entry("archive/data/0", DATA, local={"name": b"archive/data/1"}), entries()[2]]),
        "disagree",
    ),
    "short record": (checkpoint(storages={"0": DATA[:-1]}), "its storage needs"),
    "wrong CRC": (archive([*entries()[:2], Entry("archive/version", b"3\n", central={"crc": 7})]), "CRC-32 differs"),
    "one CRC of 0": (archive([*entries()[:2], Entry("archive/version", b"3\n", central={"crc": 0})]), "CRC-32"),
    "broken deflate": (
        archive([*entries()[:1], Entry("archive/data/0", DATA, 8, stored=b"\xff" * 30), entries()[2]]), "inflate",
    ),
    "deflated to more": (
        archive([*entries()[:1], Entry("archive/data/0", DATA + b"x", 8, central={"size": 64}, local={"size": 64}),
                 entries()[2]]), "64 promised",
    ),
    "bytes after deflate": (
        archive([*entries()[:1], Entry("archive/data/0", DATA, 8, stored=zlib.compress(DATA, 9)[2:-4] + b"more"),
                 entries()[2]]), "after the deflated",
    ),
    "unfinished deflate": (
        archive([*entries()[:1], Entry("archive/data/0", DATA, 8, stored=zlib.compress(DATA, 9)[2:-9]),
                 entries()[2]]), "end",
    ),
    "legacy cut": (legacy_files.checkpoint()[:-1], "truncated"),
    "tensor outside": (checkpoint(stream(tensor(size=(17,)))), "structure"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "word"), DAMAGED.values(), ids=DAMAGED)
def test_damage(content: bytes, word: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    status, entry = verify(path, capsys)
    assert status == 1 and word in json.dumps(entry["reasons"])


def test_checksums_that_were_not_recorded(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(
        archive([Entry(e.name, e.data, central={"crc": 0}, local={"crc": 0}) for e in entries()])
    )
    status, entry = verify(path, capsys)
    assert status == 0 and "no CRC-32 was recorded" in entry["notes"][0]
    zerocopy.load(path)


def test_storages_that_were_saved_without(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    zerocopy.save(STATE, path, checksum=False)
    status, entry = verify(path, capsys)
    assert status == 0 and "no CRC-32 of storages was recorded" in entry["notes"][0]
    path.write_bytes(path.read_bytes().replace(b"weight", b"Weight"))
    assert verify(path, capsys)[0] == 1  # records that have one are held to it


def test_odd_bools_are_a_note(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    data = stream(tensor(storage("0", "BoolStorage", numel=4), size=(4,)))
    path.write_bytes(checkpoint(data, {"0": b"\0\1\2\xff"}))
    status, entry = verify(path, capsys)
    assert status == 0 and "data/0 (2)" in entry["notes"][0]


def test_safetensors_are_compared_where_torch_reads_them(
    save: Saver, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "x.safetensors"
    zerocopy.convert(save({"w": torch.ones(3), "half": torch.ones(2).bfloat16()}), path)
    try:
        torch.load(path, weights_only=True)
        said = "equal to what torch.load gives"
    except Exception:
        said = "compared: .*torch.load"
    status, entry = verify(path, capsys, "--compare")
    assert status == 0 and re.search(said, entry["notes"][-1])


# ------------------------------------------------------------------------------------------ HDF5


@pytest.mark.parametrize("change", [lambda file: None, attributed], ids=["plain", "h5py's"])
def test_records_of_an_hdf5_file(change, tmp_path: Path, capsys: Capture) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(hdf5(change))
    status, entry = verify(path, capsys, "--records", "--compare")
    assert (status, entry["container"], entry["reasons"]) == (0, "hdf5", [])
    assert re.search("compared: .*torch.load", entry["notes"][-1]) and "no checksums" in entry["notes"][0]
    assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    with h5py.File(path) as file:
        wanted = {
            name: (file[name].id.get_offset(), hashlib.sha256(file[name][...].tobytes()).hexdigest())
            for name in ("archive/data.pkl", "archive/data/0", "offsets_table")
        }
    assert {one["name"]: (one["offset"], one["sha256"]) for one in entry["records"]} == wanted
    assert {one["state"] for one in entry["records"]} == {"no checksum"}


def packed(file: Any) -> None:
    """Make datasets of every sort that h5py has to read, of several pieces."""
    import numpy

    rows = numpy.arange(3_000_000.0).reshape(3, 1000, 1000)
    file.create_dataset("rows", data=rows, chunks=(1, 100, 1000), compression="gzip", fletcher32=True)
    file.create_dataset("long", data=rows.reshape(-1), chunks=(5000,))
    file.create_dataset("swapped", data=numpy.arange(5, dtype=">i4"))
    file.create_dataset("scalar", data=numpy.array(7, dtype=">f8"))
    file.create_dataset("unwritten", (2, 3), "f4", fillvalue=1)


def test_verify_of_foreign_hdf5_reads_by_h5py(tmp_path: Path, capsys: Capture) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(foreign(packed))
    status, entry = verify(path, capsys, "--records")
    assert (status, entry["reasons"]) == (0, [])
    found = {one["name"]: one for one in entry["records"]}
    with h5py.File(path) as file:
        for name, data in file.items():
            native = data[...].astype(data.dtype.newbyteorder("="))
            assert found[name]["sha256"] == hashlib.sha256(native.tobytes()).hexdigest(), name
            assert (found[name]["offset"] is None) == (name != "weight")
        chunk = file["rows"].id.get_chunk_info(17)
    flipped(path, chunk.byte_offset + chunk.size // 2)
    status, entry = verify(path, capsys, "--records")
    (reason,) = entry["reasons"]
    assert status == 1 and reason["kind"] == "structure" and "rows cannot be read" in reason["text"]
    assert {one["name"]: one["state"] for one in entry["records"]}["rows"] == "broken"


def claiming(file: Any) -> None:
    """Make datasets that claim up to an exabyte with at most a chunk in the file, and one that is all there."""
    file.create_dataset("never", (2**60,), "u1", chunks=(2**20,), compression="gzip")
    file.create_dataset("plain", (2**60,), "u1")
    file.create_dataset("little", (2**36,), "u1", chunks=(2**20,), compression="gzip")[5] = 1
    file.create_dataset("arrays", (2**34,), "(4,)u1", chunks=(2**18,), compression="gzip")[5] = [1, 2, 3, 4]
    file.create_dataset("whole", data=list(range(1000)), chunks=(100,))


@pytest.mark.parametrize(
    "libver", ["earliest", pytest.param("latest", marks=pytest.mark.slow("another layout of libhdf5"))]
)
def test_datasets_that_are_hardly_written_are_not_hashed(
    libver: str, tmp_path: Path, capsys: Capture, forked: Child
) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver) as file:
        claiming(file)
    done = forked("import sys, resource; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
                  "from zerocopy.__main__ import main\nmain(['verify', '--records', sys.argv[1]])", path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "-" * 64 + "  --------  no checksum" in done.stdout
    status, entry = verify(path, capsys, "--records")
    assert status == 0
    hashes = {one["name"]: one["sha256"] for one in entry["records"]}
    whole = hashlib.sha256(torch.arange(1000).numpy().tobytes()).hexdigest()
    assert hashes == {"never": None, "plain": None, "little": None, "arrays": None, "whole": whole}
    assert any("not hashed" in note and "little" in note and "whole" not in note for note in entry["notes"])
    with h5py.File(path) as file:
        chunk = file["arrays"].id.get_chunk_info(0)
    flipped(path, chunk.byte_offset + chunk.size - 2)
    status, entry = verify(path, capsys, "--records")
    assert status == 1 and "arrays cannot be read" in entry["reasons"][0]["text"]


HDF5_DAMAGED = {
    "cut": (lambda: hdf5()[:-300], "truncated"),
    "table": (lambda: hdf5(table([0, 4097, None])), "does not agree"),
    "overlap": (lambda: overlapping(), "overlaps"),
    "short storage": (lambda: hdf5(storage_of_hdf5(short)), "its storage needs"),
    "bytes of a header": (lambda: swapped("archive/data/0", 0, b"\x07"), "header"),
}


def overlapping() -> bytes:
    """Return a file whose storage has its bytes within those of data.pkl."""
    import io

    import h5py

    content = bytearray(hdf5(without("offsets_table")))
    with h5py.File(io.BytesIO(content)) as file:
        pickle, data = (file[f"archive/{name}"].id.get_offset() for name in ("data.pkl", "data/0"))
    at = content.index(data.to_bytes(8, "little") + (64).to_bytes(8, "little"))
    content[at : at + 8] = (pickle + 8).to_bytes(8, "little")
    return bytes(content)


@pytest.mark.parametrize(("make", "word"), HDF5_DAMAGED.values(), ids=HDF5_DAMAGED)
def test_damaged_hdf5(make, word: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(make())
    status, entry = verify(path, capsys)
    assert status == 1 and word in json.dumps(entry["reasons"])
    assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_data_in_other_files_are_not_read(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.write_bytes(hdf5(lambda file: external(file, "other")))
    status, entry = verify(path, capsys, "--records")
    assert status == 0 and "not read: other has its data in other files" in entry["notes"][0]
    assert "other" not in [one["name"] for one in entry["records"]]


# --------------------------------------------------------------------------------------- compare

COMPARED = {
    "state": lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict(),
    "ties": lambda: [STATE["weight"], STATE["weight"][10:20], STATE["weight"].view(2, -1).t()],
    "values": lambda: {"t": (1, (2,)), 3: OrderedDict(a="x"), "n": None, "b": True},  # 1.13 takes no floats
    "dtypes": lambda: [torch.ones(3, dtype=d) for d in (torch.half, torch.bfloat16, torch.bool, torch.complex64)],
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "sparse": lambda: torch.eye(40).to_sparse(),
    "itself": lambda: (lambda x: x.append(x) or x)([torch.ones(2)]),
}  # fmt: skip


@pytest.mark.parametrize("form", ["zip", "legacy", "deflated"])
def test_compare_finds_a_file_equal_to_what_torch_loads(form: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.pt"
    for kind, make in COMPARED.items():
        content = saved_bytes(make(), _use_new_zipfile_serialization=form != "legacy")
        path.write_bytes(rezip(content, zipfile.ZIP_DEFLATED) if form == "deflated" else content)
        assert verify(path, capsys, "--compare")[0] == 0, kind


DIFFERENT = {
    "bytes": (torch.ones(3), torch.tensor([1, 1, 1 + 1e-6]), "bytes"),
    "negative zero": ({"a": 0.0}, {"a": -0.0}, "'a'"),
    "ties": (
        [STATE["weight"][:2], STATE["weight"][2:]],
        [STATE["weight"][:2], STATE["weight"].clone()[2:]],
        "tied",
    ),
    "ties back": ([torch.ones(2), torch.ones(2)], [(t := torch.ones(2)), t], "tied"),
    "shape": (torch.ones(2, 3), torch.ones(3, 2), "3"),
    "stride": (torch.ones(4, 4), torch.ones(4, 4).t(), "1"),
    "dtype": (torch.ones(2), torch.ones(2).view(torch.int32), "int32"),
    "grad": (torch.ones(2), torch.ones(2, requires_grad=True), "True"),
    "class": (torch.ones(2), torch.nn.Parameter(torch.ones(2), False), "Parameter"),
    "keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "'a'"),
    "type": ([1], (1,), "tuple"),
    "kind": ({"a": 1}, OrderedDict(a=1), "OrderedDict"),
    "length": ([1], [1, 2], "items"),
}


def test_differences_are_seen() -> None:
    for kind, (a, b, word) in DIFFERENT.items():
        assert comparison.Comparison().difference(a, a) == "", kind
        assert word in comparison.Comparison().difference(a, b), kind
        assert comparison.Comparison().difference(b, a), kind


def test_paths_without_end() -> None:
    """A tuple of 2**60 paths, twice."""

    def doubled() -> tuple[Any, ...]:
        value: tuple[Any, ...] = (torch.ones(1),)
        for _ in range(60):
            value = (value, value)
        return value

    assert comparison.Comparison().difference(doubled(), doubled()) == ""


def test_a_difference_is_reported(save: Saver, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(STATE)
    stock = torch.load

    def other(*args: Any, **kwargs: Any) -> Any:
        loaded = stock(*args, **kwargs)
        loaded["weight"] = loaded["weight"] + 1
        return loaded

    monkeypatch.setattr(torch, "load", other)
    status, entry = verify(path, capsys, "--compare")
    assert (
        status == 1
        and entry["reasons"][0]["kind"] == "difference"
        and "weight" in entry["reasons"][0]["text"]
    )


def test_verify_of_refused_file_does_not_call_torch_load(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(checkpoint(stream(name("posix", "system"))))
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("torch.load was called"))
    status, entry = verify(path, capsys, "--compare")
    assert status == 2 and "posix.system" in entry["reasons"][0]["text"]


# ----------------------------------------------------------------------------------- the command


def test_worst_of_several_files_decides_the_exit_code_also_without_torch(tmp_path: Path) -> None:
    for kind, content in (("good", checkpoint(good())), ("bad", checkpoint()[:-9]), ("empty", b"")):
        (tmp_path / kind).write_bytes(content)
    commands = [["verify", "good"], ["verify", "good", "bad"], ["verify", "bad", "empty", "good"]]
    for code, done in enumerate(run_without_torch(*commands, cwd=tmp_path)):
        assert (done.code, done.err.count("\n")) == (code, code == 2), done
        assert "good: fine" in done.out and ("bad: damaged" in done.out) == (code > 0)


@pytest.mark.slow("400 MB of zeros")
@pytest.mark.plain_memory("what it takes for itself counts as memory")
def test_little_memory_for_a_deflated_record(tmp_path: Path) -> None:
    """400 MB of zeros in 400 kB."""
    path = tmp_path / "x.pt"
    zeros = zlib.compressobj(9, zlib.DEFLATED, -15)
    stored = b"".join([*(zeros.compress(bytes(1 << 20)) for _ in range(400)), zeros.flush()])
    crc = 0
    for _ in range(400):
        crc = zlib.crc32(bytes(1 << 20), crc)
    size = {"size": 400 << 20, "crc": crc}
    data = stream(tensor(storage(numel=100 << 20), size=(100 << 20,)))
    record = Entry("archive/data/0", b"", 8, stored=stored, local=size, central=size)
    path.write_bytes(archive([Entry("archive/data.pkl", data), record, entries()[2]]))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))

    done = subprocess.run(
        [sys.executable, "-m", "zerocopy", "verify", path],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
