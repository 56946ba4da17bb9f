"""Writes the tensors of sources to a file of each format, or to shards."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy.converting import charges, safetensors_writer, shard_plan
from zerocopy.converting.flat_pickle import FlatPickle
from zerocopy.converting.hdf5_writer import STORAGES, Hdf5Writer, Record
from zerocopy.converting.inputs import FORMAT, METADATA, Keep, Sources, SourceTensor
from zerocopy.converting.safetensors_plan import Plan, planned
from zerocopy.converting.ties import names_by_tensor, tied_names
from zerocopy.errors import Error, UnsupportedError
from zerocopy.lazy.conversion import cast_dtype
from zerocopy.lazy.tensor_info import TensorInfo
from zerocopy.loading import inputs
from zerocopy.loading.formats import hdf5
from zerocopy.process import interrupts
from zerocopy.progress import Counted, Progress
from zerocopy.saving.atomic_file import PIECE, FileSink, NewFile, Written, is_at, replacing
from zerocopy.saving.pickled_object import PickledObject, PickleWithStorages

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
#: All endings that say a format.
SUFFIXES = (*PICKLED, SAFETENSORS, *hdf5.SUFFIXES)

_ALIGNMENT = 64  # of storages in .pt, as torch has it
_logger = logging.getLogger("zerocopy")


class Job(NamedTuple):
    """The arguments of ``zerocopy.convert``."""

    paths: Sequence[Any]
    dtype: torch.dtype | None
    keep: Keep | None
    progress: Progress | None
    unknown: str = "refuse"
    strip_prefix: str = ""
    strict: bool | None = None
    kept_ties: Sequence[str] | None = ()

    def sources(self, **how: Any) -> Sources:
        """Open the sources, with further arguments of ``zerocopy.open``."""
        how |= {"unknown": self.unknown, "strict": self.strict is not False}
        return Sources(self.paths, self.keep, self.strip_prefix, **how)


# --------------------------------------------------------------------------------- one file


def write_safetensors(job: Job, target: Path) -> None:
    """Write a ``.safetensors`` file."""
    with job.sources(device="cpu") as sources:
        plan = _planned(job, sources, target)
        if sources.is_of_torch:
            plan = plan._replace(metadata=FORMAT | plan.metadata)
        with replacing(target) as new:
            _write_planned(new, plan, plan.tensors, sources, _counted(job, plan))
            sources.require_unchanged()


def write_pickled(job: Job, target: Path) -> None:
    """Write what ``torch.load`` loads: of one file the object that it held, else a dict of all tensors by name."""
    with job.sources(dtype=job.dtype, device="cpu") as sources:
        parts = _pickled(job, sources, target)
        with replacing(target) as new:
            parts.write(new, _ALIGNMENT, True, Counted(job.progress, parts.total))
            sources.require_unchanged()


def write_hdf5(job: Job, target: Path) -> None:
    """Write the same as HDF5."""
    h5py = hdf5.import_h5py(target)
    with job.sources(dtype=job.dtype, device="cpu") as sources:
        parts = _pickled(job, sources, target)
        records: list[Record] = [
            _Content("data.pkl", parts.pickle),
            _Content("version", b"3\n"),
            _Content("byteorder", sys.byteorder.encode()),
            *(_Stored(parts, number) for number in range(len(parts.sizes))),
        ]
        written = Counted(job.progress, sum(record.size for record in records))
        with replacing(target, has_name=True) as new:
            Hdf5Writer(h5py, Path(new.path), records, str(target)).write(written)
            sources.require_unchanged()


class _Content(NamedTuple):
    """A record that is in memory."""

    name: str
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def pieces(self) -> Iterator[bytes]:
        yield self.content


class _Stored(NamedTuple):
    """The record of a storage."""

    parts: PickleWithStorages
    number: int

    @property
    def name(self) -> str:
        return f"{STORAGES}{self.number}"

    @property
    def size(self) -> int:
        return self.parts.sizes[self.number]

    def pieces(self) -> Iterator[memoryview]:
        storage = self.parts.storage(self.number)
        content = _torch.bytes_of(storage)
        for at in range(0, len(content), PIECE):
            yield content[at : at + PIECE]


# --------------------------------------------------------------------------------- shards


def write_shards(job: Job, layout: shard_plan.Layout, most: int) -> None:
    """Write shards of at most so many bytes, and the index."""
    is_safetensors = layout.suffix == SAFETENSORS
    with job.sources(dtype=None if is_safetensors else job.dtype, device="cpu") as sources:
        sources.require_tensors()
        if is_safetensors:
            _write_safetensors_shards(job, layout, most, sources)
        else:
            _write_pickled_shards(job, layout, most, sources)


def _write_safetensors_shards(job: Job, layout: shard_plan.Layout, most: int, sources: Sources) -> None:
    plan = _planned(job, sources, layout.index_path)
    # accelerate, and transformers before version 5, refuse files that have metadata and not this.
    plan = plan._replace(metadata=FORMAT | plan.metadata)
    entries = {tensor.name: tensor for tensor in plan.tensors}
    shards = shard_plan.spread((([tensor.name], tensor.nbytes) for tensor in plan.tensors), most)
    written = _counted(job, plan)
    with _shard_files(layout, shards, sum(tensor.nbytes for tensor in plan.tensors)) as files:
        for (_, new), names in zip(files, shards, strict=True):
            _write_planned(new, plan, [entries[name] for name in names], sources, written)
        sources.require_unchanged()


def _write_pickled_shards(job: Job, layout: shard_plan.Layout, most: int, sources: Sources) -> None:
    units = _units(sources, job.dtype)
    shards = shard_plan.spread(units, most)
    contents = [_pickled_flat(job, sources, names) for names in shards]
    sources.left_out(sources.others).report(layout.index_path, job.strict)
    written = Counted(job.progress, sum(parts.total for parts in contents))
    with _shard_files(layout, shards, sum(size for _, size in units)) as files:
        for (_, new), parts in zip(files, contents, strict=True):
            parts.write(new, _ALIGNMENT, True, written)
        sources.require_unchanged()


@contextlib.contextmanager
def _shard_files(
    layout: shard_plan.Layout, shards: list[list[str]], total: int
) -> Iterator[list[tuple[Path, NewFile]]]:
    """Give a new file for each shard. At the end all take their names, and the index as the last.

    No shard takes the name of another file: until the index has its name, what was in the folder is whole. Then the
    shards that the index named before are deleted.
    """
    before = layout.present()
    for path in before:
        if path.exists() and not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    layout = layout.free(len(shards))
    paths = [layout.shard(number, len(shards)) for number in range(1, len(shards) + 1)]
    with interrupts.deferred():  # while files have names that no index names
        is_new = not layout.folder.exists()
        if is_new:
            layout.folder.mkdir()
        written: list[tuple[Path, os.stat_result]] = []
        try:
            with contextlib.ExitStack() as block:
                index = block.enter_context(
                    replacing(layout.index_path, counts_from_end=True)
                )  # first in, last out
                files = []
                for number, path in enumerate(paths):
                    like = before[min(number, len(before) - 1)] if before else layout.index_path
                    files.append((path, block.enter_context(replacing(path, is_new=True, like=like))))
                with interrupts.allowed():
                    yield files
                    text = shard_plan.index_text(layout, shards, total)
                    index.write(text)
                    for _, new in files:  # a disk that is full says so before the first has its name
                        new.sync()
                    written = [
                        (path, os.fstat(new.descriptor)) for path, new in [(layout.index_path, index), *files]
                    ]
                with interrupts.deferred():  # although the block of each file allows it
                    block.close()
        except BaseException:
            has_index = bool(written) and is_at(*written[0])
            if not has_index:  # an index that has its name needs the new shards
                for path, status in written:
                    if is_at(path, status):
                        path.unlink(missing_ok=True)
            if is_new:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    layout.folder.rmdir()
            raise
        for path in before:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _logger.warning(
                    "%s: not deleted, though no index names it any more: %s", path, error.strerror
                )


def _units(sources: Sources, dtype: torch.dtype | None) -> list[tuple[list[str], int]]:
    """Return tensors that are over one storage, and have to stay together for that, with the bytes that are written.

    A storage is written whole, whatever shows of it; what is converted is apart from it then.
    """
    groups: dict[Any, list[tuple[SourceTensor, list[str]]]] = {}
    for tensor, names in names_by_tensor(sources).items():
        entry = tensor.entry()
        storage = (tensor.layer.path, entry.storage) if entry.is_dense else names[0]
        groups.setdefault(storage, []).append((tensor, names))
    ties = tied_names(sources)
    units = []
    for group in groups.values():
        sizes, whole = [], 0
        for tensor, names in group:
            info, entry = tensor.info(), tensor.entry()
            if info.storage and cast_dtype(info.dtype, dtype) == info.dtype:
                whole = entry.storage_nbytes
            else:
                size = _converted_size(info, dtype)
                sizes += [size for name in names if name not in ties]
        units.append(([name for _, names in group for name in names], whole + sum(sizes)))
    return units


def _converted_size(info: TensorInfo, dtype: torch.dtype | None) -> int:
    return info.nbytes // _torch.element_size(info.dtype) * _torch.element_size(cast_dtype(info.dtype, dtype))


# --------------------------------------------------------------------------------- in common


def _write_planned(
    new: NewFile,
    plan: Plan,
    tensors: list[safetensors_writer.Described],
    sources: Sources,
    written: Written,
) -> None:
    metadata = plan.metadata_of({tensor.name for tensor in tensors})
    safetensors_writer.write(FileSink(new), tensors, metadata, sources, written)


def _counted(job: Job, plan: Plan) -> Counted:
    return Counted(job.progress, sum(tensor.nbytes for tensor in plan.tensors))


def _pickled(job: Job, sources: Sources, target: Path) -> PickleWithStorages:
    """Pickle the object of the sources, and say what the target leaves out."""
    parts = _pickle_of(job, sources)
    sources.left_out(() if sources.whole() else sources.objects).report(target, job.strict)
    return parts


def _pickle_of(job: Job, sources: Sources) -> PickleWithStorages:
    try:
        whole = sources.whole()
        if whole is None:
            values = {name: value for name, value in sources.others.items() if name not in sources.objects}
            return _pickled_flat(job, sources, list(sources.tensors), values)
        chosen = [*sources.tensors, *sources.others] if sources.is_filtered else None
        charge = charges.of_pickled(sources)
        made = whole.build(chosen, read=sources.is_mapped, charge=charge)
        return PickledObject(sources.without_unknown(made))
    except RecursionError:
        raise UnsupportedError(
            f"{inputs.name_of(job.paths[0])}: expected values that pickle can write, found some that are nested "
            "too deep for it: sys.setrecursionlimit allows more"
        ) from None
    except Error:
        raise
    except (RuntimeError, KeyError) as error:  # a kind of tensor that this release cannot save
        raise UnsupportedError(
            f"{inputs.name_of(job.paths[0])}: PyTorch {torch.__version__} cannot save this object: {error}"
        ) from error


def _pickled_flat(
    job: Job, sources: Sources, names: list[str], others: Mapping[str, Any] = MappingProxyType({})
) -> PickleWithStorages:
    """Pickle tensors and other values by their names."""
    if FlatPickle.can_write(sources):
        return FlatPickle(sources, names, job.dtype)
    charges.require(sources, charges.of_pickled(sources))
    return PickledObject(sources.without_unknown(_flat(sources, names, others)))


def _flat(
    sources: Sources, names: Iterable[str], others: Mapping[str, Any] = MappingProxyType({})
) -> OrderedDict[str, Any]:
    """Return tensors and other values by their names, with the metadata."""
    flat: OrderedDict[str, Any] = OrderedDict((name, sources.tensors[name].placeholder()) for name in names)
    flat.update(others)
    if sources.metadata:
        setattr(flat, METADATA, dict(sources.metadata))
    return flat


def _planned(job: Job, sources: Sources, target: Path) -> Plan:
    """Plan the content of ``.safetensors``, and say what it leaves out."""
    plan = planned(sources, job.dtype, job.kept_ties)
    left_out = sources.left_out(plan.left_out)
    ties = (f"{name} = {kept}" for name, kept in plan.ties.items())
    left_out.add("names of tied tensors, noted in the metadata", ties)
    left_out.report(target, job.strict)
    return plan
