"""Finds the pickles of a file, and walks through their opcodes. Runs none of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.catalogue.files import FilePart, OpenFile
from zerocopy.catalogue.layout import MAX_PICKLE, Record, datasets_of, listing_of, records_of
from zerocopy.cli import policy
from zerocopy.loading.objects.global_names import Name

#: The most distinct globals that are listed for a pickle. No allow-list is as long, so a pickle with more has globals
#: that are not allowed.
MAX_GLOBALS = 1000

_FIRST_WINDOW = 1 << 16
_MAX_UNPACKED = 1 << 24  # bytes of a packed record, beside those in proportion to the file
_LEGACY_PARTS = ("magic number", "protocol version", "sys_info", "object", "storage keys")

# The pickles of an archive that zerocopy reads. TorchScript's own loader also reads constants.pkl.
_READ_BY_LOAD = ("data.pkl", "constants.pkl")
_READ_OF_HDF5 = ("data.pkl",)
_OBJECT = "data/constants/opaque_obj_"  # begins the names of pickles that zerocopy.export.load reads
_NAMED_LIKE_A_PICKLE = re.compile(r"\.(pkl|pickle)$", re.IGNORECASE)
_ZIP = b"PK\3\4"
_PROTO = frozenset(b"\x80" + bytes([protocol]) for protocol in range(6))

Read = Callable[[int, int], bytes]


class Global(NamedTuple):
    """A global that a pickle names."""

    name: Name
    native: bool  # zerocopy builds it itself
    offset: int
    opcode: int
    uses: int
    called: bool

    @property
    def judgement(self) -> str:
        """``known``, ``allowed`` or ``not allowed``."""
        if self.native:
            return "known"
        return "allowed" if policy.running().allows(self.name) else "not allowed"


class Pickle(NamedTuple):
    """A pickle, and what a walk over its opcodes has found."""

    name: str
    offset: int | None  # in the file; None in a record that is packed
    size: int  # of what holds it
    stray: bool  # a record that no load reads
    globals: list[Global]
    globals_left_out: int  # uses of more
    opcodes: dict[int, tuple[int, int]]  # count, offset of the first
    unresolved: tuple[int, int]
    end: int
    stopped: bool
    fault: str

    @property
    def after_stop(self) -> int:
        """The number of bytes that follow the pickle in its record or file."""
        return self.size - self.end if self.stopped else 0


def of_zip(file: OpenFile) -> Iterator[Pickle]:
    """Yield the pickles of an archive: those that a load reads, and whatever else looks like one.

    Of an archive on another machine the records of storages are not looked into.
    """
    records = records_of(file, storages=not file.is_far)
    yield from _of_records(file, (record for record in records if not record.fault), _READ_BY_LOAD)


def of_program(file: OpenFile) -> Iterator[Pickle]:
    """Yield the pickles of an archive of torch.export, and of the files of torch.save that are records of it."""
    for record in records_of(file):
        if record.fault:
            continue
        if record.place is None or record.read(file, 4) != _ZIP:
            read = {name for name in [record.name.partition("/")[2]] if name.startswith(_OBJECT)}
            yield from _of_records(file, [record], read)
            continue
        for one in of_zip(FilePart(file, record.offset, record.size)):
            offset = None if one.offset is None else record.offset + one.offset
            yield one._replace(name=f"{record.name}: {one.name}", offset=offset)


def of_hdf5(file: OpenFile) -> Iterator[Pickle]:
    """Yield the pickles among the datasets of bytes: the one that a load reads, and whatever else looks like one."""
    datasets = datasets_of(listing_of(file))
    # A compressed dataset of bytes is decompressed and searched only if its name is that of a pickle.
    yield from _of_records(
        file,
        (
            one.record
            for one in datasets
            if one.of_bytes and not one.refusal and (one.record.foreign is None or _is_named(one.record))
        ),
        _READ_OF_HDF5,
    )


def _of_records(file: OpenFile, records: Iterable[Record], read_by_load: Container[str]) -> Iterator[Pickle]:
    for record in records:
        named = _is_named(record)
        if not named and record.read(file, 2) not in _PROTO:
            continue
        is_packed = record.place is None
        most = min(record.size, _MAX_UNPACKED + 5 * file.size) if is_packed else record.size
        walked = _walk(_reader(file, record), most)
        if named or walked["stopped"]:
            stray = record.name.partition("/")[2] not in read_by_load
            yield _pickle(record.name, record.place, record.size, walked, stray)


def _is_named(record: Record) -> bool:
    return _NAMED_LIKE_A_PICKLE.search(record.name) is not None


def of_legacy(file: OpenFile) -> Iterator[Pickle]:
    """Yield the pickles of a file of before PyTorch 1.6, which follow one another."""
    begin = 0
    for name in _LEGACY_PARTS:
        walked = _walk(lambda offset, size: file.read(begin + offset, size), file.size - begin)  # noqa: B023
        yield _pickle(name, begin, walked["end"], walked, False)
        begin += walked["end"]
        if not walked["stopped"]:
            return


def of_bare(file: OpenFile) -> Iterator[Pickle]:
    """Yield the one pickle that the file is."""
    yield _pickle("", 0, file.size, _walk(file.read, file.size), False)


def _reader(file: OpenFile, record: Record) -> Read:
    if record.place is not None:
        return lambda offset, size: file.read(record.offset + offset, size)
    return lambda offset, size: record.read(file, offset + size)[offset:]


def _walk(read: Read, size: int) -> dict[str, Any]:
    """Walk the pickle that bytes begin with, reading no more of them than it takes."""
    size, window = min(size, MAX_PICKLE), _FIRST_WINDOW
    while True:
        walked = _core.scan(read(0, min(window, size)), MAX_GLOBALS)
        if not walked["truncated"] or window >= size:
            return walked
        window *= 8


def _pickle(name: str, offset: int | None, size: int, walked: dict[str, Any], stray: bool) -> Pickle:
    facts = {key: walked[key] for key in Pickle._fields if key in walked}
    facts["globals"] = [Global((module, name), *rest) for module, name, *rest in walked["globals"]]
    return Pickle(name=name, offset=offset, size=size, stray=stray, **facts)
