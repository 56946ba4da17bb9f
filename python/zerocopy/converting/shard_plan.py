"""Spreads tensors over shards, and makes the index."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.formats import hdf5, model_folder, shard_index

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
#: All endings that say a format.
SUFFIXES = (*PICKLED, SAFETENSORS, *hdf5.SUFFIXES)

_ENDING = ".index.json"
_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?|)B", re.IGNORECASE)


class Layout(NamedTuple):
    """The folder of shards, and the beginning and end of their names.

    Attributes
    ----------
    series : int
        1, or the number that distinguishes the shards from those that are in the folder already.
    """

    folder: Path
    stem: str
    suffix: str
    series: int = 1

    @property
    def index_path(self) -> Path:
        """The path of the index."""
        return self.folder / f"{self.stem}{self.suffix}{_ENDING}"

    def shard(self, number: int, count: int) -> Path:
        """Return the path of a shard; the first is number 1."""
        series = "" if self.series == 1 else f"-{self.series}"
        return self.folder / f"{self.stem}{series}-{number:05}-of-{count:05}{self.suffix}"

    def free(self, count: int) -> Layout:
        """Return a layout whose names for so many shards are not taken."""
        for series in itertools.count(1):
            layout = self._replace(series=series)
            if not any(os.path.lexists(layout.shard(number, count)) for number in range(1, count + 1)):
                break
        return layout

    def preferred(self) -> Path | None:
        """Return the file or index that loaders of the folder prefer to this index, or None."""
        with contextlib.suppress(OSError, FormatError, UnsupportedError):
            found = model_folder.located(self.folder)
            path = Path(found.name if isinstance(found, shard_index.Index) else found)
            return None if path.name == self.index_path.name else path
        return None

    def present(self) -> list[Path]:
        """Return the shards that the index in the folder names and no other index does, in order."""
        ours = re.compile(
            rf"{re.escape(self.stem)}(-[0-9]+)?-[0-9]{{5,}}-of-[0-9]{{5,}}{re.escape(self.suffix)}"
        )
        others = [path for path in self.folder.glob(f"*{_ENDING}") if path != self.index_path]
        named = _shards_of(self.index_path).difference(*map(_shards_of, others))
        return [self.folder / name for name in sorted(named) if ours.fullmatch(name)]


def _shards_of(index: Path) -> set[str]:
    """Return the names of files in an index; none if it cannot be read."""
    try:
        found = shard_index.index_named(index)
    except (OSError, FormatError):
        return set()
    return set() if found is None else {path.name for path in found.shards}


def layout_of(target: Path, suffixes: Iterable[str]) -> Layout:
    """Return where the shards of a target go: a folder, an index, or a file's name that they all take after."""
    name = target.name.removesuffix(_ENDING)
    if (suffix := Path(name).suffix) in suffixes and not target.is_dir():
        return Layout(target.parent, name.removesuffix(suffix), suffix)
    return Layout(target, "model", ".safetensors")


def size_of(text: int | str) -> int:
    """Return a number of bytes: ``5GB`` is five thousand million, ``5GiB`` a little more."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        raise ValueError(
            f"expected an int of bytes, or a size with its unit such as '5GB' or '5000B', got {text!r}"
        )
    return size


def spread(units: Iterable[tuple[list[str], int]], most: int) -> list[list[str]]:
    """Return the names that are in each shard: in their order, as many as fit.

    Parameters
    ----------
    units : iterable of (list of str, int)
        Names that must be in one shard, and their bytes. A group larger than a shard gets its own.
    most : int
        Bytes of a shard.
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for names, size in units:
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1] += names
        filled += size
    return shards


def index_text(layout: Layout, shards: list[list[str]], total: int) -> bytes:
    """Return the index: JSON as transformers writes and reads it."""
    homes = {
        name: layout.shard(number, len(shards)).name
        for number, names in enumerate(shards, 1)
        for name in names
    }
    content: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": dict(sorted(homes.items()))}
    return json.dumps(content, indent=2).encode() + b"\n"
