"""The tar archive that ``torch.save`` wrote before 0.1.10.

Three members: ``storages`` (pickled count; each a pickled ``(key, location, storage type)`` and its data, then the
pickled list of views), ``tensors`` (pickled count; each a pickled ``(key, storage key, type)`` and its geometry), and
``pickle``, the object, whose persistent ids are the keys of tensors and storages. Pickles in it can run any code, so
this is for ``weights_only=False`` only. Members are read, never extracted: a tar can hold links and pipes.

Source: ``torch.serialization._legacy_load`` (its inner ``legacy_load``) of PyTorch 1.13.1 and 2.13.0.
"""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO, cast

from zerocopy import _torch, rebuild, storage, unpickler
from zerocopy.errors import FormatError


def load(file: BinaryIO, map_location: Any, pickle_module: ModuleType, pickle_args: dict[str, Any]) -> Any:
    """Return the object in a tar archive."""
    objects: dict[Any, Any] = {}
    restore, _ = _torch.restore_function(map_location)

    class Unpickler(unpickler.find_class_of(pickle_module.Unpickler)):  # type: ignore[misc]
        def persistent_load(self, pid: Any) -> Any:
            # A tuple is a module's class with its source, which nobody needs.
            return pid[0] if isinstance(pid, tuple) else objects[int(pid)]

    def read(content: BinaryIO) -> Any:
        return Unpickler(content, **pickle_args).load()

    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            storages = _member(archive, "storages")
            for _ in range(read(storages)):
                key, location, storage_type = read(storages)
                made = _storage(storages, storage_type.dtype)
                restored = made if restore is None else restore(made, location)
                objects[key] = _torch.typed_storage(restored, storage_type.dtype)
            for key, root, offset, numel in read(storages):
                objects[key] = _torch.storage_view(objects[root], offset, numel)
            tensors = _member(archive, "tensors")
            for _ in range(read(tensors)):
                key, storage_key, _ = read(tensors)
                objects[key] = _tensor(tensors, objects[storage_key])
            return read(_member(archive, "pickle"))
    except (tarfile.TarError, struct.error) as error:
        raise FormatError(f"tar archive: {error}") from error


def _member(archive: tarfile.TarFile, name: str) -> BinaryIO:
    try:
        member = archive.getmember(name)
    except KeyError:
        raise FormatError(f"tar archive: member {name!r} is missing") from None
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise FormatError(f"tar archive: member {name!r} is no file")
    # Unpicklers read ahead unless they can peek, and what follows a pickle is not theirs.
    return io.BufferedReader(cast(io.RawIOBase, content))


def _storage(content: BinaryIO, dtype: Any) -> Any:
    (count,) = struct.unpack("<q", content.read(8))
    size = count * _torch.element_size(dtype)
    data = bytearray(content.read(size)) if count >= 0 else bytearray()
    if count < 0 or len(data) != size:
        raise FormatError(f"tar archive: {len(data)} bytes of a storage of {count} elements")
    return storage.untyped_storage(data)


def _tensor(content: BinaryIO, typed_storage: Any) -> Any:
    (dimensions,) = struct.unpack("<i4x", content.read(8))
    if not 0 <= dimensions <= rebuild.MAX_DIMENSIONS:
        raise FormatError(f"tar archive: a tensor of {dimensions} dimensions")
    size, stride = (tuple(_integers(content, dimensions)) for _ in range(2))
    (offset,) = _integers(content, 1)
    return rebuild.tensor_over(_torch.untyped(typed_storage), typed_storage.dtype, offset, size, stride)


def _integers(content: BinaryIO, count: int) -> Iterator[int]:
    yield from struct.unpack(f"<{count}q", content.read(8 * count))
