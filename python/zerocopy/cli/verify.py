"""``zerocopy verify``: checks a file's structure and checksums and, on demand, that torch loads the same from it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from zerocopy import _core
from zerocopy.catalogue import contents, layout
from zerocopy.catalogue.files import OpenFile, open_file
from zerocopy.catalogue.layout import Record
from zerocopy.cli import distributed_folder, integrity, reading, runner
from zerocopy.cli.distributed_folder import Archive
from zerocopy.cli.integrity import Checked
from zerocopy.cli.output import Progress, escaped, listed
from zerocopy.cli.reading import Reason, Report
from zerocopy.errors import Error, FormatError
from zerocopy.loading.formats import hdf5, shard_index

if TYPE_CHECKING:
    from zerocopy._C import Listing

DESCRIPTION = """
Reads checkpoints from end to end: structure, the CRC-32 of every record of a zip archive, whether compressed records
inflate to their sizes, whether every dataset of an HDF5 file can be read; and hashes the file. Nothing of a file is
imported, run or built, unless --compare is given.
"""

EPILOG = (
    runner.exit_codes(
        fine="fine: no damage was found (formats without checksums: as far as the structure shows)",
        bad="damaged: the reasons are listed, and the records named; or different, with --compare",
        trouble="a file could not be read or compared, or is not a checkpoint",
        several=runner.OF_SEVERAL,
    )
    + """
example:
  $ zerocopy verify model.pt
  $ zerocopy verify --records --json model.pt
  $ zerocopy verify --compare model.pt     # does zerocopy load what torch.load loads?
"""
)

_MAX_REASON_LENGTH = 1000
_MAX_NAMED = 1000  # damaged records in a report

_EXAMINED = ("zip", "legacy", "safetensors", "hdf5")
_FOREIGN = ("safetensors", "hdf5", "pt2")  # not of torch.save; some releases of torch.load read some
_NOT_COMPARED = "not compared: --compare does not take folders of torch.distributed.checkpoint"
_UNCHECKED = "whose bytes are which storage's was not checked"
_NO_CHECKSUMS = {"hdf5": "data that are not packed have no checksums in this format"}


@dataclass(frozen=True)
class Verification(Report):
    """The findings of ``verify`` for one file."""

    size: int
    sha256: str
    records: list[Checked]
    with_records: bool

    def lines(self) -> Iterator[str]:
        """Yield a report of the file."""
        yield f"{escaped(self.path)}: {Verifier.verdicts[self.code]} ({self.container}, {self.size} bytes)"
        yield f"  sha256 {self.sha256}"
        for reason in self.reasons:
            yield f"  {reason.kind}: {reason.text}"
        for note in self.notes:
            yield f"  note: {note}"
        for one in self.records if self.with_records else ():
            crc = f"{one.crc:08x}" if one.sha256 else "-" * 8
            yield f"  {one.sha256 or '-' * 64}  {crc}  {one.state:<11}  {escaped(one.record.title)}"

    def as_json(self, verdicts: Sequence[str]) -> dict[str, Any]:
        """Return the report as ``--json`` prints it."""
        shown = self.records if self.with_records else []
        return super().as_json(verdicts) | {
            "size": self.size,
            "sha256": self.sha256,
            "records": [_json_of(one) for one in shown],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_arguments(parser)
    parser.add_argument("--records", action="store_true", help="also hash and list every record")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also load the file with torch.load and with zerocopy.load, both with weights_only=True, and compare "
        "what comes out bit for bit (docs/cli.md says how much memory that takes)",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Verify the files, and return the exit code."""
    return reading.report_on("verify", options, Verifier(options.records, options.compare))


class Verifier(reading.Examiner):
    """Verifies files.

    Parameters
    ----------
    with_records : bool
        Hash and list every record.
    compare : bool
        Compare what ``torch.load`` and ``zerocopy.load`` make of a file.
    """

    verdicts = ("fine", "damaged")

    def __init__(self, with_records: bool = False, compare: bool = False) -> None:
        self._with_records, self._compare = with_records, compare

    def file(self, file: OpenFile) -> Verification:
        """Verify a file."""
        container = layout.container_of(file)
        layout.require_listed(container)
        reasons: list[Reason] = []
        notes: list[str] = []
        facts: dict[str, Any] = {"container": container, "storages": [], "behind": 0}
        records: list[Record] = []
        try:
            listing = None
            if container == "hdf5":
                listing = layout.listing_of(file)
                notes += _not_read(listing)
                records = [one.record for one in layout.datasets_of(listing) if not one.refusal]
            elif container == "zip":
                records = layout.records_of(file)
            if container in _EXAMINED:
                facts = _core.examine(file.descriptor, file.path, 0, listing, stubs=True)
        except FormatError as error:
            reasons.append(reading.structure(error))
            if container == "hdf5":
                records = []  # they may overlap
        except (Error, UnpicklingError) as error:
            if container == "zip" and not records:
                raise _unreadable(error) from None
            notes.append(f"{_UNCHECKED}: {_shown(error)}")
        storages = facts["storages"]
        if container in ("legacy", "safetensors"):
            placed = {one.offset: one for one in storages if one.size}.values()
            records = [
                Record(one.key, one.offset, one.stored_size, one.is_deflated, one.size, None)
                for one in placed
            ]
        if facts["behind"]:
            notes.append(f"{facts['behind']} bytes follow the checkpoint, which nothing reads")
        if container != "zip":
            notes.append(_NO_CHECKSUMS.get(container, "this format has no checksums"))
        bools = {one.offset for one in storages if one.dtype == "bool"}
        found = self._read(file, facts["container"], reasons, notes, records, bools)
        sparse = [escaped(one.record.title) for one in found.records if not one.sha256 and not one.fault]
        if self._with_records and sparse:
            notes.append(f"not hashed, since hardly anything of it is written: {listed(sparse)}")
        if self._compare and not reasons:
            _compare(file, facts["container"], storages, reasons, notes)
        return found

    def archives(self, file: OpenFile, archives: list[Archive]) -> Verification:
        """Verify a data file of a folder: each archive that ``.metadata`` finds there, and every byte."""
        records: list[Record] = []
        bools: set[int] = set()
        faults, unchecked = [], []
        for archive, part, fault in distributed_folder.parts_of(file, archives):
            begin, name, found = archive.offset, archive.name, None
            try:
                if fault is not None:
                    raise fault
                found = layout.records_of(part)
                records += (one._replace(offset=begin + one.offset, archive=name) for one in found)
                facts = _core.examine(part.descriptor, part.path, 0, None, part.part)
                bools |= {begin + one.offset for one in facts["storages"] if one.dtype == "bool"}
            except FormatError as error:
                faults.append(f"{escaped(name)}: {_shown(error)}")
            except (Error, UnpicklingError) as error:
                if fault is None and found is None:
                    raise _unreadable(error, f"{name}: ") from None
                unchecked.append(f"{escaped(name)}: {_shown(error)}")
        reasons = [Reason("structure", listed(faults))] if faults else []
        notes = [f"{_UNCHECKED}: {listed(unchecked)}"] if unchecked else []
        verified = self._read(file, "distributed", reasons, notes, records, bools)
        notes += [*distributed_folder.notes(file, archives), *[_NOT_COMPARED] * self._compare]
        return verified

    def metadata(self, file: OpenFile, fault: Exception | None) -> Verification:
        """Verify ``.metadata``: its bytes have no checksums."""
        if fault is not None and not isinstance(fault, FormatError):
            raise runner.Trouble(_shown(fault))
        notes = ["this format has no checksums", *[_NOT_COMPARED] * self._compare]
        return self._read(file, "pickle", [reading.structure(fault)] if fault else [], notes)

    def index(self, index: shard_index.Index) -> Iterator[Report]:
        """Report on an index that does not agree with its shards."""
        try:
            faults = contents.contents_of(index.name, strict=False).faults
        except (OSError, runner.Trouble):  # The report on that shard says why.
            return
        if faults:
            with contextlib.closing(open_file(index.name)) as file:
                yield self._read(file, "index", [reading.structure("; ".join(faults))], [])

    def _read(
        self,
        file: OpenFile,
        container: str,
        reasons: list[Reason],
        notes: list[str],
        records: Sequence[Record] = (),
        bools: Container[int] = (),
    ) -> Verification:
        """Read a whole file, and add to reasons and notes. `bools` are the offsets of bool storages."""
        sound = [record for record in records if not record.fault]
        with Progress(f"zerocopy verify: {escaped(file.path)}:", file.size) as shown:
            sha256, checked = integrity.check(
                file, sound, hashed=self._with_records, bools=bools, progress=shown
            )
        reasons += _damage(checked)
        notes += _notes(checked)
        with_records = self._with_records and bool(checked)
        return Verification(file.path, container, reasons, notes, file.size, sha256, checked, with_records)


def _compare(
    file: OpenFile, container: str, storages: list[Any], reasons: list[Reason], notes: list[str]
) -> None:
    """Compare what torch.load and zerocopy make of a file, and add to reasons and notes."""
    from zerocopy import _torch
    from zerocopy.cli import comparison  # which needs torch, too

    is_foreign = container in _FOREIGN
    # Before 2.6, torch runs code of a file that is a tar too, even with weights_only.
    if is_foreign and not _torch.safe_by_default():
        notes.append(f"not compared: before PyTorch 2.6, torch.load does not read {container}")
        return
    # torch fills the storages of a legacy file only when it has all of them: nothing can stand in for them
    in_place = storages if container != "legacy" else ()
    extents = [(one.key, one.offset, one.stored_size, one.is_deflated) for one in in_place]
    try:
        if differs := comparison.difference(file.path, None if is_foreign else extents):
            reasons.append(Reason("difference", differs))
        else:
            notes.append("equal to what torch.load gives, bit for bit")
    except runner.Trouble as error:
        if not is_foreign:
            raise
        notes.append(str(error).partition(". ")[0])  # what follows is advice to trust the file


def _shown(error: object) -> str:
    return escaped(str(error), _MAX_REASON_LENGTH)


def _unreadable(error: Exception, place: str = "") -> runner.Trouble:
    return runner.Trouble(f"no checksum was compared: {_shown(f'{place}{error}')}")


def _damage(checked: list[Checked]) -> Iterator[Reason]:
    broken = [f"{escaped(one.record.title)} {one.fault}" for one in checked if one.fault]
    if broken:
        yield Reason("structure", listed(broken, _MAX_NAMED))
    unrecorded = {one.record.title for one in _without_checksums(checked)}
    differing = [
        escaped(one.record.title)
        for one in checked
        if one.state == "mismatch" and one.record.title not in unrecorded
    ]
    if differing:
        yield Reason("checksum", f"CRC-32 differs: {listed(differing, _MAX_NAMED)}")


def _not_read(listing: Listing) -> Iterator[str]:
    refused = [
        f"{escaped(one.record.name)} {one.refusal}" for one in layout.datasets_of(listing) if one.refusal
    ]
    left_out = [
        (entry[0].decode(errors="backslashreplace"), entry[6]) for entry in listing or () if entry[1] == ""
    ]
    refused += map(escaped, hdf5.numbers_left_out(left_out))
    if refused:
        yield f"not read: {listed(refused)}"


def _notes(checked: list[Checked]) -> Iterator[str]:
    if unrecorded := _without_checksums(checked):
        if len(unrecorded) == len(checked):
            yield "no CRC-32 was recorded: all are 0, as torch.serialization.set_crc32_options(False) writes them"
        else:
            yield "no CRC-32 of storages was recorded: all are 0, as zerocopy.save(checksum=False) and skip_data write"
    elif any(one.state == "mismatch" and not one.record.deflated for one in _storages(checked)):
        yield 'storages that were changed in place (mode "r+") keep the CRC-32 of what they were: docs/saving.md'
    odd = [f"{escaped(one.record.title)} ({one.odd_bools})" for one in checked if one.odd_bools]
    if odd:
        yield f"bool storages with bytes that are neither 0 nor 1: {listed(odd)}"


def _without_checksums(checked: list[Checked]) -> list[Checked]:
    """Return the records whose CRCs of 0 mean that none was recorded: all of the file, or all storages.

    One alone would be damage, or a record that is hidden so.
    """
    for records in (checked, _storages(checked)):
        if all(one.record.crc == 0 for one in records) and any(one.crc != 0 for one in records):
            return records
    return []


def _storages(checked: list[Checked]) -> list[Checked]:
    return [one for one in checked if one.record.name.partition("/")[2].startswith("data/")]


def _json_of(one: Checked) -> dict[str, Any]:
    return {
        "name": one.record.title,
        "offset": None if one.record.foreign else one.record.offset,
        "stored_size": one.record.stored_size,
        "size": one.record.size,
        "deflated": one.record.deflated,
        "state": one.state,
        "crc32": one.crc if one.sha256 else None,
        "crc32_recorded": one.record.crc,
        "sha256": one.sha256 or None,
    }
