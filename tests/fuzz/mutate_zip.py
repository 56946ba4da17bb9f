"""Mutations of zip archives that keep what they do not change in agreement: directory, headers, sizes, storages."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Sequence
from typing import Any

import assembler
import mutate_bytes
import mutate_pickle
import storages
from assembler import Entry

_FIELDS = ("version", "flags", "method", "crc", "stored_size", "size", "name_size", "extra_size", "comment_size",
           "disk", "attributes", "header", "made_by")  # fmt: skip
_END = ("disk", "directory_disk", "here", "entries", "size", "offset", "comment_size")
_WIDE = ("record_size", "disk64", "here64", "entries64", "size64", "offset64", "record_at", "disks")
_NAMES = ("data/0", "data/1", "version", "byteorder", "data.pkl", "DATA.PKL", "../data/0", "data/", "constants.pkl",
          ".data/serialization_id", "x" * 200)  # fmt: skip


def read(archive: bytes) -> list[Entry]:
    """Return the records of an archive. Raises an exception of zipfile's many where it is none."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        infos = [info for info in opened.infolist() if info.file_size < 2**20]
        return [Entry(info.filename, opened.read(info), method=info.compress_type & 8) for info in infos]


def agree(records: list[Entry]) -> None:
    """Give the archive a record of the right size for each storage that its pickle speaks of."""
    pickled = next((record for record in records if str(record.name).endswith("/data.pkl")), None)
    if pickled is None:
        return
    root = str(pickled.name).removesuffix("data.pkl")
    by_name = {record.name: record for record in records}
    for key, (numel, size) in storages.wanted(pickled.data).items():
        name = f"{root}data/{key}"
        if name not in by_name:
            by_name[name] = Entry(name, b"")
            records.append(by_name[name])
        by_name[name].data = storages.content(numel, size, by_name[name].data)


def mutate(archive: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Return an archive changed; `donors` are pickles."""
    records, options = read(archive), {}
    if not records:
        return mutate_bytes.mutate_bytes(archive, rng)
    record = rng.choice(records)
    aligned = rng.random() < 0.7
    for each in records:
        each.align = 64 if aligned else rng.choice((1, 2, 4, 8, 64))
    match rng.randrange(12):
        case 0:
            record.data = mutate_bytes.mutate_bytes(record.data, rng)
        case 1:
            records.remove(record)
        case 2:
            records.insert(rng.randrange(len(records)), Entry(record.name, record.data))
        case 3:
            record.name = str(records[0].name).partition("/")[0] + "/" + rng.choice(_NAMES)
        case 4:
            record.method ^= 8
        case 5:
            for each in records:
                each.method = rng.choice((0, 8))
        case 6:
            headers = rng.choice((record.local, record.central))
            headers[rng.choice(_FIELDS)] = mutate_bytes.number(rng) % 2**16
        case 7:
            record.stored = mutate_bytes.mutate_bytes(record.payload(), rng)
        case 8:
            options = _around(rng)
        case _:
            _mutate_pickle(records, rng, donors)
    try:
        return assembler.archive(records, **options)
    except Exception:  # a name without end, a field too wide: what no archive can say
        return mutate_bytes.mutate_bytes(archive, rng)


def _mutate_pickle(records: list[Entry], rng: random.Random, donors: Sequence[bytes]) -> None:
    for record in records:
        if str(record.name).endswith("/data.pkl"):
            record.data = mutate_pickle.mutate(record.data, rng, donors)
    if rng.random() < 0.9:
        agree(records)
    if rng.random() < 0.1:
        records.append(
            Entry(str(records[0].name).partition("/")[0] + "/byteorder", rng.choice((b"big", b"little")))
        )


def _around(rng: random.Random) -> dict[str, Any]:
    """Options of ``assembler.archive``: bytes around the records, other end records."""
    junk = rng.randbytes(rng.choice((1, 4, 64)))
    value = mutate_bytes.number(rng)
    return rng.choice(
        (
            {rng.choice(("before", "gap", "spare", "after", "comment")): junk},
            {"reverse": True},
            {"wide": {}},
            {"wide": {rng.choice(_WIDE): value % 2**32}},
            {rng.choice(_END): value % 2**16},
        )
    )
