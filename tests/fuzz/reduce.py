"""Makes an input small that breaks something, as long as it breaks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import assembler
import mutate_pickle
import mutate_zip

_T = TypeVar("_T", bytes, list[bytes])


def reduced(data: bytes, breaks: Callable[[bytes], bool], seconds: float = 60) -> bytes:
    """Return the smallest input found in that time for which `breaks` is still true."""
    until = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for smaller in _smaller(data):
            if time.monotonic() > until:
                return data
            if len(smaller) < len(data) and breaks(smaller):
                data, found = smaller, True
                break
    return data


def _smaller(data: bytes) -> Iterator[bytes]:
    """Yield smaller inputs: whole archives first, then any bytes."""
    yield from _archives(data)
    yield from _pickles(data)
    yield from _without(data)


def _without(items: _T) -> Iterator[_T]:
    """Yield the items without a half of them, a quarter, ..., each one."""
    size = len(items)
    while size := size // 2:
        for at in range(0, len(items), size):
            yield items[:at] + items[at + size :]


def _pickles(data: bytes) -> Iterator[bytes]:
    try:
        steps, rest = mutate_pickle.split(data)
    except Exception:
        return
    for fewer in _without(steps):
        yield b"".join(fewer) + rest


def _archives(data: bytes) -> Iterator[bytes]:
    try:
        records = mutate_zip.read(data)
    except Exception:
        return
    for record in records:
        record.align = 1
    yield assembler.archive(records)
    for i in range(len(records)):
        yield assembler.archive(records[:i] + records[i + 1 :])
    for record in records:
        whole = record.data
        shorter: Sequence[bytes] = (
            list(_pickles(whole)) if str(record.name).endswith("data.pkl") else (whole[: len(whole) // 2],)
        )
        for record.data in shorter:
            for agreeing in (False, True):
                trial = list(records)
                if agreeing:
                    mutate_zip.agree(trial)
                yield assembler.archive(trial)
        record.data = whole
