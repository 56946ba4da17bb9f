"""The tar archive that ``torch.save`` wrote before 0.1.10.

Three members: ``storages`` (pickled count; each a pickled ``(key, location, storage type)`` and its data, then the
pickled list of views), ``tensors`` (pickled count; each a pickled ``(key, storage key, type)`` and its geometry), and
``pickle``, the object, whose persistent ids are the keys of tensors and storages. Pickles in it can run any code, so
this is for ``weights_only=False`` only. Members are read, never extracted: a tar can hold links and pipes.

Source: ``torch.serialization._legacy_load`` (its inner ``legacy_load``) of PyTorch 1.13.1 and 2.13.0.
"""

from __future__ import annotations

import errno
import io
import struct
import tarfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO, cast

import torch

from zerocopy import _torch
from zerocopy.errors import FormatError
from zerocopy.loading import untyped_storage
from zerocopy.loading.device import staging
from zerocopy.loading.objects import rebuild
from zerocopy.loading.readers import unpickler


def load(file: BinaryIO, map_location: Any, pickle_module: ModuleType, pickle_args: dict[str, Any]) -> Any:
    """Return the object in a tar archive."""
    objects: dict[int, Any] = {}
    restore, _ = staging.restoring(map_location)

    class Unpickler(unpickler.find_class_of(pickle_module.Unpickler)):  # type: ignore[misc]
        def persistent_load(self, pid: Any) -> Any:
            # A tuple is a module's class with its source, which nobody needs.
            return pid[0] if isinstance(pid, tuple) and pid else _known(objects, pid)

    def read(content: BinaryIO) -> Any:
        return Unpickler(content, **pickle_args).load()

    def entries(content: BinaryIO) -> Iterator[Any]:
        for _ in range(_checked(read(content), int)):
            yield _checked(read(content), int, object, object)

    try:
        with _opened(file) as archive:
            storages = _member(archive, "storages")
            for key, location, storage_type in entries(storages):
                dtype = _checked(getattr(storage_type, "dtype", None), torch.dtype)
                made = _storage(storages, dtype)
                restored = made if restore is None else restore(made, location)
                objects[key] = _torch.typed_storage(restored, dtype)
            for view in _checked(read(storages), list):
                key, root, offset, numel = _checked(view, int, int, int, int)
                objects[key] = _torch.storage_view(_known(objects, root), offset, numel)
            content = _member(archive, "tensors")
            tensors = {key: _tensor(content, _known(objects, root)) for key, root, _ in entries(content)}
            objects.update(tensors)
            return read(_member(archive, "pickle"))
    except (tarfile.TarError, struct.error) as error:
        raise FormatError(f"tar archive: {error}") from error


def _checked(value: Any, *kinds: type) -> Any:
    """Return what a pickle gave, if it is of one type, or several items each of its type."""
    items = (value,) if len(kinds) == 1 else value
    if isinstance(items, (tuple, list)) and len(items) == len(kinds) and all(map(isinstance, items, kinds)):
        return value
    wanted = ", ".join(kind.__name__ for kind in kinds)
    raise FormatError(f"tar archive: {str(value)[:200]!r} instead of {wanted}")


def _known(objects: dict[int, Any], key: Any) -> Any:
    try:
        return objects[int(key)]
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"tar archive: no member is called {str(key)[:200]!r}") from None


def _opened(file: BinaryIO) -> tarfile.TarFile:
    """Return the archive with all of its headers read."""
    try:
        archive = tarfile.TarFile(fileobj=file)
        archive.getmembers()
    except (MemoryError, OverflowError, OSError) as error:
        # tarfile reads names as long as a header says, and seeks by sizes that are negative or no file's.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise FormatError("tar archive: a member's size is beyond any file's") from error
    return archive


def _member(archive: tarfile.TarFile, name: str) -> BinaryIO:
    try:
        member = archive.getmember(name)
    except KeyError:
        raise FormatError(
            f"tar archive: member {name!r} is missing, so torch did not write it: extract it (tar -xf), "
            "and load the file in it"
        ) from None
    # A sparse file may be larger than the archive.
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise FormatError(f"tar archive: member {name!r} is not a file")
    return cast(BinaryIO, content)  # can peek, as Unpicklers that must not read ahead want it


def _storage(content: BinaryIO, dtype: torch.dtype) -> torch.UntypedStorage:
    (count,) = struct.unpack("<q", content.read(8))
    size, left = count * _torch.element_size(dtype), _left(content)
    if not 0 <= size <= left:
        raise FormatError(f"tar archive: {left} bytes are left for a storage of {count} elements")
    data = bytearray(size)
    content.readinto(data)  # type: ignore[attr-defined]
    return untyped_storage.untyped_storage(data)


def _left(content: BinaryIO) -> int:
    position = content.tell()
    end = content.seek(0, io.SEEK_END)
    content.seek(position)
    return end - position


def _tensor(content: BinaryIO, typed_storage: Any) -> Any:
    (dimensions,) = struct.unpack("<i4x", content.read(8))
    if not 0 <= dimensions <= rebuild.MAX_DIMENSIONS:
        raise FormatError(f"tar archive: a tensor of {dimensions} dimensions")
    size, stride = (tuple(_integers(content, dimensions)) for _ in range(2))
    (offset,) = _integers(content, 1)
    return rebuild.tensor_over(_torch.untyped(typed_storage), typed_storage.dtype, offset, size, stride)


def _integers(content: BinaryIO, count: int) -> Iterator[int]:
    yield from struct.unpack(f"<{count}q", content.read(8 * count))
