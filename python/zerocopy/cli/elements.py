"""Compares tensors whose elements lie in files in row order, without torch."""

from __future__ import annotations

import cmath
import functools
import itertools
import math
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from zerocopy import _core, display
from zerocopy.cli import output
from zerocopy.cli.runner import Trouble

_CHUNK = 1 << 17  # bytes of each file that are compared at once: both buffers stay in the processor's cache
_BLOCK = 1 << 21  # bytes of each file that a thread compares before it takes the next ones
_CONVERTED = 1 << 20  # elements that are converted at once
_TURN = 1 << 7  # blocks that threads are given at once: a tensor may have a million
_THREADS = 2  # more threads would wait for the interpreter's lock
_MAX_REPEATED = 1 << 26  # bytes of the elements of a tensor, beside those in proportion to its storage
#: The code of :mod:`struct` for each dtype that is compared here. bfloat16 is the upper half of a float32.
FORMATS = {
    "float64": "d", "float32": "f", "float16": "e", "bfloat16": "f", "int64": "q", "int32": "i", "int16": "h",
    "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?",
}  # fmt: skip


class Place(NamedTuple):
    """The positions of a tensor's elements in row-major order."""

    descriptor: int
    offset: int


class Tolerance(NamedTuple):
    """The largest difference of values: ``|a - b| <= atol + rtol * |b|``. Without a tolerance, bits are compared."""

    rtol: float
    atol: float

    def holds(self, a: complex, b: complex) -> bool:
        """Return whether two numbers are close, exactly for integers; NaN is close to NaN."""
        if isinstance(a, int) and isinstance(b, int):
            # The text of a float is the number that the user gave.
            return abs(a - b) <= Fraction(str(self.atol)) + Fraction(str(self.rtol)) * abs(b)
        try:
            if a != a or b != b:  # NaN
                return a != a and b != b
            # An infinity is close to itself alone, as for torch.isclose.
            return a == b or (cmath.isfinite(b) and abs(a - b) <= self.atol + self.rtol * abs(b))
        except OverflowError:  # One is an integer beyond every float.
            return False


@dataclass(frozen=True)
class ValueDifference:
    """The differences of the elements of two tensors."""

    count: int  # of the elements that differ
    elements: int
    largest: float | None  # the largest of the distances that are finite; None where there is none
    not_finite: int  # elements at a distance that is not finite, such as a number and NaN
    first: tuple[int, ...]
    a: str
    b: str
    text: str = ""  # for tensors without elements of their own, such as sparse ones

    def __str__(self) -> str:
        if self.text:
            return self.text
        by = "" if self.largest is None else f" by up to {self.largest:.6g}"
        if self.not_finite:
            by += f" ({self.not_finite} of them by no finite number)"
        where = f"[{', '.join(map(str, self.first))}]"
        return f"{self.count} of {self.elements} values differ{by}, first {where}: {self.a} | {self.b}"


def unequal_pieces(a: Place, b: Place, nbytes: int, name: str) -> Iterator[tuple[int, bytearray, bytearray]]:
    """Yield the pieces of two tensors that differ, each with the number of its first byte."""
    blocks = range(0, nbytes, _BLOCK)
    each = _pool().map if len(blocks) > 1 else map

    def unequal(begin: int) -> list[int]:
        return _unequal_in(a, b, begin, min(_BLOCK, nbytes - begin), name)

    for turn in range(0, len(blocks), _TURN):
        for begin in itertools.chain.from_iterable(each(unequal, blocks[turn : turn + _TURN])):
            # The pieces are read again here, so that waiting results are only numbers, and take no memory.
            one, other = (bytearray(min(_CHUNK, nbytes - begin)) for _ in range(2))
            yield begin, _read(a, begin, one, name), _read(b, begin, other, name)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Return a pool of threads. One compares while others wait for the kernel, which copies without Python's lock."""
    return ThreadPoolExecutor(_THREADS)


def _unequal_in(a: Place, b: Place, begin: int, nbytes: int, name: str) -> list[int]:
    """Return where the pieces that differ begin, of those in one block."""
    # Reads into two small buffers are as quick as a mapping is at its best, need no page faults, and a file that
    # becomes shorter is an exception. bytearray compares by memcmp.
    one, other = bytearray(_CHUNK), bytearray(_CHUNK)
    differing = []
    for at in range(begin, begin + nbytes, _CHUNK):
        if begin + nbytes - at < _CHUNK:
            del one[begin + nbytes - at :], other[begin + nbytes - at :]
        if _read(a, at, one, name) != _read(b, at, other, name):
            differing.append(at)
    return differing


def _read(place: Place, begin: int, buffer: bytearray, name: str) -> bytearray:
    if os.preadv(place.descriptor, [buffer], place.offset + begin) != len(buffer):
        raise Trouble(f"a file became shorter while {display.shown(name)} was read")
    return buffer


def compare(a: Place, b: Place, info: Any, *, brief: bool) -> ValueDifference | None:
    """Compare the bits of two tensors of one shape and dtype, and return how they differ.

    Parameters
    ----------
    a, b : Place
        Where the tensors are.
    info : Entry
        One of the two.
    brief : bool
        Whether to stop after the first piece that differs.
    """
    count, not_finite, largest, first = 0, 0, -1.0, -1
    texts = "", ""
    total = math.prod(info.shape)
    width = info.nbytes // total if total else 1
    for done, one, other in unequal_pieces(a, b, info.nbytes, info.name):
        unequal, number, gap, endless = _core.compare_elements(one, other, info.dtype)
        count += unequal
        not_finite += endless
        largest = largest if gap is None else max(largest, gap)
        if first < 0:
            begin = number * width
            first = done // width + number
            end = begin + width
            texts = _text_of(one[begin:end], info.dtype), _text_of(other[begin:end], info.dtype)
        if brief:
            break
    if first < 0:
        return None
    gap = None if largest < 0 else largest
    return ValueDifference(count, total, gap, not_finite, position(first, info.shape), *texts)


def _text_of(element: bytearray, dtype: str) -> str:
    if dtype == "bfloat16":
        element = bytearray(2) + element
    return repr(struct.unpack(f"<{FORMATS[dtype]}", element)[0])


def atom_difference(a: Any, b: Any) -> str | None:
    """Return how two values differ, an empty string if they do not, and None if their contents have to be compared."""
    if type(a) is not type(b):
        return f"a {type(a).__name__} and a {type(b).__name__}"
    if isinstance(a, float):
        return "" if struct.pack("d", a) == struct.pack("d", b) else f"{a!r} and {b!r}"
    if isinstance(a, (int, str, bytes, bytearray, type(None))):
        return "" if a == b else f"{shown(a)} and {shown(b)}"
    return None


def shown(value: Any) -> str:
    """Return the beginning of the ``repr`` of a value, as printable text."""
    try:
        return output.printable(repr(value), 80)
    except ValueError:  # an integer of too many digits
        return f"a {type(value).__name__}"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor whose elements lie in row order."""
    lengths = (max(length, 1) for length in reversed((*shape[1:], 1)))
    return tuple(itertools.accumulate(lengths, int.__mul__))[::-1] if shape else ()


def require_few_repeats(name: str, shape: Sequence[int], strides: Sequence[int], width: int) -> None:
    """Raise Trouble if a tensor repeats its bytes so often that reading its elements would take too long."""
    numel = math.prod(shape)
    reach = 1 + sum((length - 1) * abs(step) for length, step in zip(shape, strides, strict=False))
    if numel * width > _MAX_REPEATED + 20 * reach * width:
        raise Trouble(
            f"{display.shown(name)} shows each of its {display.size(reach * width)} about {numel // reach} times: "
            "its elements are not read"
        )


def position(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element from its number in row-major order."""
    index = []
    for length in reversed(shape):
        number, place = divmod(number, length)
        index.append(place)
    return tuple(reversed(index))


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the parts of a shape in row-major order: the number of the first element, and an index."""
    if not math.prod(shape):
        return
    depth = 0  # leading dimensions of which each place is a block of its own, or several
    while depth < len(shape) - 1 and math.prod(shape[depth + 1 :]) > _CONVERTED:
        depth += 1
    inner = math.prod(shape[depth + 1 :])
    step = max(1, _CONVERTED // max(inner, 1))
    start = 0
    for leading in itertools.product(*map(range, shape[:depth])):
        length = shape[depth] if shape else 1
        for begin in range(0, length, step):
            yield start, (*leading, slice(begin, begin + step)) if shape else ()
            start += min(step, length - begin) * inner
