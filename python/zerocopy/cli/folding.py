"""Folds equal layers: tensors whose names differ in numbers alone become one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from zerocopy.catalogue.contents import Entry

_NUMBER = re.compile(r"(?<![^.])(\d{1,9})(?![^.])")
_MAX_RANGES = 6
# Names of an optimizer's tensors, which have the number of a parameter (torch.optim.Optimizer.state_dict). Those of one
# kind are one row, whatever their shapes.
_OF_OPTIMIZER = re.compile(r"(?:^|\.)state\.\d+\.\w+$")


class Row(NamedTuple):
    """One row of a list: a tensor, or several of one dtype. Their shapes are equal too, except in an optimizer's state.

    Attributes
    ----------
    name : str
        With ranges in place of numbers: ``layers.{0..31}.weight``.
    entries : tuple of Entry
        In file order.
    tie : str
        The name of the tensor with the same bytes or storage, or empty. If each tensor of the row is tied to a
        different one, this name has ranges too.
    is_view : bool
        Whether the tie is about the storage alone: other bytes of it, or another shape.
    """

    name: str
    entries: tuple[Entry, ...]
    tie: str
    is_view: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(entry.nbytes for entry in self.entries)

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes of its tensors, each once."""
        return list(dict.fromkeys(entry.shape for entry in self.entries))


def single(entry: Entry) -> Row:
    """Return the row of one tensor."""
    return Row(entry.name, (entry,), entry.same_as or entry.shares_with, not entry.same_as)


class _Block(NamedTuple):
    """Tensors of one template: which numbers they have at each place of the template, and their positions."""

    numbers: tuple[tuple[int, ...], ...]
    positions: tuple[int, ...]


def folded(entries: Sequence[Entry]) -> list[Row]:
    """Return entries as rows, in the order of the first tensor of each row."""
    groups: dict[tuple[Any, ...], list[_Block]] = {}
    for position, entry in enumerate(entries):
        parts = _NUMBER.split(entry.name)
        numbers = parts[1::2]
        # A number with leading zeros is a part of the name: a range could not spell it.
        if any(number[0] == "0" and number != "0" for number in numbers):
            parts, numbers = [entry.name], []
        tie = entry.same_as or entry.shares_with
        if tie and numbers:
            other = _NUMBER.split(tie)
            tie = "\0".join(other[::2]) if other[1::2] == numbers else tie
        key: tuple[Any, ...] = (
            tuple(parts[::2]), entry.dtype, None if _OF_OPTIMIZER.search(entry.name) else entry.shape,
            entry.made_by, entry.inside, tie, bool(entry.same_as),
        )  # fmt: skip
        block = _Block(tuple((int(number),) for number in numbers), (position,))
        groups.setdefault(key, []).append(block)
    rows = []
    for key, blocks in groups.items():
        template: tuple[str, ...] = key[0]
        merged = _merged(blocks, len(template) - 1) if len(blocks) > 1 else blocks
        rows += [(block.positions[0], _row(template, block, entries)) for block in merged]
    rows.sort(key=lambda row: row[0])
    return [row for _, row in rows]


def _merged(blocks: list[_Block], places: int) -> list[_Block]:
    """Join blocks that differ in one place alone, place by place."""
    for place in reversed(range(places)):
        joined: dict[tuple[object, ...], list[_Block]] = {}
        for block in blocks:
            rest = block.numbers[:place] + block.numbers[place + 1 :]
            joined.setdefault(rest, []).append(block)
        blocks = [group[0] if len(group) == 1 else _join(group, place) for group in joined.values()]
    return blocks


def _join(group: list[_Block], place: int) -> _Block:
    numbers = sorted(number for block in group for number in block.numbers[place])
    first = group[0].numbers
    positions = sorted(position for block in group for position in block.positions)
    return _Block((*first[:place], tuple(numbers), *first[place + 1 :]), tuple(positions))


def _row(template: tuple[str, ...], block: _Block, entries: Sequence[Entry]) -> Row:
    held = tuple(entries[position] for position in block.positions)
    first = held[0]
    if len(held) == 1:
        return single(first)
    spelled = [ranges(numbers) for numbers in block.numbers]
    name = _filled(template, spelled)
    tie = first.same_as or first.shares_with
    parts = _NUMBER.split(tie)
    if tie and parts[1::2] == _NUMBER.split(first.name)[1::2]:
        tie = _filled(parts[::2], spelled)
    return Row(name, held, tie, not first.same_as)


def _filled(template: Sequence[str], spelled: Iterable[str]) -> str:
    return template[0] + "".join(
        f"{number}{text}" for number, text in zip(spelled, template[1:], strict=True)
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ``{0..31}``; a single one as it is."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    spelled = [str(a) if a == b else f"{a}..{b}" for a, b in runs[:_MAX_RANGES]]
    return "{" + ",".join(spelled) + (",..." if len(runs) > _MAX_RANGES else "") + "}"
