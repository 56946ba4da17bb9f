"""The storages of a file on a device: one allocation, into which the file's bytes come as they lie in it.

::

    file      ┊header┊ a ┊ b  ┊ c ┊ directory      what lies between records comes along where it is little
    device           ┊ a ┊ b  ┊ c ┊                as far behind a page as in the file, so blocks fall together
"""

from __future__ import annotations

import bisect
import contextlib
from typing import NamedTuple

import torch

from zerocopy.gds.buffers import registered
from zerocopy.gds.channel import Channel, Part

_BLOCK = 4096
_MAX_GAP = 1 << 16


class Record(NamedTuple):
    """The place of a storage's bytes in the file, and the size of its elements."""

    offset: int
    size: int
    element: int


class _Run(NamedTuple):
    """Bytes of the file that come together, and where they begin in the image."""

    offset: int
    size: int
    begin: int


class Image:
    """Storages over one allocation, which lives as long as one of them does. It is read when the first is wanted.

    Parameters
    ----------
    records : list of Record
        Of the storages.
    device : torch.device
        Where to.
    name : str
        The name of the file in errors.
    """

    def __init__(self, records: list[Record], device: torch.device, name: str) -> None:
        self.device = device
        self._records, self._name = records, name
        self._runs = _runs_of(records)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._whole: torch.UntypedStorage | None = None
        self._lead = 0

    @property
    def size(self) -> int:
        """The bytes of the allocation."""
        return self._runs[-1].begin + self._runs[-1].size + _BLOCK if self._runs else 0

    def storage(self, number: int, channel: Channel) -> torch.UntypedStorage:
        """Return a storage; the same one for the same number."""
        found = self._storages.get(number)
        if found is None:
            found = self._storages[number] = self._made(self._records[number], channel)
        return found

    def _made(self, record: Record, channel: Channel) -> torch.UntypedStorage:
        if not record.size:
            return torch.UntypedStorage(0, device=self.device)
        if self._whole is None:
            self._whole = self._read(channel)
        run = self._runs[bisect.bisect_right(self._runs, record.offset, key=lambda run: run.offset) - 1]
        begin = self._lead + run.begin + record.offset - run.offset
        part = self._whole[begin : begin + record.size]
        # No kernel reads elements that do not lie at multiples of their size.
        return part.clone() if record.offset % record.element else part

    def _read(self, channel: Channel) -> torch.UntypedStorage:
        channel.register_if_taken()
        try:
            whole = torch.UntypedStorage(self.size, device=self.device)
        except RuntimeError as error:
            raise type(error)(
                f"{self._name}: {self.size} bytes are needed on {self.device}: {error}"
            ) from error
        self._lead = -whole.data_ptr() % _BLOCK
        parts = [Part(run.offset, whole, self._lead + run.begin, run.size) for run in self._runs]
        with registered(whole) if channel.native is not None else contextlib.nullcontext():
            channel.read_all(parts)
        return whole


def _runs_of(records: list[Record]) -> list[_Run]:
    """Return the runs of neighbours, one behind the other, each as far behind a block as in the file."""
    there = sorted(record for record in records if record.size)
    if not there:
        return []
    runs: list[_Run] = []
    begin, end, place = there[0].offset, there[0].offset, there[0].offset % _BLOCK
    for offset, size, _ in there:
        if offset - end > _MAX_GAP:
            runs.append(_Run(begin, end - begin, place))
            behind = place + end - begin
            begin, end, place = offset, offset, behind + (offset - behind) % _BLOCK
        end = max(end, offset + size)
    return [*runs, _Run(begin, end - begin, place)]
