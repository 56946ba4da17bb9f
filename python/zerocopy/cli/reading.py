"""Shared by the commands that read files: exit codes, JSON, errors, reports on several files."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from zerocopy.cli import output
from zerocopy.cli.runner import BAD, FINE, TROUBLE, Trouble, head
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder, shard_index

_MAX_MESSAGE = 1000

EXIT_CODES = """
exit codes:
  0  {fine}
  1  {bad}
  2  {trouble}
Of several files the highest counts. 130 after an interrupt.
"""


class Report(Protocol):
    """The result of a command for one file."""

    @property
    def code(self) -> int:
        """The exit code for this file."""

    def lines(self) -> Iterator[str]:
        """Yield what to print."""

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""


class Reason(NamedTuple):
    """Why a file is not fine."""

    kind: str  # docs/cli.md lists those of each command
    text: str


class Findings(Protocol):
    """The facts about a readable file that all commands report."""

    @property
    def path(self) -> str:
        """The file, as it was given."""

    @property
    def container(self) -> str:
        """Its format."""

    @property
    def reasons(self) -> list[Reason]:
        """Why it is not fine; none if it is."""

    @property
    def notes(self) -> list[str]:
        """Further remarks."""


def code_of(findings: Findings) -> int:
    """Return the exit code for a file."""
    return BAD if findings.reasons else FINE


def json_of(findings: Findings, verdicts: Sequence[str]) -> dict[str, Any]:
    """Return what ``--json`` prints of a file first."""
    return {
        "path": findings.path,
        "verdict": verdicts[code_of(findings)],
        "container": findings.container,
        "reasons": [reason._asdict() for reason in findings.reasons],
        "notes": findings.notes,
    }


class TroubleReport(NamedTuple):
    """The report on a file that is trouble."""

    path: str
    why: str
    code: int = TROUBLE

    def lines(self) -> Iterator[str]:
        """Yield nothing: trouble goes to standard error."""
        yield from ()

    def as_json(self) -> dict[str, Any]:
        """Return the same shape as other reports, up to the reasons."""
        reasons = [Reason("trouble", self.why)._asdict()]
        return {"path": self.path, "verdict": "trouble", "container": None, "reasons": reasons}


class OpenFile:
    """A regular file that is read by position. It never blocks, and one that shrinks is an exception."""

    part: tuple[int, int] | None = None  # offset and size of a part that stands for the whole

    def __init__(self, path: str) -> None:
        if "\0" in path:
            raise Trouble("embedded null byte")
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self.descriptor)
        self.size = status.st_size
        why = (
            "is a directory: give one of its files" if stat.S_ISDIR(status.st_mode)
            else "is not a regular file" if not stat.S_ISREG(status.st_mode)
            else "the file is empty" if not self.size
            else ""
        )  # fmt: skip
        if why:
            self.close()
            raise Trouble(why)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer only at its end."""
        pieces = []
        while size > 0 and (piece := os.pread(self.descriptor, size, offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, offset: int, size: int, length: int = 1 << 20) -> Iterator[bytes]:
        """Yield bytes of the file piece by piece."""
        end = offset + size
        while offset < end:
            piece = self.read(offset, min(length, end - offset))
            if not piece:
                raise Trouble(f"the file ends at {offset}: it became shorter")
            yield piece
            offset += len(piece)


class FilePart(OpenFile):
    """A part of an open file that is read like a file of its own: offsets count from its start."""

    def __init__(self, whole: OpenFile, offset: int, size: int) -> None:
        self.path, self.descriptor, self.size = whole.path, whole.descriptor, size
        self.part, self.offset = (offset, size), offset
        self._whole = whole

    def close(self) -> None:
        """Do nothing: the whole file owns the descriptor."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the part, fewer only at its end."""
        return self._whole.read(self.offset + offset, min(size, self.size - offset))


@contextlib.contextmanager
def standard_input(path: str) -> Iterator[str]:
    """Yield a path that can be opened: of "-" one of what standard input has, whole and in memory."""
    if path != "-":
        yield path
        return
    with os.fdopen(os.memfd_create("standard input"), "w+b") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield f"/proc/self/fd/{copy.fileno()}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what these commands share."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a checkpoint, an index of shards, or a folder"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (docs/cli.md describes it)"
    )


def files_of(path: str) -> list[str]:
    """Return the files that a path stands for: itself, the shards of an index, the model file of a folder.

    Raises
    ------
    Trouble
        If a folder holds no checkpoint, or an index cannot be read.
    """
    found = _located(path)
    if isinstance(found, str):
        raise Trouble(model_folder.OF_DISTRIBUTED)
    return found


def _located(path: str) -> list[str] | str:
    """Return the files of :func:`files_of`; of a folder of ``torch.distributed.checkpoint`` its path."""
    if "\0" in path:
        raise Trouble("embedded null byte")
    try:
        found = model_folder.located(path)
    except Error as error:
        raise Trouble(output.printable(str(error).removeprefix(f"{path}: "), _MAX_MESSAGE)) from None
    if isinstance(found, shard_index.Index):
        return [str(shard) for shard in found.shards]
    if os.path.isdir(found):  # noqa: PTH112  as in model_folder
        if not model_folder.is_distributed(found):
            raise Trouble(model_folder.not_a_checkpoint(found))
        return str(found)
    return [str(found)]


def report_on(
    command: str,
    options: argparse.Namespace,
    examine: Callable[[OpenFile], Report],
    examine_folder: Callable[[str], Iterator[Report]],
    verdicts: Sequence[str],
) -> int:
    """Examine every file and print what was found. Returns the exit code, the highest of all files.

    `examine_folder` yields the reports on a folder of ``torch.distributed.checkpoint``.
    """
    found: list[Report] = []
    for report in reports(options.files, examine, examine_folder):
        found.append(report)
        if isinstance(report, TroubleReport):
            output.print_error(f"zerocopy {command}: {output.named(report.path)}: {report.why}")
        if not options.json:
            output.say(report.lines())
    code = max((report.code for report in found), default=FINE)  # an index may have no shards
    if options.json:
        files = [report.as_json() for report in found]
        output.say_json({**head(command), "verdict": [*verdicts, "trouble"][code], "files": files})
    return code


def reports(
    paths: Sequence[str],
    examine: Callable[[OpenFile], Report],
    examine_folder: Callable[[str], Iterator[Report]],
) -> Iterator[Report]:
    """Yield the reports on the files that paths lead to."""
    for path in paths:
        try:
            found = _located(path)
            if isinstance(found, str):
                yield from examine_folder(found)
            else:
                for file in found:
                    yield report_of(file, examine)
        except (OSError, Trouble, MemoryError) as error:
            yield _trouble(path, error)


def report_of(path: str, examine: Callable[[OpenFile], Report]) -> Report:
    """Return the report on a file, also on one that is trouble."""
    try:
        with contextlib.closing(OpenFile(path)) as file:
            return examine(file)
    except (OSError, Trouble, MemoryError) as error:
        return _trouble(path, error)


def _trouble(path: str, error: OSError | Trouble | MemoryError) -> TroubleReport:
    if isinstance(error, OSError):
        return TroubleReport(path, error.strerror or type(error).__name__)
    return TroubleReport(path, str(error) if isinstance(error, Trouble) else "out of memory")
