"""Plan the requests that read parts of tensors, before a byte is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import display
from zerocopy.lazy.reading.segments import Segment
from zerocopy.loading.extents import FileVersion


class FileReads(NamedTuple):
    """The requests to one file.

    Attributes
    ----------
    path : str
        Path of the file.
    version : FileVersion or None
        The file is refused if it has another version when it is read.
    requests : list of Segment
        In ascending order. A segment stands for one request, or, if it has rows, for one request per row.
    """

    path: str
    version: FileVersion | None
    requests: list[Segment]

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return sum(request.nbytes * request.rows for request in self.requests)

    @property
    def number(self) -> int:
        """The number of requests."""
        return sum(request.rows for request in self.requests)


class ReadPlan:
    """The requests that read some parts of tensors. ``Checkpoint.plan`` returns it.

    Attributes
    ----------
    nbytes : int
        The bytes of the parts.
    files : list of FileReads
        The requests to each file.
    whole : list of str
        Names of tensors that requests cannot read (compressed, sparse, in memory already). They are read as by
        ``get_slice``.

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
        """The bytes of all requests: more than `nbytes` if requests also read small gaps."""
        return sum(file.nbytes for file in self.files)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(file.number for file in self.files)

    def describe(self) -> str:
        """Return a text with the bytes and the number of requests, in all and for each file."""
        return "\n".join(self._lines())

    def as_json(self) -> dict[str, Any]:
        """Return the facts of :meth:`describe` as JSON can have them."""
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
            f"for {display.size(self.bytes_read)} in all"
        )
        for file in self.files:
            name = display.shown(Path(file.path).name)
            yield f"  {name}: {display.size(file.nbytes)}, {display.count(file.number, 'request')}"
        if self.whole:
            names = ", ".join(map(display.shown, self.whole[:10]))
            yield f"  not by requests: {display.count(len(self.whole), 'tensor')}: {names}"

    def __repr__(self) -> str:
        return f"<ReadPlan {next(self._lines())}>"
