"""A package of AOTInductor: its records, the folder that it is unpacked to, and what its program needs."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from zerocopy.catalogue import layout
from zerocopy.catalogue.files import OpenFile, Trouble, open_file
from zerocopy.catalogue.layout import Record
from zerocopy.display import listed, shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading import error_context
from zerocopy.loading.objects import builder
from zerocopy.share.cache.folder import default_folder, require_private

_PROGRAMS = "data/aotinductor/"
_OBJECTS = "data/constants/custom_obj_"
_WEIGHTS = "weights_config.json"
_FIELD = re.compile(
    r"constants_info_\[(\d+)\]\.(?:(shape|stride) = \{([\d, ]*)\}|dtype = cached_torch_dtype_(\w+)"
    r'|from_folded = (\w+)|original_fqn = "((?:[^"\\]|\\.)*)");'
)


class Constant(NamedTuple):
    """A tensor that a compiled program needs."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Package:
    """A package, or a folder that one was unpacked to.

    Parameters
    ----------
    path : str
    name : str
        Which program of it.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self._prefix = f"{_PROGRAMS}{name}/"
        self.has_weights, self._records = False, {}
        if os.path.isdir(path):
            names = os.listdir(f"{path}/{_PROGRAMS}")
        else:
            self._records = self._listed()
            names = [each.split("/")[2] for each in self._records if each.startswith(_PROGRAMS)]
            self.has_weights = self._prefix + _WEIGHTS in self._records
        if not names:
            raise UnsupportedError(
                f"{shown(path)}: it has no compiled program: zerocopy.export.load loads others"
            )
        if name not in names:
            raise KeyError(
                f"{shown(path)}: no compiled program {name!r}: found {listed(sorted({*map(repr, names)}))}"
            )

    def folder(self) -> str:
        """Return the folder that has the program's files, and unpack them if there is none yet."""
        if not self._records:
            return self.path
        cache = Path(default_folder())
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(str(cache))
        folder = cache / "programs" / self._key()
        if not self._is_whole(folder):
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            self._unpack(folder)
        return str(folder)

    def has_constants_inside(self, folder: str) -> bool:
        """Return whether the program's library, or a file beside it, has the constants."""
        files = self._files(folder)
        if any(file.suffix == ".bin" for file in files):
            return True
        for file in files:
            if file.suffix != ".so":
                continue
            with contextlib.suppress(OSError, ValueError):  # torch says why a library cannot be loaded
                library = ctypes.CDLL(str(file), mode=os.RTLD_LAZY)
                ends = (
                    ctypes.addressof(ctypes.c_ubyte.in_dll(library, f"_binary_constants_bin_{end}"))
                    for end in ("start", "end")
                )
                return -next(ends) + next(ends) > 1  # an empty section has one byte
        return True

    def constants(self, folder: str) -> dict[str, Constant] | None:
        """Return the constants that the program needs by name, as its source says it; None without a source."""
        sources = [file for file in self._files(folder) if file.name.endswith(".wrapper.cpp")]
        if len(sources) != 1:
            return None
        fields: dict[str, dict[str, str]] = {}
        for number, dims, value, dtype, folded, name in _FIELD.findall(
            sources[0].read_text("utf-8", "replace")
        ):
            fields.setdefault(number, {}).update(
                {key: text for key, text in (("dtype", dtype), ("folded", folded), ("name", name)) if text}
                | ({dims: value} if dims else {})
            )
        return {
            each["name"]: Constant(
                builder.dtype(each["dtype"]), _integers(each["shape"]), _integers(each["stride"])
            )
            for each in fields.values()
            if each.keys() >= {"name", "dtype", "shape", "stride"} and each.get("folded") != "true"
        }

    def _files(self, folder: str) -> list[Path]:
        return sorted(Path(folder, self._prefix).iterdir())

    def _listed(self) -> dict[str, Record]:
        with self._open() as file:
            if layout.container_of(file) != "zip":
                raise FormatError("not a package of AOTInductor")
            return {record.name.partition("/")[2]: record for record in layout.records_of(file)}

    @contextlib.contextmanager
    def _open(self) -> Iterator[OpenFile]:
        with error_context.public(self.path):
            try:
                with contextlib.closing(open_file(self.path)) as file:
                    yield file
            except Trouble as trouble:
                raise FormatError(str(trouble)) from None

    def _unpacked(self) -> dict[str, Record]:
        """Return the records that the program takes, by the path of their file."""
        found = {}
        for name, record in self._records.items():
            folder = self._prefix if name.startswith(self._prefix) else os.path.dirname(_OBJECTS) + "/"
            if not name.startswith((self._prefix, _OBJECTS)) or name == self._prefix + _WEIGHTS:
                continue
            parts = [*folder.split("/")[:-1], name[len(folder) :]]
            if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
                raise FormatError(
                    f"{shown(self.path)}: record {name!r} would leave the folder that it is unpacked to"
                )
            found[name] = record
        return found

    def _key(self) -> str:
        facts = [(name, record.size, record.crc) for name, record in sorted(self._unpacked().items())]
        return hashlib.sha256(json.dumps([self.name, facts]).encode()).hexdigest()

    def _is_whole(self, folder: Path) -> bool:
        try:
            return all(os.stat(folder / name).st_size == each.size for name, each in self._unpacked().items())
        except OSError:
            return False

    def _unpack(self, folder: Path) -> None:
        """Write the files into a new folder beside `folder`, and rename it: another process may do the same."""
        new = tempfile.mkdtemp(prefix=".", dir=folder.parent)
        try:
            with self._open() as file:
                for name, record in self._unpacked().items():
                    _write(file, record, Path(new, name))
            with contextlib.suppress(OSError):  # one that is not whole
                if folder.exists() and not self._is_whole(folder):
                    shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _write(file: OpenFile, record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    crc = 0
    with path.open("xb") as target:
        for piece in record.content(file):
            target.write(piece)
            crc = zlib.crc32(piece, crc)
    if record.fault or crc != record.crc:
        raise FormatError(
            record.fault or f"record {record.name!r} is damaged: its CRC-32 is not the one in the archive"
        )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split())
