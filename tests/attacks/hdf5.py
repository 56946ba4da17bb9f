"""HDF5 files: tables that lie, links that lead elsewhere, cuts, and a pickle that is hostile."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import assembler
import h5py
import numpy
from assembler import call, pickle

from attacks.attack import CANARY, TRAP, Attack, Expected, Family

EQUAL, FORMAT, REFUSED = Expected.EQUAL, Expected.FORMAT, Expected.REFUSED
UNSUPPORTED = Expected.UNSUPPORTED

NBYTES = 4 * assembler.NUMEL
SECRET = "/etc/hostname"
Change = Callable[[Any], None]


def storage_bytes(nbytes: int = NBYTES) -> Any:
    return numpy.frombuffer(assembler.DATA[:nbytes], numpy.uint8)


def hdf5(change: Change = lambda file: None, data_pkl: bytes | None = None) -> bytes:
    """Return the notebook's layout, with a table; `change` has the file open."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["archive/data.pkl"] = numpy.frombuffer(data_pkl or assembler.good(), numpy.uint8)
        data = file.create_dataset("archive/data/0", data=storage_bytes())
        file["offsets_table"] = numpy.array([[0, data.id.get_offset(), data.shape[0]]], numpy.int64)
        change(file)
    return content.getvalue()


def without(*names: str) -> Change:
    def change(file: Any) -> None:
        for name in names:
            del file[name]

    return change


def both(*changes: Change) -> Change:
    def change(file: Any) -> None:
        for change_one in changes:
            change_one(file)

    return change


def table(*rows: Iterable[int], add: bool = False) -> Change:
    """Return what puts another table in the file's place; None in a row keeps what was there."""

    def change(file: Any) -> None:
        (right,) = file["offsets_table"][...].tolist()
        new = [
            [old if value is None else value for value, old in zip(row, right, strict=False)] for row in rows
        ]
        del file["offsets_table"]
        file["offsets_table"] = numpy.array([right, *new] if add else new, numpy.int64).reshape(
            len(new) + add, -1
        )

    return change


def storage(make: Callable[[Any], Any]) -> Change:
    """Return what makes the storage's dataset another way, and leaves the table out."""

    def change(file: Any) -> None:
        del file["offsets_table"], file["archive/data/0"]
        make(file)

    return change


def external(file: Any, name: str) -> None:
    file.create_dataset(name, (NBYTES,), "u1", external=[(SECRET, 0, NBYTES)])


def virtual(file: Any, name: str) -> None:
    layout = h5py.VirtualLayout((NBYTES,), "u1")
    layout[:] = h5py.VirtualSource(SECRET, "x", (NBYTES,))
    file.create_virtual_dataset(name, layout)


def linked(name: str, target: Any) -> Change:
    """Return what puts something into the file."""

    def change(file: Any) -> None:
        file[name] = target

    return change


OUTSIDE = h5py.ExternalLink(SECRET, "/x")


def compressed(file: Any) -> None:
    file.create_dataset("archive/data/0", data=storage_bytes(), compression="gzip")


def attributed(file: Any) -> None:
    """Make the file one that the core leaves to h5py."""
    file.attrs["format"] = 1


def short(file: Any) -> None:
    file["archive/data/0"] = storage_bytes(32)


def circle(file: Any) -> None:
    file["archive/again"] = file["archive"]


def swapped(name: str, at: int, value: bytes) -> bytes:
    """Return the file with some bytes of an object's header changed."""
    content = bytearray(hdf5())
    with h5py.File(io.BytesIO(content)) as file:
        header = h5py.h5o.get_info(file[name].id).addr
    content[header + at : header + at + len(value)] = value
    return bytes(content)


def address(value: int) -> bytes:
    """Return the file with another address of the storage's data."""
    content, magic = bytearray(hdf5()), struct.pack("<Q", NBYTES)
    with h5py.File(io.BytesIO(content)) as file:
        offset = file["archive/data/0"].id.get_offset()
    at = content.index(struct.pack("<Q", offset) + magic)
    content[at : at + 8] = struct.pack("<Q", value)
    return bytes(content)


def foreign(change: Change) -> bytes:
    """Return a file of datasets, without a pickle."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["weight"] = numpy.arange(float(assembler.NUMEL), dtype="f4")
        change(file)
    return content.getvalue()


def each(cases: Mapping[str, Callable[[], bytes]], expected: Expected = FORMAT) -> Iterable[Attack]:
    for title, make in cases.items():
        # Made once: libhdf5 writes uninitialised memory into files with virtual datasets.
        yield Attack(title, functools.cache(make), expected)


def changed(cases: Mapping[str, Change], expected: Expected = FORMAT) -> Iterable[Attack]:
    for title, change in cases.items():
        yield Attack(title, functools.cache(functools.partial(hdf5, change)), expected)  # as above


TABLES: dict[str, Change] = {
    "table: offset past the file": table([0, 1 << 40, NBYTES]),
    "table: negative offset": table([0, -8, NBYTES]),
    "table: length past the file": table([0, None, 1 << 40]),
    "table: negative length": table([0, None, -1]),
    "table: offset + length wraps": table([0, (1 << 63) - 1, (1 << 63) - 1]),
    "table: points at the superblock": table([0, 0, NBYTES]),
    "table: one byte beside": table([0, 4097, NBYTES]),
    "table: two rows for one key": table([0, None, None], add=True),
    "table: no row for a key": table([1, None, None]),
    "table: no rows": both(
        without("offsets_table"), lambda file: file.create_dataset("offsets_table", (0, 3), "i8")
    ),
    "table: two columns": table([0, None]),
    "table of floats": both(without("offsets_table"), linked("offsets_table", [[0.0, 1, 2]])),
    "table of a million rows, compressed": both(
        without("offsets_table"),
        lambda file: file.create_dataset(
            "offsets_table", (1 << 20, 3), "i8", compression="gzip", fillvalue=1
        ),
    ),
}

HDF5 = Family(
    "HDF5",
    (
        *changed(
            {
                "valid, with a table": lambda file: None,
                "valid, without a table": without("offsets_table"),
                "valid, with an attribute": attributed,
                "storage compressed": storage(compressed),
                "external link beside the data": linked("other", OUTSIDE),
                "soft link to itself": linked("other", h5py.SoftLink("/other")),
                "soft link to nothing": linked("other", h5py.SoftLink("/nothing")),
                "unused dataset with external storage": lambda file: external(file, "other"),
                "unused virtual dataset": lambda file: virtual(file, "other"),
                "object reference beside the data": lambda file: linked("other", file["archive"].ref)(file),
            },
            EQUAL,
        ),
        *each({"trailing bytes": lambda: hdf5() + b"more"}, EQUAL),
        *changed(TABLES),
        *changed(
            {
                "storage is external": storage(lambda file: external(file, "archive/data/0")),
                "storage is virtual": storage(lambda file: virtual(file, "archive/data/0")),
                "group that holds itself": circle,
            },
            UNSUPPORTED,
        ),
        *changed(
            {
                "storage is an external link": storage(linked("archive/data/0", OUTSIDE)),
                "soft link out of the file": storage(
                    both(linked("out", OUTSIDE), linked("archive/data/0", h5py.SoftLink("/out")))
                ),
                "dataset of half the size": storage(short),
                "data.pkl is missing": without("archive/data.pkl"),
                "two data.pkl": linked("other/data.pkl", storage_bytes()),
                "data.pkl of doubles": both(without("archive/data.pkl"), linked("archive/data.pkl", [1.0])),
            }
        ),
        *each(
            {
                "cut in half": lambda: hdf5()[: len(hdf5()) // 2],
                "cut to 100 bytes": lambda: hdf5()[:100],
                "signature alone": lambda: hdf5()[:8],
                "last 1024 bytes missing": lambda: hdf5()[:-1024],
                "superblock of another version": lambda: hdf5()[:8] + b"\x09" + hdf5()[9:],
                "superblock of zeros": lambda: hdf5()[:8] + bytes(88) + hdf5()[96:],
                "header of another version": lambda: swapped("archive/data/0", 0, b"\x07"),
                "header of no length": lambda: swapped("archive/data/0", 8, bytes(4)),
                "header longer than the file": lambda: swapped("archive/data/0", 8, b"\xff\xff\xff\x7f"),
                "data past the end of the file": lambda: address(1 << 40),
                "data at an address that wraps": lambda: address((1 << 64) - 16),
            }
        ),
        *each(
            {
                "foreign: external storage": lambda: foreign(lambda file: external(file, "other")),
                "foreign: virtual dataset": lambda: foreign(lambda file: virtual(file, "other")),
                "foreign: group that holds itself": lambda: foreign(
                    lambda file: linked("group/root", file["/"])(file)
                ),
            },
            UNSUPPORTED,
        ),
        *each(
            {
                "foreign: external link beside the data": lambda: foreign(linked("a", OUTSIDE)),
                "foreign: soft link to itself": lambda: foreign(linked("a", h5py.SoftLink("a"))),
            },
            EQUAL,
        ),
        Attack(
            "malicious data.pkl",
            lambda: hdf5(data_pkl=pickle(call(assembler.name("posix", "mkdir"), CANARY))),
            REFUSED,
            ("posix.mkdir",),
        ),
        Attack(
            "malicious data.pkl, importing",
            lambda: hdf5(data_pkl=pickle(call(assembler.name(TRAP, "spring")))),
            REFUSED,
            (TRAP,),
        ),
    ),
)
