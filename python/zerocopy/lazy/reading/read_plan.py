"""Plan the requests that read parts of tensors, before a byte is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import display
from zerocopy.lazy.reading.extents import FileVersion
from zerocopy.lazy.reading.segments import MAX_REQUEST, MAX_WASTE, PAGE, Segment

#: Up to this number of requests to a file none reads more than it needs, but for gaps of a page.
MANY_REQUESTS = 1024
#: The most segments of a request: Linux takes 1024 buffers, and each segment may need one more for a gap.
MAX_SEGMENTS = 500


class Request(NamedTuple):
    """One ``preadv`` of segments that follow each other in a file; or one for each row of a segment that has rows.

    Attributes
    ----------
    offset, nbytes : int
        In the file, with the gaps between segments; of rows the bytes of one.
    segments : list of Segment
        At least one; exactly one if it has rows.
    """

    offset: int
    nbytes: int
    segments: list[Segment]

    @property
    def rows(self) -> int:
        """The number of system calls that the request takes."""
        return self.segments[0].rows

    @property
    def intervals(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each call, in the file."""
        step = self.segments[0].step
        for row in range(self.rows):
            yield self.offset + row * step, self.offset + row * step + self.nbytes


class FileReads(NamedTuple):
    """The requests to one file.

    Attributes
    ----------
    path : str
        Of the file.
    version : FileVersion or None
        The file is refused if it has another one when it is read.
    requests : list of Request
        In ascending order.
    """

    path: str
    version: FileVersion | None
    requests: list[Request]

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return sum(request.nbytes * request.rows for request in self.requests)

    @property
    def number(self) -> int:
        """The number of requests."""
        return sum(request.rows for request in self.requests)


class ReadPlan:
    """The requests that read some parts of tensors: what ``Checkpoint.plan`` returns.

    Attributes
    ----------
    nbytes : int
        The bytes of the parts.
    files : list of FileReads
        The requests to each file.
    whole : list of str
        Names of tensors that cannot be read by requests (compressed, sparse, in memory already): they are taken from
        the checkpoint as ``get_slice`` takes them.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(1000, 1000)}, file.name)
    ...     with zerocopy.open(file.name) as checkpoint:
    ...         plan = checkpoint.plan({"weight": slice(0, 10)})
    ...         plan.nbytes, plan.bytes_read, plan.requests
    (40000, 40000, 1)
    """

    def __init__(self, nbytes: int, files: list[FileReads], whole: list[str]) -> None:
        self.nbytes, self.files, self.whole = nbytes, files, whole

    @property
    def bytes_read(self) -> int:
        """The bytes of all requests. More than `nbytes` where small gaps are read along."""
        return sum(file.nbytes for file in self.files)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(file.number for file in self.files)

    def describe(self) -> str:
        """Return lines that say how many bytes are read, in how many requests, of each file."""
        return "\n".join(self._lines())

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "bytes": self.nbytes,
            "bytes_read": self.bytes_read,
            "requests": self.requests,
            "files": [
                {"path": file.path, "bytes_read": file.nbytes, "requests": file.number} for file in self.files
            ],
            "whole": list(self.whole),
        }

    def _lines(self) -> Iterator[str]:
        yield (
            f"{display.size(self.nbytes)} of tensors, by {display.count(self.requests, 'request')} "
            f"of {display.size(self.bytes_read)}"
        )
        for file in self.files:
            name = display.shown(Path(file.path).name)
            yield f"  {name}: {display.size(file.nbytes)}, {display.count(file.number, 'request')}"
        if self.whole:
            names = ", ".join(map(display.shown, self.whole[:10]))
            yield f"  not by requests: {display.count(len(self.whole), 'tensor')}: {names}"

    def __repr__(self) -> str:
        return f"<ReadPlan {next(self._lines())}>"


def requests_of(segments: Iterable[Segment]) -> list[Request]:
    """Return the requests that read segments of one file."""
    found = sorted(segments)
    ordered = [segment for segment in found if segment.rows == 1]
    requests = [Request(segment.offset, segment.nbytes, [segment]) for segment in found if segment.rows > 1]
    gap = _largest_gap(ordered)
    begin = end = 0
    joined: list[Segment] = []
    for segment in ordered:
        offset, last = segment.offset, segment.offset + segment.nbytes
        if joined and 0 <= offset - end <= gap and last - begin <= MAX_REQUEST and len(joined) < MAX_SEGMENTS:
            joined.append(segment)
        else:
            if joined:
                requests.append(Request(begin, end - begin, joined))
            begin, joined = offset, [segment]
        end = last
    if joined:
        requests.append(Request(begin, end - begin, joined))
    return requests


def _largest_gap(ordered: list[Segment]) -> int:
    """Return up to which gap neighbours become one request: a page, or more where there are very many requests."""
    if len(ordered) <= MANY_REQUESTS:
        return PAGE
    gaps = [after.offset - before.offset - before.nbytes for before, after in itertools.pairwise(ordered)]
    large = sorted(gap for gap in gaps if gap > PAGE)
    excess = len(large) + 1 - MANY_REQUESTS
    if excess <= 0:
        return PAGE
    allowed = MAX_WASTE * sum(segment.nbytes for segment in ordered)
    widest, wasted, at = PAGE, 0, 0
    while at < excess:
        same = at
        while same < len(large) and large[same] == large[at]:
            same += 1
        wasted += large[at] * (same - at)
        if wasted > allowed:
            break
        widest, at = large[at], same
    return widest
