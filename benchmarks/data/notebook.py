"""The ``zero_copy_load`` of the HDF5 notebook, made after its description.

A ``.pt`` file is turned into HDF5 once: every record becomes a data set of bytes, and a table in the same
file says where the bytes of each storage lie. Loading reads that table and the pickle with h5py, maps it
read-only, makes each storage with ``torch.frombuffer(...).storage()``, and leaves the rest to Python's
``pickle.Unpickler``.
"""

from __future__ import annotations

import io
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

OFFSETS, PICKLE = "offsets_table", "archive/data.pkl"


def convert_to_hdf5(source: Path, target: Path) -> None:
    """Write the records of a ``.pt`` file into HDF5, with the table of offsets; h5py and NumPy load here."""
    import h5py
    import numpy as np

    table = []
    with zipfile.ZipFile(source) as archive, h5py.File(target, "w") as file:
        for info in archive.infolist():
            name = info.filename.partition("/")[2]
            record = np.frombuffer(archive.read(info), dtype=np.int8)
            data = file.create_dataset(f"archive/{name}", data=record)
            if name.startswith("data/"):
                table.append((int(name[5:]), data.id.get_offset(), data.shape[0]))
        file.create_dataset(OFFSETS, data=np.array(table, dtype=np.int64))


def zero_copy_load(path: str) -> Any:
    """Load what `convert_to_hdf5` wrote, its tensors lying in one read-only mapping."""
    import h5py
    import numpy as np

    with h5py.File(path, "r") as file:
        table = np.zeros(file[OFFSETS].shape, dtype=np.int64)
        file[OFFSETS].read_direct(table)
        pickled = np.zeros(file[PICKLE].shape, dtype=np.int8)
        file[PICKLE].read_direct(pickled)
    with Path(path).open("rb") as raw:
        mapping = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
    offsets = {str(row[0]): row[1] for row in table}
    return _Unpickler(io.BytesIO(pickled.tobytes()), mapping, offsets).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, mapping: mmap.mmap, offsets: dict[str, int]) -> None:
        super().__init__(file)
        self._mapping, self._offsets, self._storages = mapping, offsets, {}

    def persistent_load(self, saved: tuple[Any, ...]) -> Any:
        _, storage_type, key, _, numel = saved
        if key not in self._storages:
            flat = torch.frombuffer(
                self._mapping, dtype=storage_type.dtype, count=numel, offset=self._offsets[key]
            )
            self._storages[key] = flat.storage()
        return self._storages[key]

    def find_class(self, module: str, name: str) -> Any:
        if "Storage" in name:
            return torch.serialization.StorageType(name)
        return super().find_class({"torch.tensor": "torch._tensor"}.get(module, module), name)
