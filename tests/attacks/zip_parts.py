"""Archives with one thing wrong: what the families on the container are written in."""

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import assembler
from assembler import Entry, archive, entries

from attacks.attack import Attack, Expected

DATA_PKL, DATA_0, VERSION = range(3)  # where entries() has them
ONES = 2**32 - 1
MORE = 2**16 - 1  # the 16-bit number that sends the reader to the zip64 record


def offsets(records: list[Entry]) -> list[int]:
    """Return where the local header of each record lies, and where the directory begins."""
    at = [0]
    for record in records:
        header = assembler._local(record, at[-1])
        at.append(at[-1] + len(header + record.payload() + record.descriptor + record.after))
    return at


HEADERS = offsets(entries())  # also of wanting()
SIZE = len(assembler.checkpoint())
DIRECTORY_SIZE = SIZE - HEADERS[-1] - 22


def changed(*which: int, records: list[Entry] | None = None, **fields: Any) -> list[Entry]:
    """Return the records of a checkpoint, with `fields` of some of them replaced; of all, if none is given."""
    records = entries() if records is None else records
    for i in which or range(len(records)):
        for field, value in fields.items():
            setattr(records[i], field, value)
    return records


def with_record(which: int = DATA_0, **fields: Any) -> bytes:
    """Return a checkpoint, with `fields` of one record replaced."""
    return archive(changed(which, **fields))


def with_entry(which: int = DATA_0, **fields: Any) -> bytes:
    """Return a checkpoint whose directory has these `fields` for a record; its local header is right."""
    return archive(changed(which, central=fields))


def with_header(which: int = DATA_0, **fields: Any) -> bytes:
    """Return a checkpoint whose local header of a record has these `fields`; the directory is right."""
    return archive(changed(which, local=fields))


def with_both(which: int = DATA_0, **fields: Any) -> bytes:
    """Return a checkpoint whose directory and local header have these `fields` for a record."""
    return archive(changed(which, local=fields, central=fields))


def wanting(nbytes: int) -> list[Entry]:
    """Return the records of a checkpoint whose pickle wants a storage of so many bytes; see HEADERS."""
    nbytes = min(nbytes, 2**31 - 1)  # sizes beyond are refused before the pickle is read
    over = assembler.storage(kind="ByteStorage", numel=nbytes)
    return entries(assembler.pickle({"weights": assembler.tensor(over, 0, (0,))}))


def with_more(*records: Entry) -> bytes:
    """Return a checkpoint with further records."""
    return archive([*entries(), *records])


def crowded(count: int, **end: Any) -> bytes:
    """Return a checkpoint with so many more records, all of them empty; `end` goes to the writer."""
    crowd = Entry("archive/000000", b"", align=1)
    local, central = assembler._local(crowd, 0), assembler._central(crowd, 0)[:42]
    names = [b"archive/%06d" % i for i in range(count)]
    return assembler.checkpoint(
        gap=b"".join(local[:30] + name for name in names),
        spare=b"".join(
            central + struct.pack("<I", HEADERS[-1] + i * len(local)) + name for i, name in enumerate(names)
        ),
        **end,
    )


def without(which: int) -> bytes:
    """Return a checkpoint that lacks a record."""
    return archive([record for i, record in enumerate(entries()) if i != which])


def repeated(unit: bytes, times: int, head: bytes = b"", tail: bytes = b"") -> bytes:
    """Return raw DEFLATE of `head`, `unit` so often, and `tail`, without ever having all of that."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    parts = [squeeze.compress(part) + squeeze.flush(zlib.Z_FULL_FLUSH) for part in (head, unit)]
    return parts[0] + parts[1] * times + squeeze.compress(tail) + squeeze.flush()


def each(
    expected: Expected, make: Callable[..., bytes], cases: Mapping[str, Any], **more: Any
) -> tuple[Attack, ...]:
    """Return an attack for each of `cases`: a name, and the arguments of `make`."""
    return tuple(
        Attack(
            name, partial(make, **case) if isinstance(case, dict) else partial(make, *case), expected, **more
        )
        for name, case in cases.items()
    )


def made(expected: Expected, cases: Mapping[str, Callable[[], bytes]], **more: Any) -> tuple[Attack, ...]:
    """Return an attack for each of `cases`: a name, and what makes the file."""
    return tuple(Attack(name, make, expected, **more) for name, make in cases.items())
