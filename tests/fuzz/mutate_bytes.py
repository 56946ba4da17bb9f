"""Numbers that limits break at, and mutations that know no format."""

from __future__ import annotations

import random
import struct

#: Around nothing, around each width, and what a count of elements of 4 or 8 bytes wraps at.
NUMBERS = sorted(
    {edge + near for edge in (0, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**61, 2**62, 2**63, 2**64)
     for near in (-1, 0, 1)}
    | {2, 3, 4, 8, 16, 17, 63, 64, 65, 1000, 1001, 4096, -(2**31), -(2**63)}
)  # fmt: skip


def number(rng: random.Random, old: int = 0) -> int:
    """Return a number near another one, or one of ``NUMBERS``."""
    return rng.choice((old - 1, old + 1, old * 2, -old)) if rng.random() < 0.3 else rng.choice(NUMBERS)


def run_of(rng: random.Random, length: int, longest: int) -> slice:
    """Return where some of so many items stand next to each other."""
    begin = rng.randrange(length + 1)
    return slice(begin, begin + rng.randint(1, longest))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the input with a few of its bytes changed, moved, lost or added."""
    changed = bytearray(data)
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0 if data:
            changed[at % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:
            changed[at % len(data)] = rng.randrange(256)
        case 2:
            form = rng.choice(("<H", "<I", "<Q", ">Q"))
            size = struct.calcsize(form)
            changed[at : at + size] = struct.pack(form, number(rng) % 2 ** (8 * size))
        case 3:
            del changed[run_of(rng, len(data), 32)]
        case 4:
            changed[at:at] = changed[run_of(rng, len(data), 64)]
        case 5:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        case _:
            del changed[at:]
    return bytes(changed)
