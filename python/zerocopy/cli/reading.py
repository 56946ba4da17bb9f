"""Shared by the commands that read files: exit codes, JSON, errors, reports on several files."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pickle import UnpicklingError
from typing import Any, NamedTuple, Protocol

from zerocopy.catalogue.contents import Contents, contents_of
from zerocopy.catalogue.files import OpenFile
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
    """The result of a command for one file, a named tuple."""

    @property
    def _replace(self) -> Callable[..., Any]:
        """Returns it with other fields."""

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


@contextlib.contextmanager
def standard_input(path: str) -> Iterator[str]:
    """Yield a path that can be opened: of "-" one of what standard input has, whole and in memory.

    Errors name the path as it was given.
    """
    if path != "-":
        yield path
        return
    with os.fdopen(os.memfd_create("standard input"), "w+b") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        name = f"/proc/self/fd/{copy.fileno()}"
        try:
            yield name
        except (Error, Trouble, UnpicklingError) as error:
            error.args = (str(error).replace(name, path),)
            raise


@contextlib.contextmanager
def contents(given: str, *, strict: bool = True) -> Iterator[tuple[str, Contents]]:
    """Yield a path that can be opened, and what is in the checkpoint there, under the path that was given."""
    with standard_input(given) as path:
        found = contents_of(path, strict=strict)
        if path != given:
            entries = [entry._replace(file=given) for entry in found.entries]
            found = found._replace(path=given, files=[given], entries=entries)
        yield path, found


def add_file(parser: argparse.ArgumentParser) -> None:
    """Declare the one file of a command."""
    parser.add_argument(
        "file", metavar="FILE", help="a checkpoint, an index of shards, a folder, or - for standard input"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what these commands share."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a checkpoint, an index of shards, a folder, or - for standard input",
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
    if model_folder.is_distributed(path):
        raise Trouble(model_folder.OF_DISTRIBUTED)
    return model_folder.files_of(_located(path))


def _located(path: str) -> Any:
    if "\0" in path:
        raise Trouble("embedded null byte")
    try:
        return model_folder.located(path)
    except Error as error:
        raise Trouble(output.printable(str(error).removeprefix(f"{path}: "), _MAX_MESSAGE)) from None


ExamineIndex = Callable[[shard_index.Index], Iterator[Report]]


def report_on(
    command: str,
    options: argparse.Namespace,
    examine: Callable[[OpenFile], Report],
    examine_folder: Callable[[str], Iterator[Report]],
    verdicts: Sequence[str],
    examine_index: ExamineIndex | None = None,
) -> int:
    """Examine every file and print what was found. Returns the exit code, the highest of all files.

    `examine_folder` yields the reports on a folder of ``torch.distributed.checkpoint``, and `examine_index` those on an
    index beside its shards.
    """
    found: list[Report] = []
    for report in reports(options.files, examine, examine_folder, examine_index):
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
    examine_index: ExamineIndex | None = None,
) -> Iterator[Report]:
    """Yield the reports on the files that paths lead to."""
    for path in paths:
        try:
            if model_folder.is_distributed(path):
                yield from examine_folder(path)
                continue
            if path == "-":
                with standard_input(path) as file:
                    yield report_of(file, examine)._replace(path=path)
                continue
            found = _located(path)
            for file in model_folder.files_of(found):
                yield report_of(file, examine)
            if examine_index is not None and isinstance(found, shard_index.Index):
                yield from examine_index(found)
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
