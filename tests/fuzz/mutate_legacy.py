"""Mutations of the stream of before PyTorch 1.6: five pickles, and storages that have to agree with the fourth."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import assembler
import legacy_files
import mutate_bytes
import mutate_pickle
import storages

_OBJECT, _KEYS = 3, 4


def split(file: bytes) -> tuple[list[bytes], bytes]:
    """Return the five pickles, and what follows them. Raises ValueError where there are fewer."""
    pickles = []
    for _ in range(5):
        steps, file = mutate_pickle.split(file)
        pickles.append(b"".join(steps))
    return pickles, file


def agree(pickles: list[bytes]) -> bytes:
    """Set the list of keys, and return the storages, to what the object wants."""
    wanted = dict(sorted(storages.wanted(pickles[_OBJECT]).items()))
    pickles[_KEYS] = assembler.pickle(list(wanted))
    counted = wanted.values()
    return b"".join(legacy_files.data(storages.content(numel, size), numel) for numel, size in counted)


def mutate(file: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Return a stream changed; `donors` are pickles."""
    pickles, tail = split(file)
    match rng.randrange(8):
        case 0:
            tail = mutate_bytes.mutate_bytes(tail, rng)
        case 1 if len(tail) >= 8:
            tail = struct.pack("<Q", mutate_bytes.number(rng) % 2**64) + tail[8:]
        case 2:
            which = rng.randrange(5)
            pickles[which] = mutate_pickle.mutate(pickles[which], rng, donors)
        case _:
            pickles[_OBJECT] = mutate_pickle.mutate(pickles[_OBJECT], rng, donors)
            if rng.random() < 0.9:
                tail = agree(pickles)
    return b"".join(pickles) + tail
