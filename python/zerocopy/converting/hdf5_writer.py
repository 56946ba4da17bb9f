"""Writes HDF5 files with the content of ``torch.save``: ``/archive/data.pkl``, storages, a table of their offsets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy.catalogue import layout
from zerocopy.catalogue.files import OpenFile
from zerocopy.converting.new_files import Content
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.formats import hdf5
from zerocopy.saving.archive import PickleWithStorages
from zerocopy.saving.atomic_file import PIECE, NewFile, Written

STORAGES = "data/"
_COPIED = ("data.pkl", "version", "byteorder")
_PAGE = 4096
_LINE = 64  # the alignment of torch's own tensors
_MAX_GAPS = 1 << 24  # bytes of gaps between records that have fewer bytes
_DESCRIPTION = 1024  # bytes, more than libhdf5 takes to describe a record
# Aligning leaves gaps, and libhdf5 checks all gaps again for each record, until the file is closed.
_BATCH = 200
_ROW = 24  # bytes of a row of the table of offsets
_SPARE = 1 << 16  # bytes, more than a file of no records has
_ROOT = "archive"


class Hdf5Record(NamedTuple):
    """An object to write: its name, its size in bytes, and what yields these, a few megabytes at once.

    The name is that of a record of a checkpoint's archive, without the root folder.
    """

    name: str
    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]


def content_of(parts: PickleWithStorages, target: Path) -> Content:
    """Return the content of a file that holds a pickle and its storages."""
    records = [
        Hdf5Record(name, len(content), partial(_pieces_of, content))
        for name, content in (
            ("data.pkl", parts.pickle),
            ("version", b"3\n"),
            ("byteorder", sys.byteorder.encode()),
        )
    ]
    for number, size in enumerate(parts.sizes):
        records.append(Hdf5Record(f"{STORAGES}{number}", size, partial(_pieces_of_storage, parts, number)))
    return _content(records, target)


def copied(file: OpenFile, target: Path) -> Content:
    """Return the content of a file with an unchanged copy of each record of an archive that a load reads."""
    records = []
    for record in layout.records_of(file):
        name = record.name.partition("/")[2]
        if name not in _COPIED and not name.startswith(STORAGES):
            continue  # releases of torch add further records
        if record.fault:
            raise FormatError(record.fault)
        if name.startswith(STORAGES) and number_of(name) < 0:
            raise UnsupportedError(
                f"storage {name!r}: its name is not a number, as the table of offsets needs"
            )
        records.append(Hdf5Record(name, record.size, partial(record.content, file)))
    return _content(records, target)


def _content(records: Sequence[Hdf5Record], target: Path) -> Content:
    h5py = hdf5.import_h5py(target)

    def write(new: NewFile, written: Written) -> None:
        Hdf5Writer(h5py, Path(new.path), records, str(target)).write(written)

    return Content(sum(record.size for record in records), write)


def _pieces_of(content: bytes | memoryview) -> Iterator[memoryview]:
    for at in range(0, len(content), PIECE):
        yield memoryview(content)[at : at + PIECE]


def _pieces_of_storage(parts: PickleWithStorages, number: int) -> Iterator[memoryview]:
    from zerocopy import _torch

    storage = parts.storage(number)  # kept alive while its bytes are written
    yield from _pieces_of(_torch.bytes_of(storage))


def number_of(name: str) -> int:
    """Return the number of a storage's record; -1 for records that have no row in the table of offsets."""
    digits = name.removeprefix(STORAGES)
    is_number = digits.isdecimal() and len(digits) < 19 and digits == str(int(digits))
    return int(digits) if is_number else -1


class Hdf5Writer:
    """Writes records into an HDF5 file in two rounds, so that data are aligned and their descriptions are dense.

    libhdf5 aligns everything or nothing. The first round makes groups and datasets without bytes. The second round
    opens the file again, with alignment, once for each batch of records, and writes their bytes.
    """

    def __init__(self, h5py: Any, path: Path, records: Sequence[Hdf5Record], name: str) -> None:
        self._h5py, self._path, self._records, self._name = h5py, path, records, name
        self._size = sum(record.size for record in records)
        # Align to pages; for very many small records, as torch aligns tensors.
        dense = len(records) * _PAGE > max(_MAX_GAPS, self._size)
        self._alignment = _LINE if dense else _PAGE

    def write(self, written: Written) -> None:
        """Write all records."""
        self._reserve(_DESCRIPTION * len(self._records))
        self._describe()  # this truncates the file first
        described, count = self._path.stat().st_size, len(self._records)
        self._reserve(described + self._size + count * (self._alignment + _ROW))
        rows: list[tuple[int, int, int]] = []
        for begin in range(0, count, _BATCH):
            rows += self._write_batch(self._records[begin : begin + _BATCH], written)
        self._write_table(rows)

    def _write_batch(self, records: Sequence[Hdf5Record], written: Written) -> Iterator[tuple[int, int, int]]:
        """Write records, and yield the rows of the table of offsets."""
        h5 = self._h5py
        target = self._open()
        for record in records:
            dataset = h5.h5d.open(target, f"{_ROOT}/{record.name}".encode())
            at = 0
            for piece in record.pieces():
                if piece:
                    _write(h5, dataset, at, piece, record.size)
                at += len(piece)
                written(len(piece))
            if record.name.startswith(STORAGES):
                yield number_of(record.name), dataset.get_offset() or 0, record.size
        target.close()

    def _open(self) -> Any:
        h5 = self._h5py
        properties = h5.h5p.create(h5.h5p.FILE_ACCESS)
        properties.set_alignment(1, self._alignment)
        return h5.h5f.open(os.fsencode(self._path), h5.h5f.ACC_RDWR, fapl=properties)

    def _reserve(self, size: int) -> None:
        """Reserve disk space for all records. If libhdf5 itself runs out of space, it crashes at exit."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size + _SPARE)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._name) from None
        finally:
            os.close(descriptor)

    def _describe(self) -> None:
        """Create the file, with datasets that have no bytes yet."""
        h5 = self._h5py
        properties = h5.h5p.create(h5.h5p.FILE_ACCESS)
        properties.set_libver_bounds(h5.h5f.LIBVER_EARLIEST, h5.h5f.LIBVER_LATEST)
        target = h5.h5f.create(os.fsencode(self._path), h5.h5f.ACC_TRUNC, fapl=properties)
        group = h5.h5g.create(target, _ROOT.encode())
        h5.h5g.create(group, b"data")
        layout = h5.h5p.create(h5.h5p.DATASET_CREATE)
        layout.set_layout(h5.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5.h5d.ALLOC_TIME_LATE)
        layout.set_fill_time(h5.h5d.FILL_TIME_NEVER)
        layout.set_obj_track_times(False)
        for record in self._records:
            space = h5.h5s.create_simple((record.size,))
            h5.h5d.create(group, record.name.encode(), h5.h5t.STD_U8LE, space, layout)
        storages = sum(record.name.startswith(STORAGES) for record in self._records)
        h5.h5d.create(target, b"offsets_table", h5.h5t.STD_I64LE, h5.h5s.create_simple((storages, 3)), layout)
        target.close()

    def _write_table(self, table: list[tuple[int, int, int]]) -> None:
        import numpy

        h5 = self._h5py
        rows = numpy.array(table, numpy.int64).reshape(-1, 3)
        target = self._open()
        dataset = h5.h5d.open(target, b"offsets_table")
        if len(rows):
            dataset.write(h5.h5s.ALL, h5.h5s.ALL, rows)
        target.close()


def _write(h5: Any, dataset: Any, at: int, piece: bytes | memoryview, size: int) -> None:
    """Write a piece at its offset in a dataset of `size` bytes."""
    import numpy

    here = there = h5.h5s.ALL
    if len(piece) < size:
        here, there = h5.h5s.create_simple((len(piece),)), dataset.get_space()
        there.select_hyperslab((at,), (len(piece),))
    dataset.write(here, there, numpy.frombuffer(piece, numpy.uint8), h5.h5t.STD_U8LE)
