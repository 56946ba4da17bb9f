"""Shared by the commands that read files: exit codes, JSON, errors, reports on several files."""

from __future__ import annotations

import abc
import argparse
import contextlib
import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

from zerocopy.catalogue.contents import Contents, contents_of
from zerocopy.catalogue.files import OpenFile, open_file
from zerocopy.cli import distributed_folder, output
from zerocopy.cli.distributed_folder import Archive
from zerocopy.cli.runner import BAD, FINE, TROUBLE, Trouble, add_json, head, why
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder, shard_index

_MAX_MESSAGE = 1000
_TROUBLE = "trouble"


class Reason(NamedTuple):
    """A reason why a file is not fine."""

    kind: str  # docs/reference/json.md lists those of each command
    text: str


def structure(error: object) -> Reason:
    """Return the reason of a file that contradicts its format."""
    return Reason("structure", output.escaped(str(error), _MAX_MESSAGE))


@dataclass(frozen=True)
class Report:
    """The findings of a command for one file.

    Attributes
    ----------
    path : str
        The file, as it was given.
    container : str or None
        Its format, or None if the file could not be read.
    reasons : list of Reason
        Why it is not fine; none if it is.
    notes : list of str
        Further remarks.
    """

    path: str
    container: str | None
    reasons: list[Reason]
    notes: list[str]

    @classmethod
    def of_trouble(cls, path: str, error: OSError | Trouble | MemoryError) -> Report:
        """Return the report on a file that cannot be examined."""
        return Report(path, None, [Reason(_TROUBLE, why(error))], [])

    @property
    def code(self) -> int:
        """The exit code for this file."""
        if not self.reasons:
            return FINE
        return TROUBLE if self.reasons[0].kind == _TROUBLE else BAD

    def lines(self) -> Iterator[str]:
        """Yield the lines to print; none for trouble, which goes to standard error."""
        yield from ()

    def as_json(self, verdicts: Sequence[str]) -> dict[str, Any]:
        """Return the report as ``--json`` prints it."""
        return {
            "path": self.path,
            "verdict": [*verdicts, _TROUBLE][self.code],
            "container": self.container,
            "reasons": [reason._asdict() for reason in self.reasons],
            "notes": self.notes,
        }


class Examiner(abc.ABC):
    """Examines the files that paths lead to."""

    #: The words for a file that is fine, and for one that is not.
    verdicts: tuple[str, str]

    @abc.abstractmethod
    def file(self, file: OpenFile) -> Report:
        """Examine a file."""

    @abc.abstractmethod
    def metadata(self, file: OpenFile, fault: Exception | None) -> Report:
        """Examine ``.metadata`` of a folder. `fault` is the error why zerocopy does not read it."""

    @abc.abstractmethod
    def archives(self, file: OpenFile, archives: list[Archive]) -> Report:
        """Examine a data file of a folder, and what lies in it, in the order of the file."""

    def index(self, index: shard_index.Index) -> Iterator[Report]:
        """Yield reports on an index beside those on its shards."""
        yield from ()


@contextlib.contextmanager
def standard_input(path: str) -> Iterator[str]:
    """Yield a path that can be opened. For "-" all of standard input is first copied to a file in memory.

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
    """Yield a path that can be opened, and the checkpoint's contents, under the path that was given."""
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
    """Declare the options that these commands share."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a checkpoint, an index of shards, a folder, or - for standard input",
    )
    add_json(parser)


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


def report_on(command: str, options: argparse.Namespace, examiner: Examiner) -> int:
    """Examine every file and print what was found. Returns the exit code, the highest of all files."""
    found: list[Report] = []
    for report in reports(options.files, examiner):
        found.append(report)
        if report.code == TROUBLE:
            output.print_error(f"zerocopy {command}: {output.named(report.path)}: {report.reasons[0].text}")
        if not options.json:
            output.say(report.lines())
    code = max((report.code for report in found), default=FINE)  # an index may have no shards
    if options.json:
        verdict = [*examiner.verdicts, _TROUBLE][code]
        files = [report.as_json(examiner.verdicts) for report in found]
        output.say_json({**head(command), "verdict": verdict, "files": files})
    return code


def reports(paths: Sequence[str], examiner: Examiner) -> Iterator[Report]:
    """Yield the reports on the files that paths lead to."""
    for path in paths:
        try:
            if model_folder.is_distributed(path):
                yield from _of_folder(path, examiner)
            elif path == "-":
                with standard_input(path) as file:
                    yield dataclasses.replace(_report_of(file, examiner.file), path=path)
            else:
                found = _located(path)
                for file in model_folder.files_of(found):
                    yield _report_of(file, examiner.file)
                if isinstance(found, shard_index.Index):
                    yield from examiner.index(found)
        except (OSError, Trouble, MemoryError) as error:
            yield Report.of_trouble(path, error)


def _of_folder(path: str, examiner: Examiner) -> Iterator[Report]:
    """Yield the reports on the files of a folder of ``torch.distributed.checkpoint``."""
    files, fault = distributed_folder.archives_by_file(path)
    yield _report_of(str(Path(path, ".metadata")), lambda file: examiner.metadata(file, fault))
    if fault is not None:
        return
    there = {name for name in files if os.path.lexists(os.path.join(path, name))}
    for name in sorted({*there, *(file.name for file in Path(path).glob("*.distcp"))}):
        held = sorted(files.get(name, ()), key=lambda archive: (archive.offset, archive.size))
        yield _report_of(str(Path(path, name)), functools.partial(examiner.archives, archives=held))
    if missing := [output.escaped(name) for name in files if name not in there]:
        error = Trouble(f"files that .metadata refers to do not exist: {output.listed(missing)}")
        yield Report.of_trouble(path, error)


def _report_of(path: str, examine: Callable[[OpenFile], Report]) -> Report:
    """Return the report on a file, also on one that is trouble."""
    try:
        with contextlib.closing(open_file(path)) as file:
            return examine(file)
    except (OSError, Trouble, MemoryError) as error:
        return Report.of_trouble(path, error)
