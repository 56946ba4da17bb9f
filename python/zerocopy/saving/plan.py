"""Lays out a checkpoint before its storages are written, so that a process without Python can write it.

A plan is a list of steps, and the bytes that are not of storages (the literals). Checksums are not known yet: each
step that has one says where in the literals it belongs. ``csrc/container/planned_archive.h`` carries it out.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zerocopy.saving.checkpoint_writer import CheckpointWriter
from zerocopy.saving.sink import Written, unnoticed

_STEP = struct.Struct("<IIQQiIQQ")  # container/planned_archive.h: Step
_MENTION = struct.Struct("<QQ")  # container/planned_archive.h: Mention
_LITERAL, _HOLE, _MEMORY, _PART, _IDENTIFIER = range(5)
_HAS_CHECKSUM, _KNOWS_CHECKSUM, _COUNTS = 1, 2, 4
_IDENTIFIER_DIGITS = 40
# Of a record's entry in the directory of a zip archive (APPNOTE 4.3.12): bytes without name and fields, and where
# its checksum and the lengths of these are. A data descriptor (4.3.9) has its checksum behind a signature.
_ENTRY, _ENTRY_CHECKSUM, _ENTRY_LENGTHS = 46, 16, 28
_DESCRIPTOR_CHECKSUM = 4


class Plan(NamedTuple):
    """The arguments of ``_core.PlannedSave``."""

    steps: bytes
    literals: bytes
    text: bytes
    mentions: bytes


class _Step(NamedTuple):
    kind: int
    flags: int = 0
    begin: int = 0
    size: int = 0
    source: int = -1
    known: int = 0


class _StepSink:
    """A sink that notes what is written instead."""

    def __init__(self) -> None:
        self.position = 0
        self.literals = bytearray()
        self.steps: list[_Step] = []
        self._begin = 0  # of the literals that belong to no step yet

    def write(self, data: memoryview, written: Written = unnoticed) -> None:
        self.literals += data
        self.position += data.nbytes
        written(data.nbytes)

    def skip(self, size: int) -> None:
        self.add(_Step(_HOLE, size=size))

    def share(self, source: int, offset: int, size: int, written: Written) -> bool:
        return False

    def copy(self, source: int, offset: int, size: int, written: Written) -> int:
        return 0

    def add(self, step: _Step) -> None:
        self.end_literal()
        self.steps.append(step)
        self.position += step.size

    def end_literal(self) -> None:
        if size := len(self.literals) - self._begin:
            self.steps.append(_Step(_LITERAL, begin=self._begin, size=size))
            self._begin = len(self.literals)


class CheckpointPlanner(CheckpointWriter):
    """Plans what a ``CheckpointWriter`` writes, to the byte; :meth:`plan` ends it.

    Parameters
    ----------
    alignment : int
        Of the bytes of storages in the archive.
    checksum : bool
        Whether storages get theirs.
    """

    def __init__(self, alignment: int, checksum: bool) -> None:
        self._steps = _StepSink()
        self._entry_of_step: dict[int, int] = {}
        self._places: dict[
            int, int
        ] = {}  # in the literals, by step: where a data descriptor has its checksum
        super().__init__(self._steps, alignment, checksum, regular=True)

    @property
    def position(self) -> int:
        """The offset at which the next record begins, or its padding."""
        return self._steps.position

    def memory(self, key: str, address: int, size: int) -> None:
        """Add a storage that this process has in memory."""
        self._plan(f"data/{key}", _Step(_MEMORY, _COUNTS, address, size))

    def part(self, key: str, descriptor: int, offset: int, size: int, known: int | None) -> None:
        """Add a storage that an open file has, and its checksum if that is known."""
        flags = _COUNTS | (0 if known is None else _KNOWS_CHECKSUM)
        self._plan(f"data/{key}", _Step(_PART, flags, offset, size, descriptor, known or 0))

    def hole(self, key: str, size: int) -> None:
        """Add room for a storage."""
        self._plan(f"data/{key}", _Step(_HOLE, _COUNTS, 0, size))

    def plan(self) -> Plan:
        """Add what comes behind the storages, and return the plan."""
        self.finish()
        at = self._directory
        entry_places = []
        for _ in self._zip.entries:
            entry_places.append(at + _ENTRY_CHECKSUM)
            lengths = struct.unpack_from("<HHH", self._steps.literals, at + _ENTRY_LENGTHS)
            at += _ENTRY + sum(lengths)
        self._steps.end_literal()
        packed = bytearray()
        for number, step in enumerate(self._steps.steps):
            entry = self._entry_of_step.get(number)
            places = (0, 0) if entry is None else (self._places[number], entry_places[entry])
            packed += _STEP.pack(*step, *places)
        return Plan(bytes(packed), bytes(self._steps.literals), self._text, self._mentions)

    def _finish_zip(self) -> None:
        self._directory = len(self._steps.literals)
        super()._finish_zip()

    def _add_identifier(self) -> None:
        checksums = {entry: number for number, entry in self._entry_of_step.items()}
        text, mentions = bytearray(), bytearray()
        for number, entry in enumerate(self._zip.entries):
            text += f"{entry.name} {entry.size} ".encode()
            if number in checksums:
                mentions += _MENTION.pack(len(text), checksums[number])
            else:
                text += str(entry.crc).encode()
            text += b"\n"
        self._text, self._mentions = bytes(text[:-1]), bytes(mentions)

        def put(_: object) -> int:
            begin = len(self._steps.literals)
            self._note(_Step(_IDENTIFIER, _HAS_CHECKSUM, begin))
            self._steps.write(memoryview(bytes(_IDENTIFIER_DIGITS)))
            self._places[len(self._steps.steps) - 1] = len(self._steps.literals) + _DESCRIPTOR_CHECKSUM
            return 0

        self._zip.add(self.IDENTIFIER, _IDENTIFIER_DIGITS, put)

    def _plan(self, name: str, step: _Step) -> None:
        def put(_: object) -> int:
            if step.size:
                flags = step.flags | (_HAS_CHECKSUM if self._checksum else 0)
                self._note(step._replace(flags=flags))
                place = len(self._steps.literals) + _DESCRIPTOR_CHECKSUM
                self._places[len(self._steps.steps) - 1] = place
            return 0

        self._zip.add(name, step.size, put, self._alignment)

    def _note(self, step: _Step) -> None:
        """Add a step of the record that is being added, the next in the directory."""
        self._steps.add(step)
        self._entry_of_step[len(self._steps.steps) - 1] = len(self._zip.entries)
