"""``zerocopy scan``: what the pickles of a file name and do, and whether a safe load would take the file.

Nothing of the file is imported, called or built. The verdict is that of the safe loader's own reader and lists; the
walk over the opcodes only informs people.
"""

from __future__ import annotations

import argparse
import itertools
import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

from zerocopy import _core
from zerocopy.catalogue import layout
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli import distributed_folder, pickles, policy, reading, runner
from zerocopy.cli.distributed_folder import Archive
from zerocopy.cli.output import escaped, listed
from zerocopy.cli.pickles import Global, Pickle
from zerocopy.cli.reading import Reason, Report
from zerocopy.errors import Error
from zerocopy.loading.objects.global_names import Name, printable

DESCRIPTION = """
Lists the globals that the pickles of checkpoints name, and whether zerocopy.load accepts each file with
weights_only=True, its default. Nothing of a file is imported, run or built.
"""

EPILOG = (
    runner.exit_codes(
        fine="safe: nothing is refused by policy, and there is one way to read the file",
        bad="unsafe: the reasons are listed",
        trouble="a file could not be read, or is not a checkpoint",
        several=runner.OF_SEVERAL,
    )
    + """
example:
  $ zerocopy scan downloads/*.pt
  $ zerocopy scan --json model.pt | jq '.files[].reasons'

"safe" means that every global is on the allow-list. Nobody can tell whether weights are free of malice.
"""
)

_MAX_PICKLES = 1000
_MAX_SHOWN = 200  # globals of a pickle that are printed
_MAX_REASON_LENGTH = 1000

#: Opcodes that no honest checkpoint of tensors has, and why they are worth a look.
_OF_INTEREST = {
    "INST": "names and calls a global in one step",
    "OBJ": "calls a global",
    "NEWOBJ_EX": "makes an object with keyword arguments",
    "EXT1": "names a global by a number of copyreg's registry",
    "EXT2": "names a global by a number of copyreg's registry",
    "EXT4": "names a global by a number of copyreg's registry",
    "PERSID": "a persistent id of text",
    "POP": "drops a value: the code that made it ran",
    "POP_MARK": "drops values: the code that made them ran",
    "DUP": "repeats a value; no pickler writes it",
    "NEXT_BUFFER": "takes a buffer from outside of the file",
    "READONLY_BUFFER": "takes a buffer from outside of the file",
}
_OPCODE_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


@dataclass(frozen=True)
class Scan(Report):
    """The findings of ``scan`` for one file."""

    found: list[Pickle]
    more_pickles: bool

    def lines(self) -> Iterator[str]:
        """Yield a report of the file."""
        yield f"{escaped(self.path)}: {Scanner.verdicts[self.code]} ({self.container})"
        for reason in self.reasons:
            yield f"  {reason.text}"
        for note in self.notes:
            yield f"  note: {note}"
        for found in self.found:
            yield from _lines_of(found)
        if self.more_pickles:
            yield f"  more pickles, which were not listed: {_MAX_PICKLES} are"

    def as_json(self, verdicts: Sequence[str]) -> dict[str, Any]:
        """Return the report as ``--json`` prints it."""
        return super().as_json(verdicts) | {
            "pickles": [_json_of(found) for found in self.found],
            "more_pickles": self.more_pickles,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_arguments(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Scan the files, and return the exit code."""
    return reading.report_on("scan", options, Scanner())


class Scanner(reading.Examiner):
    """Scans files."""

    verdicts = ("safe", "unsafe")

    def file(self, file: OpenFile) -> Scan:
        """Scan a file."""
        return _examine(file, layout.container_of(file), _MAX_PICKLES)

    def archives(self, file: OpenFile, archives: list[Archive]) -> Scan:
        """Scan each archive that ``.metadata`` finds in a data file as a file of its own."""
        faults: dict[str, list[str]] = {}
        found: list[Pickle] = []
        more_pickles = False
        for archive, part, fault in distributed_folder.parts_of(file, archives):
            if fault is not None:
                faults.setdefault("structure", []).append(
                    f"{escaped(archive.name)}: {reading.structure(fault).text}"
                )
                continue
            scanned = _examine(part, "zip", _MAX_PICKLES - len(found))
            for reason in scanned.reasons:
                faults.setdefault(reason.kind, []).append(f"{escaped(archive.name)}: {reason.text}")
            more_pickles |= scanned.more_pickles
            for one in scanned.found:
                offset = None if one.offset is None else archive.offset + one.offset
                found.append(one._replace(name=f"{archive.name}: {one.name}", offset=offset))
        reasons = [Reason(kind, listed(texts)) for kind, texts in faults.items()]
        notes = [*_notes("distributed", found), *distributed_folder.notes(file, archives)]
        return Scan(file.path, "distributed", reasons, notes, found, more_pickles)

    def metadata(self, file: OpenFile, fault: Exception | None) -> Scan:
        """Scan ``.metadata``, which torch unpickles without an allow-list."""
        own = distributed_folder.GLOBALS
        reasons = [reading.structure(fault)] if fault else []
        found = [
            one._replace(
                globals=[entry._replace(native=entry.native or entry.name in own) for entry in one.globals]
            )
            for one in pickles.of_bare(file)
        ]
        named = [entry.name for one in found for entry in one.globals if not entry.native]
        try:
            facts = _core.examine_pickle(file.read(0, min(file.size, layout.MAX_PICKLE)), pickles.MAX_GLOBALS)
            acts = {kind: [name for name in facts[kind] if name not in own] for kind in ("called", "created")}
            changed = [name for name in facts["changed"] if name not in distributed_folder.CLASSES]
            named += [name for name in facts["foreign"] if name not in own]
            reasons += [
                Reason("policy", text) for text in _refused_acts({**facts, **acts, "changed": changed})
            ]
        except (Error, UnpicklingError) as error:
            reasons = reasons or [reading.structure(error)]
        refused = [name for name in dict.fromkeys(named) if not policy.running().allows(name)]
        if refused:
            reasons = [_not_allowed(refused)]
        return Scan(file.path, "pickle", list(dict.fromkeys(reasons)), [], found, False)


def _examine(file: OpenFile, container: str, most: int) -> Scan:
    """Scan a file, or an archive inside a file, and list `most` of its pickles."""
    kind, foreign, reasons, behind = _as_the_loader(file, container)
    found: list[Pickle] = []
    more_pickles = False
    try:
        walked = _PICKLES[kind if kind in _PICKLES else container](file)
        found.extend(itertools.islice(walked, most))
        more_pickles = next(walked, None) is not None
    except (Error, ValueError) as error:  # the file cannot be read further, or in several ways
        reasons.append(reading.structure(error))
    named = [entry.name for one in found if not one.stray for entry in one.globals if not entry.native]
    refused = [name for name in dict.fromkeys([*foreign, *named]) if not policy.running().allows(name)]
    if refused:
        reasons.insert(0, _not_allowed(refused))
    notes = _notes(kind, found, behind)
    if file.is_far and container == "zip":
        notes.append(
            "of a URL, the records of storages were not searched for pickles, which no load would read"
        )
    return Scan(file.path, kind, list(dict.fromkeys(reasons)), notes, found, more_pickles)


_PICKLES: dict[str, Callable[[OpenFile], Iterator[Pickle]]] = {
    "zip": pickles.of_zip,
    "pt2": pickles.of_program,
    "legacy": pickles.of_legacy,
    "tar": lambda file: iter(()),  # no safe load reads them
    "pickle": pickles.of_bare,
    "safetensors": lambda file: iter(()),  # it has none
    "hdf5": pickles.of_hdf5,
}

# ------------------------------------------------------------------------------------- verdict

_NEVER_LOADED = {
    "tar": Reason("policy", "a tar archive of before PyTorch 0.1.10, which lets a file run any code"),
    "torchscript": Reason("policy", "a TorchScript archive, which is a program"),
    "pickle": Reason("format", "a bare pickle, not a checkpoint that torch.save wrote"),
}


def _as_the_loader(file: OpenFile, container: str) -> tuple[str, list[Name], list[Reason], int]:
    """Return the container, the globals, other reasons to refuse the file, and how many bytes nothing reads."""
    if container in _NEVER_LOADED:
        return container, [], [_NEVER_LOADED[container]], 0
    try:
        listing = layout.listing_of(file) if container == "hdf5" else None
        facts = _core.examine(file.descriptor, file.path, pickles.MAX_GLOBALS, listing, file.part)
    except Error as error:
        return container, [], [reading.structure(error)], 0
    except UnpicklingError as error:
        return container, [], [Reason("policy", escaped(str(error), _MAX_REASON_LENGTH))], 0
    kind, foreign, behind = facts["container"], facts["foreign"], facts["behind"]
    if kind in _NEVER_LOADED:
        return kind, [], [_NEVER_LOADED[kind]], 0
    if not all(policy.running().allows(name) for name in foreign):
        return kind, foreign, [], behind  # the uses of these names do not matter then
    return kind, foreign, [Reason("policy", text) for text in _refused_acts(facts)], behind


def _not_allowed(refused: list[Name]) -> Reason:
    return Reason("globals", f"not allowed: {listed(map(printable, refused))}")


def _refused_acts(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the forbidden uses of globals that the file may name."""
    for name in facts["called"]:
        if not policy.may_be_called(name):
            yield f"{printable(name)} may not be called by a file"
    for name in facts["created"]:
        yield f"{printable(name)} may not be made anew by a file"
    for name in facts["changed"]:
        yield f"what {printable(name)} returns may not be changed by a file"
    if facts["odd"]:
        yield "attributes whose names are not strings, or a call of something that is not a global"
    for target, attribute in facts["attributes"]:
        if not policy.may_be_set(target, attribute):
            yield f"attribute '{escaped(attribute)}' of {printable(target)} may not be set by a file"
            return  # there may be a million of them


# -------------------------------------------------------------------------------------- report


def _notes(kind: str, found: list[Pickle], behind: int = 0) -> list[str]:
    notes = [f"{behind} bytes follow the checkpoint, which nothing reads"] if behind else []
    if kind == "torchscript":
        notes.append("code is present: torch.jit.load would compile it")
    if kind == "pt2":
        notes.append(
            "a program: its weights are read safely, and torch runs the rest when the program is loaded"
        )
    if stray := [escaped(one.name) for one in found if one.stray]:
        notes.append(f"pickles that no load reads: {listed(stray)}")
    return notes


def _lines_of(found: Pickle) -> Iterator[str]:
    where = "in a packed record" if found.offset is None else f"at {found.offset:#x}"
    yield f"  {escaped(found.name) or 'pickle'} {where}: {_end_of(found)}"
    for entry in found.globals[:_MAX_SHOWN]:
        by = f"{_OPCODE_NAMES[entry.opcode]} at {entry.offset:#x}"
        marks = ", called" * entry.called + ", runs code" * policy.runs_code(entry.name)
        yield f"    {entry.judgement:<11}  {printable(entry.name)}  ({by}, {entry.uses}x{marks})"
    if (more := len(found.globals) - _MAX_SHOWN) > 0 or found.globals_left_out:
        yield f"    and {max(more, 0)} more globals, and {found.globals_left_out} uses of still others"
    for opcode in _opcodes_of(found):
        yield f"    {opcode['opcode']} {opcode['count']}x, first at {opcode['offset']:#x}: {opcode['meaning']}"


def _end_of(found: Pickle) -> str:
    if not found.stopped:
        return f"ends at {found.end:#x} without STOP: {escaped(found.fault)}"
    return f"{found.end} bytes" + (f", {found.after_stop} bytes after STOP" if found.after_stop else "")


def _opcodes_of(found: Pickle) -> Iterator[dict[str, Any]]:
    """Yield the opcodes that honest checkpoints lack."""
    for code, (count, offset) in found.opcodes.items():
        name = _OPCODE_NAMES[code]
        if name in _OF_INTEREST:
            yield {"opcode": name, "count": count, "offset": offset, "meaning": _OF_INTEREST[name]}
    count, offset = found.unresolved
    if count:
        meaning = "a global whose name is made while the pickle runs"
        yield {"opcode": "STACK_GLOBAL", "count": count, "offset": offset, "meaning": meaning}


def _json_of(found: Pickle) -> dict[str, Any]:
    return {
        "name": found.name,
        "offset": found.offset,
        "stray": found.stray,
        "size": found.end,
        "stopped": found.stopped,
        "after_stop": found.after_stop,
        "fault": found.fault,
        "globals": [_json_of_global(entry) for entry in found.globals],
        "globals_left_out": found.globals_left_out,
        "opcodes": list(_opcodes_of(found)),
    }


def _json_of_global(entry: Global) -> dict[str, Any]:
    module, name = (part.decode("utf-8", "backslashreplace") for part in entry.name)
    return {
        "module": module,
        "name": name,
        "judgement": entry.judgement,
        "releases": list(policy.LISTS) if entry.native else policy.releases(entry.name),
        "runs_code": policy.runs_code(entry.name),
        "called": entry.called,
        "uses": entry.uses,
        "opcode": _OPCODE_NAMES[entry.opcode],
        "offset": entry.offset,
    }
