"""Renames and takes out keys of the dicts in a pickle. The pickle is read as opcodes; nothing that it names is called.

All other opcodes stay as they are, in their order. A removed part may define memo entries that the rest uses:
the first tensor of a file defines the globals of all tensors. Such a definition moves to its first remaining
use.
"""

from __future__ import annotations

import itertools
import pickletools
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.saving.pickle_entries import PLAIN, Entry, EntryNames, Place, Value, require_different

_IN_PLACE = frozenset(["APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"])
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_TEXTS = frozenset(["UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"])
_NUMBERS = frozenset(["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"])
# They make what may have entries.
_MAKERS = frozenset(
    ["EMPTY_DICT", "DICT", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "PERSID", "BINPERSID"]
)
# The kinds of opcodes for a pickle that is written again.
_COPIED, _GET, _PUT, _LEFT_OUT = range(4)


class PickleEditor:
    """The keys of the dicts in a pickle.

    Parameters
    ----------
    pickle : bytes
        A whole one.
    """

    def __init__(self, pickle: bytes) -> None:
        self._pickle = pickle
        # Of each opcode: where it begins, what it is, and the memo entry that it is about.
        self._begins, self._kinds, self._slots = array("Q"), bytearray(), array("q")
        self._memo: dict[int, Place] = {}
        self._root = self._read()
        self._entries = EntryNames(self._root.value)
        # From an opcode: up to which, and what is there instead.
        self._changes: dict[int, tuple[int, bytes]] = {}
        # From the first opcode of an object that was written before: up to which, and where it is in the memo.
        self._moved: dict[int, tuple[int, int]] = {}

    def rename(self, names: Mapping[str, str]) -> None:
        """Give entries other keys, all at once: they may swap them. Names are keys joined by dots."""
        keys: dict[int, tuple[Entry, str]] = {}
        holders: dict[int, Value] = {}
        for old, new in names.items():
            found, prefix, holder = self._entries.find(old)
            if not isinstance(new, str):
                raise TypeError(f"the new name of {old!r} is {new!r}, not a str")
            if not new.startswith(prefix) or new == prefix:
                where = f"begins with {prefix!r}" if prefix else "is not empty"
                raise ValueError(f"{old!r} stays in its dict: its new name {where}, unlike {new!r}")
            if not found.key.value.is_text:
                raise UnsupportedError(f"{old!r} has a key that is not a str")
            key = new.removeprefix(prefix)
            if keys.setdefault(id(found.key), (found, key))[1] != key:
                raise ValueError(f"{old!r} is another entry too, with another new name than {new!r}")
            holders[id(holder)] = holder
        for holder in holders.values():
            require_different(holder, {place: key for place, (_, key) in keys.items()})
        for found, key in keys.values():
            if key != found.key.value.key:
                encoded = key.encode("utf-8", "surrogatepass")
                code = b"X" + struct.pack("<I", len(encoded)) + encoded
                self._changes[found.key.begin] = found.key.end, code
                found.key.value = Value(key, is_text=True)  # other places may have the same key

    def drop(self, names: Iterable[str]) -> None:
        """Take entries out of their dicts, all at once: one may lie in another."""
        # Two names may lead to one entry, of a dict that is in two places.
        for entry in {id(entry): entry for entry, _, _ in map(self._entries.find, names)}.values():
            self._changes[entry.key.begin] = entry.value.end, b""
            if entry.setter is not None:
                self._changes[entry.setter] = entry.setter + 1, b""

    @property
    def is_changed(self) -> bool:
        """Return whether anything was renamed or dropped."""
        return bool(self._changes)

    def edited(self) -> bytes:
        """Return the pickle with its changes."""
        written, defined = bytearray(), dict[int, int]()
        try:
            self._write(0, len(self._kinds), written, defined)
        except RecursionError:
            raise UnsupportedError("the pickle is nested too deeply to be edited") from None
        return bytes(written)

    def _read(self) -> Place:
        stack: list[Place | int] = []  # numbers: of opcodes that put a mark there
        for i, op in enumerate(_ops_of(self._pickle)):
            kind, slot = _COPIED, -1
            if op.name in _PUTS:
                kind, slot = _PUT, len(self._memo) if op.name == "MEMOIZE" else int(op.argument)
                top = stack[-1] if stack else -1
                if isinstance(top, int) or slot in self._memo:
                    raise UnsupportedError("the pickle uses its memo as no pickler does")
                self._memo[slot] = top
                top.end = i + 1
            elif op.name in _GETS:
                kind, slot = _GET, int(op.argument)
                if slot not in self._memo:
                    raise FormatError("the pickle reads a memo entry that it did not write")
                stack.append(Place(i, i + 1, self._memo[slot].value))
            elif op.name == "MARK":
                stack.append(i)
            elif op.name == "FRAME":  # a hint about lengths, which are going to be others
                kind = _LEFT_OUT
            elif op.name not in ("PROTO", "STOP"):
                self._apply(i, op, stack)
            self._begins.append(op.begin)
            self._kinds.append(kind)
            self._slots.append(slot)
        self._begins.append(self._begins[-1] + 1)  # what follows STOP is not the pickle's
        if len(stack) != 1 or isinstance(stack[0], int):
            raise FormatError(f"expected one object at the end of the pickle, found {len(stack)}")
        return stack[0]

    def _apply(self, i: int, op: _Op, stack: list[Place | int]) -> None:
        """Take from the stack what an opcode takes, and put there what it makes."""
        info = op.info
        before, begin, items = info.stack_before, i, list[Place]()
        if pickletools.markobject in before:
            items, begin = _to_mark(stack)
            before = before[: before.index(pickletools.markobject)]
        below = _taken(stack, len(before))
        if op.name in _IN_PLACE:
            target = below[0]
            target.end = i + 1
            if op.name in ("SETITEM", "SETITEMS"):
                if target.value.entries is None:
                    raise UnsupportedError("the pickle sets items of an object that is not a dict")
                setter = i if op.name == "SETITEM" else None
                items = items or below[1:]
                target.value.entries += map(Entry, items[::2], items[1::2], itertools.repeat(setter))
            stack.append(target)
        elif len(info.stack_after) > 1:
            raise UnsupportedError(f"the pickle has {op.name}, which no pickler writes")
        elif info.stack_after:
            value = PLAIN
            if op.name in _TEXTS or op.name in _NUMBERS:
                value = Value(_spelled(op.argument), is_text=op.name in _TEXTS)
            elif op.name in _MAKERS:
                pairs = items if op.name == "DICT" else []
                value = Value(entries=[*map(Entry, pairs[::2], pairs[1::2], itertools.repeat(None))])
            stack.append(Place(below[0].begin if below else begin, i + 1, value))

    def _write(
        self, begin: int, end: int, written: bytearray, defined: dict[int, int], at_all: int = -1
    ) -> None:
        """Write opcodes, the one at `at_all` also if it was changed.

        Memo entries are numbered anew, from 0 on: `defined` has the new numbers.
        """
        i = begin
        while i < end:
            if i in self._changes and i != at_all:
                i, instead = self._changes[i]
                written += instead
                continue
            if i in self._moved:
                i, slot = self._moved[i]
                written += _slot_code(b"h", b"j", defined[slot])
                continue
            kind, slot = self._kinds[i], self._slots[i]
            if kind == _GET:
                if slot in defined:
                    written += _slot_code(b"h", b"j", defined[slot])
                else:
                    place = self._memo[slot]
                    self._write(place.begin, place.end, written, defined, at_all=place.begin)
                    self._note_moved(place, defined)
            elif kind == _PUT:
                defined[slot] = len(defined)
                written += _slot_code(b"q", b"r", defined[slot])
            elif kind == _COPIED:
                written += self._pickle[self._begins[i] : self._begins[i + 1]]
            i += 1

    def _note_moved(self, place: Place, defined: Mapping[int, int]) -> None:
        """Note that an object, and what is in it and has places in the memo, is written already."""
        for i in range(place.begin, place.end):
            slot = self._slots[i]
            if self._kinds[i] == _PUT and slot in defined:
                inner = self._memo[slot]
                moved = inner.end, slot
                self._moved[inner.begin] = max(moved, self._moved.get(inner.begin, moved))


def _spelled(argument: Any) -> str:
    try:
        return str(argument)
    except ValueError:  # an integer of more digits than Python writes
        return hex(argument)


def _slot_code(short: bytes, long: bytes, slot: int) -> bytes:
    return short + bytes([slot]) if slot < 256 else long + struct.pack("<I", slot)


class _Op(NamedTuple):
    info: pickletools.OpcodeInfo
    argument: Any
    begin: int

    @property
    def name(self) -> str:
        return self.info.name


def _ops_of(pickle: bytes) -> Iterator[_Op]:
    try:
        yield from itertools.starmap(_Op, pickletools.genops(pickle))
    except ValueError as error:
        raise FormatError(f"the pickle is damaged: {error}") from None


def _to_mark(stack: list[Place | int]) -> tuple[list[Place], int]:
    items: list[Place] = []
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            return items[::-1], top
        items.append(top)
    raise FormatError("the pickle lacks a mark where an opcode needs one")


def _taken(stack: list[Place | int], count: int) -> list[Place]:
    taken = [item for item in stack[len(stack) - count :] if not isinstance(item, int)]
    if count > len(stack) or len(taken) < count:
        raise FormatError("an opcode of the pickle takes more values than its stack has")
    del stack[len(stack) - count :]
    return taken
