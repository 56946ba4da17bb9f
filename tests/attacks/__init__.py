"""One crafted file for each attack, with what `zerocopy.load` answers."""

from attacks import (
    bombs,
    calls,
    containers,
    geometry,
    hdf5,
    ids,
    legacy,
    names,
    quantized,
    rebuilds,
    safetensors,
    sparse,
    streams,
    targets,
    tensors,
    zip_fields,
    zip_records,
    zip_whole,
)
from attacks.attack import Attack, Expected, Family

CATALOG: tuple[Family, ...] = (
    names.NAMES,
    calls.CALLS,
    targets.TARGETS,
    streams.STREAMS,
    bombs.BOMBS,
    ids.PERSISTENT_IDS,
    zip_whole.ODD_ARCHIVES,
    zip_whole.CUTS_AND_JOINS,
    zip_fields.DIRECTORY,
    zip_fields.ENTRIES,
    zip_records.COMPRESSION,
    zip_records.RECORDS,
    tensors.ODD_TENSORS,
    tensors.STORAGES,
    geometry.GEOMETRY,
    Family("Sparse and quantized tensors", (*sparse.SPARSE, *quantized.QUANTIZED_TENSORS)),
    Family("Rebuild functions", rebuilds.REBUILT),
    legacy.LEGACY,
    containers.TAR,
    containers.TORCHSCRIPT,
    safetensors.SAFETENSORS,
    hdf5.HDF5,
)

__all__ = ["CATALOG", "Attack", "Expected", "Family"]
