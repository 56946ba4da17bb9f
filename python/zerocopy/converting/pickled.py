"""Plans the pickled object of a ``.pt`` or ``.h5`` target, in one file or in shards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zerocopy import _core
from zerocopy.converting.flat_pickle import FlatPickle
from zerocopy.converting.new_files import Content
from zerocopy.converting.sources import PICKLED, Sources, SourceTensor, dtype_in_target
from zerocopy.converting.ties import tied_names
from zerocopy.errors import Error, UnsupportedError
from zerocopy.loading.formats.safetensors import METADATA
from zerocopy.saving.archive import PickleWithStorages
from zerocopy.saving.atomic_file import NewFile, Written

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64  # of storages in .pt, as torch has it
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PickledPlan:
    """The plan of a pickled target: the object of a single source file, or else a dict of tensors by name.

    Parameters
    ----------
    sources : Sources
    dtype : torch.dtype, optional
        The dtype for floating-point tensors.
    hdf5 : Path, optional
        The target, if it is to be HDF5.
    """

    def __init__(self, sources: Sources, dtype: torch.dtype | None, hdf5: Path | None) -> None:
        self._sources, self._dtype, self._hdf5 = sources, dtype, hdf5
        self._is_sharded = False

    def contents(self, shards: list[list[str]] | None) -> list[Content]:
        """Return the content of each file; None stands for one file of all."""
        self._is_sharded = shards is not None
        try:
            parts = [self._whole()] if shards is None else [self._flat(names) for names in shards]
        except RecursionError:
            raise UnsupportedError(
                f"{self._sources.name}: expected values that pickle can write, found some that are nested "
                "too deep for it: sys.setrecursionlimit allows more"
            ) from None
        except Error:
            raise
        except (RuntimeError, KeyError) as error:  # a kind of tensor that this release cannot save
            import torch

            raise UnsupportedError(
                f"{self._sources.name}: PyTorch {torch.__version__} cannot save this object: {error}"
            ) from error
        if self._hdf5 is not None:
            from zerocopy.converting import hdf5_writer

            return [hdf5_writer.content_of(each, self._hdf5) for each in parts]
        return [Content(each.total, partial(_write, each)) for each in parts]

    def left_out(self) -> dict[str, list[str]]:
        """Return the parts that the files do not hold, by kind: shards hold tensors only, a flat dict no objects."""
        sources = self._sources
        if self._is_sharded:
            return sources.left_out(sources.others)
        return sources.left_out([] if sources.whole() else sources.objects)

    def units(self) -> list[tuple[list[str], int]]:
        """Return the groups of names that must share a file, with their bytes: tensors over one storage.

        A whole storage is written even if its tensors use only a part of it. Tensors that are converted get their own.
        """
        groups: dict[Any, list[tuple[SourceTensor, list[str]]]] = {}
        for tensor, names in self._sources.tied().items():
            entry = tensor.entry()
            storage = (tensor.layer.path, entry.storage) if entry.is_dense else names[0]
            groups.setdefault(storage, []).append((tensor, names))
        ties = tied_names(self._sources)
        units = []
        for group in groups.values():
            sizes, whole = [], 0
            for tensor, names in group:
                (stored, _, nbytes), entry = tensor.outline(), tensor.entry()
                wanted = dtype_in_target(stored, self._dtype)
                if entry.is_dense and wanted == stored:
                    whole = entry.storage_nbytes
                else:
                    size = nbytes // _core.itemsize(stored) * _core.itemsize(wanted)
                    sizes += [size for name in names if name not in ties]
            units.append(([name for _, names in group for name in names], whole + sum(sizes)))
        return units

    def _whole(self) -> PickleWithStorages:
        sources = self._sources
        whole = sources.whole()
        if whole is None:
            values = {name: value for name, value in sources.others.items() if name not in sources.objects}
            return self._flat(list(sources.tensors), values)
        from zerocopy.saving.pickled_object import PickledObject

        chosen = [*sources.tensors, *sources.others] if sources.is_filtered else None
        made = whole.build(chosen, read=sources.is_mapped, charge=sources.charging(PICKLED))
        return PickledObject(sources.without_unknown(made))

    def _flat(self, names: list[str], others: Mapping[str, Any] = _NOTHING) -> PickleWithStorages:
        """Pickle tensors and other values by their names, with the metadata."""
        sources = self._sources
        if FlatPickle.can_write(sources):
            return FlatPickle(sources, names, self._dtype)
        from zerocopy.saving.pickled_object import PickledObject

        sources.charge_all(PICKLED)
        tensors = ((name, sources.tensors[name]) for name in names)
        flat: OrderedDict[str, Any] = OrderedDict(
            (name, tensor.opened.tensor(tensor.name)) for name, tensor in tensors
        )
        flat.update(others)
        if sources.metadata:
            setattr(flat, METADATA, dict(sources.metadata))
        return PickledObject(sources.without_unknown(flat))


def _write(parts: PickleWithStorages, new: NewFile, written: Written) -> None:
    parts.write(new, _ALIGNMENT, True, written)
