"""Writes folders as ``torch.distributed.checkpoint`` does, on any torch, in any chunks, and with any fault."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"

Chunks = list[tuple[tuple[int, ...], torch.Tensor]]  # where each begins


def class_of(module: str, name: str) -> type:
    """Return a class that is pickled under that name, whatever lies there on this torch."""
    return type(name, (_Fields,), {"path": (module, name)})


class _Fields:
    path: tuple[str, str]

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getstate__(self) -> Any:
        return self.__dict__.get("as_tuple", self.__dict__)


class Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Python's own, which can be told how a class is called."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        path = getattr(obj, "path", None)
        if path is None:
            super().save_global(obj, name)
            return
        for part in path:
            self.save(part)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)


Metadata = class_of(METADATA, "Metadata")
TensorStorageMetadata = class_of(METADATA, "TensorStorageMetadata")
TensorProperties = class_of(METADATA, "TensorProperties")
ChunkStorageMetadata = class_of(METADATA, "ChunkStorageMetadata")
BytesStorageMetadata = class_of(METADATA, "BytesStorageMetadata")
MetadataIndex = class_of(METADATA, "MetadataIndex")
StorageInfo = class_of(FILESYSTEM, "_StorageInfo")


def archived(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Writer:
    """Collects what goes into a folder; all of it can be changed before it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, bytes] = {}
        self.entries: dict[Any, Any] = {}
        self.places: dict[Any, Any] = {}
        self.paths: Any = {}

    def add(
        self, name: str, value: Any, path: tuple[Any, ...] | None = None, file: str = "__0_0.distcp"
    ) -> None:
        """Add a tensor, whole, or anything else."""
        if isinstance(value, torch.Tensor):
            self.add_chunks(name, value.shape, value.dtype, [((0,) * value.dim(), value)], path, [file])
            return
        self.entries[name] = BytesStorageMetadata()
        self._place({"fqn": name, "index": None}, value, file)
        self.paths[name] = path or (name,)

    def add_chunks(
        self,
        name: str,
        shape: Iterable[int],
        dtype: torch.dtype,
        chunks: Chunks,
        path: tuple[Any, ...] | None = None,
        files: list[str] | None = None,
    ) -> None:
        """Add a tensor that lies in chunks, in files one after the other."""
        files = files or ["__0_0.distcp", "__1_0.distcp"]
        extents = []
        for i, (begin, part) in enumerate(chunks):
            extents.append(ChunkStorageMetadata(offsets=torch.Size(begin), sizes=part.shape))
            index = {"fqn": name, "index": i, "offset": torch.Size(begin)}
            self._place(index, part, files[i % len(files)])
        properties = TensorProperties(as_tuple=(dtype, torch.strided, False, None, False))
        self.entries[name] = TensorStorageMetadata(
            properties=properties, size=torch.Size(shape), chunks=extents
        )
        self.paths[name] = path or (name,)

    def _place(self, index: dict[str, Any], value: Any, file: str) -> None:
        before, content = self.files.get(file, b""), archived(value)
        self.files[file] = before + content
        info = StorageInfo(relative_path=file, offset=len(before), length=len(content))
        self.places[MetadataIndex(**index)] = info

    def change(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change what is said of the place of a name."""
        for index, info in self.places.items():
            if index.fqn == name:
                change(info)

    def metadata(self) -> Any:
        return Metadata(
            state_dict_metadata=self.entries,
            planner_data=self.paths,
            storage_data=self.places,
            storage_meta=None,
        )

    def write(self) -> Path:
        for name, content in self.files.items():
            (self.folder / name).write_bytes(content)
        file = io.BytesIO()
        Pickler(file, 4).dump(self.metadata())
        (self.folder / ".metadata").write_bytes(file.getvalue())
        return self.folder
