"""Writes HDF5 files that hold what ``torch.save`` writes: ``/archive/data.pkl``, storages, a table of their offsets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from zerocopy.saving.sink import Written

STORAGES = "data/"
_PAGE = 4096
_DESCRIBED = 4  # pages, more than libhdf5 takes to describe a record
_ROOT = "archive"


class Record(Protocol):
    """The object to write."""

    @property
    def name(self) -> str:
        """Its name: that of a record of a checkpoint's archive, without the root folder."""

    @property
    def size(self) -> int:
        """How many bytes it has."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield its bytes, a few megabytes at once."""


def number_of(name: str) -> int:
    """Return the number of a storage's record; -1 for what has none that the table of offsets takes."""
    digits = name.removeprefix(STORAGES)
    is_number = digits.isdecimal() and len(digits) < 19 and digits == str(int(digits))
    return int(digits) if is_number else -1


class Hdf5Writer:
    """Writes records into an HDF5 file, in two rounds, so that data are aligned and what describes them is dense.

    libhdf5 aligns everything or nothing. The first round makes groups and datasets, which get no bytes yet; the
    second opens the file anew, with alignment, and writes.
    """

    def __init__(self, h5py: Any, path: Path, records: Sequence[Record], name: str) -> None:
        self._h5py, self._path, self._records, self._name = h5py, os.fsencode(path), records, name

    def write(self, written: Written) -> None:
        """Write all of them."""
        self._reserve()
        self._describe()  # which begins the file anew
        self._reserve()
        h5 = self._h5py
        properties = h5.h5p.create(h5.h5p.FILE_ACCESS)
        properties.set_alignment(1, _PAGE)
        target = h5.h5f.open(self._path, h5.h5f.ACC_RDWR, fapl=properties)
        table = []
        for record in self._records:
            dataset = h5.h5d.open(target, f"{_ROOT}/{record.name}".encode())
            at = 0
            for piece in record.pieces():
                _write(h5, dataset, at, piece)
                at += len(piece)
                written(len(piece))
            if record.name.startswith(STORAGES):
                table.append((number_of(record.name), dataset.get_offset() or 0, record.size))
        self._write_table(target, table)
        target.close()

    def _reserve(self) -> None:
        """Have the disk keep the room for all: where libhdf5 finds none it keeps the file open, and crashes at exit."""
        pages = sum(-(-record.size // _PAGE) + _DESCRIBED for record in self._records)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, (pages + _DESCRIBED) * _PAGE)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._name) from None
        finally:
            os.close(descriptor)

    def _describe(self) -> None:
        """Make the file, with datasets that have no bytes yet."""
        h5 = self._h5py
        properties = h5.h5p.create(h5.h5p.FILE_ACCESS)
        properties.set_libver_bounds(h5.h5f.LIBVER_EARLIEST, h5.h5f.LIBVER_LATEST)
        target = h5.h5f.create(self._path, h5.h5f.ACC_TRUNC, fapl=properties)
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

    def _write_table(self, target: Any, table: list[tuple[int, int, int]]) -> None:
        import numpy

        h5 = self._h5py
        rows = numpy.array(table, numpy.int64).reshape(-1, 3)
        dataset = h5.h5d.open(target, b"offsets_table")
        if len(rows):
            dataset.write(h5.h5s.ALL, h5.h5s.ALL, rows)


def _write(h5: Any, dataset: Any, at: int, piece: bytes | memoryview) -> None:
    import numpy

    if not piece:
        return
    there = dataset.get_space()
    there.select_hyperslab((at,), (len(piece),))
    dataset.write(h5.h5s.create_simple((len(piece),)), there, numpy.frombuffer(piece, numpy.uint8))
