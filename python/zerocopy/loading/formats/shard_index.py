"""Checkpoints of several files, the shards: a JSON index says which shard has which tensor.

``{"metadata": {...}, "weight_map": {"model.weight": "model-00001-of-00002.safetensors", ...}}``, as transformers,
diffusers and accelerate write it, beside the shards.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy.display import count, listed, shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.remote import RemotePath

ENDING = ".index.json"
_MAX_LENGTH = 100_000_000  # bytes, as a safetensors header
_MAX_WRONG = 10  # tensors in other shards that a warning names
_MAX_NAME = 255  # bytes of a file's name on Linux


class Index(NamedTuple):
    """An index of shards.

    Attributes
    ----------
    name : str
        Its path, for messages.
    homes : dict of str to Path
        The shard that each tensor is in, by its name, in the order of the index.
    """

    name: str
    homes: dict[str, Path]

    def names(self) -> list[str]:
        """Return the names of its tensors."""
        return list(self.homes)

    def other_names(self) -> list[str]:
        """Return nothing: an index lists tensors only."""
        return []

    @property
    def shards(self) -> dict[Path, list[str]]:
        """The names that are in each shard."""
        shards: dict[Path, list[str]] = {}
        for name, shard in self.homes.items():
            shards.setdefault(shard, []).append(name)
        return shards


def index_named(f: Any, strict: bool = True) -> Index | None:
    """Return the index that a path names; None for anything else.

    Raises
    ------
    OSError
        It cannot be read.
    zerocopy.FormatError
        It is not an index, or names a file outside its folder; with `strict`, it has a name twice.
    """
    name = os.fsdecode(f) if isinstance(f, (str, os.PathLike)) else ""
    return _read(Path(name), strict) if name.endswith(ENDING) else None


def index_in(folder: Path, strict: bool = True) -> Index | None:
    """Return the index that is in a folder, or None. Errors as :func:`index_named`.

    Raises
    ------
    zerocopy.UnsupportedError
        The folder holds several indices.
    """
    found = sorted(path for path in folder.iterdir() if path.name.endswith(ENDING))
    if len(found) > 1:
        names = ", ".join(shown(path.name) for path in found[:10])
        raise UnsupportedError(f"{folder}: expected one index, found several; name one of them: {names}")
    return _read(found[0], strict) if found else None


def load(index: Index, load_shard: Callable[[Path], Any], strict: bool = True) -> dict[str, Any]:
    """Return the tensors of all shards, in the order of :func:`homes`. `load_shard` returns leaves by dotted name."""
    import torch  # The command line lists shards without torch.

    loaded: dict[Path, dict[str, Any]] = {}
    for shard in present(index, strict):
        leaves = load_shard(shard)
        if not isinstance(leaves, dict):  # of a file that pickle itself reads
            raise FormatError(
                f"{index.name}: expected a dict in {shown(shard.name)}, got {type(leaves).__name__}"
            )
        loaded[shard] = {
            name: leaf
            for name, leaf in leaves.items()
            if isinstance(leaf, torch.Tensor) or index.homes.get(name) == shard
        }
    return {name: loaded[shard][name] for name, shard in homes(index, loaded, strict).items()}


def present(index: Index, strict: bool) -> list[Path]:
    """Return the shards to read: all, or unless `strict` those that exist."""
    return [shard for shard in index.shards if strict or shard.exists()]


class Homes(NamedTuple):
    """An index compared with its shards.

    Attributes
    ----------
    source : Index
    found : dict of str to Path
        The shard to read each tensor from, in the order of the index; then those that only shards name.
    missing : list of str
        Names of the index that no shard has.
    wrong : list of str
        A message for each tensor that is not in the shard that the index names, or that the index does not name.
    """

    source: Index
    found: dict[str, Path]
    missing: list[str]
    wrong: list[str]

    def faults(self) -> list[str]:
        """Return how index and shards disagree; nothing if they agree."""
        if not self.missing:
            return self.wrong[:_MAX_WRONG]
        lost = f"no shard has {count(len(self.missing), 'tensor')} of the index: {listed(self._lost())}"
        return [lost, *self.wrong[:_MAX_WRONG]]

    def require_agreement(self) -> None:
        """Raise ``FormatError`` where index and shards disagree.

        Loaders that go by the shards, and not by the index, would see another checkpoint.
        """
        if self.missing or self.wrong:
            lost = [*self._lost()]
            first = f"{lost[0]}, which does not have it" if lost else self.wrong[0]
            raise FormatError(f"{self.source.name}: {first}. strict=False takes what the shards have")

    def _lost(self) -> Iterator[str]:
        return (f"{shown(name)} is to be in {shown(self.source.homes[name].name)}" for name in self.missing)


def compared(index: Index, held: Mapping[Path, Iterable[str]]) -> Homes:
    """Compare an index with the names of the tensors that each shard has.

    If a tensor is in two shards, the shard that the index names counts.
    """
    found: dict[str, Path] = {}
    wrong = []
    for shard, names in held.items():
        for name in names:
            home = index.homes.get(name)
            if home is shard or home == shard:  # comparing paths is slow
                found[name] = shard
                continue
            found.setdefault(name, shard)
            place = f"is to be in {shown(home.name)}" if home else "is in no shard by the index"
            wrong.append(f"{shown(name)} {place}, and {shown(shard.name)} has it")
    ordered = {name: found[name] for name in dict.fromkeys([*index.homes, *found]) if name in found}
    return Homes(index, ordered, [name for name in index.homes if name not in found], wrong)


def homes(index: Index, held: Mapping[Path, Iterable[str]], strict: bool = True) -> dict[str, Path]:
    """Return the shard to read each tensor from, as :class:`Homes`.

    Where index and shards disagree, raise ``FormatError`` if `strict`; else give one warning.
    """
    found = compared(index, held)
    if strict:
        found.require_agreement()
    elif faults := found.faults():
        warnings.warn(f"{shown(index.name)}: {'; '.join(faults)}", stacklevel=4)
    return found.found


def _read(path: Path, strict: bool) -> Index:
    with open(path, "rb", opener=_plain) as file:
        # Python allocates the number of bytes that it is asked for, however short the file is.
        text = file.read(min(_MAX_LENGTH, os.fstat(file.fileno()).st_size) + 1)
    return _parsed(path, text, strict, functools.partial(_shard, path.parent))


def index_at(path: RemotePath, strict: bool = True) -> Index:
    """Return the index at a URL. Errors as :func:`index_named`."""
    file = path.open()
    text = file.read_at(0, min(_MAX_LENGTH + 1, file.size))
    return _parsed(path, text, strict, lambda name: path.beside(_plain_name(name)))


def _parsed(path: Any, text: bytes, strict: bool, shard_of: Callable[[Any], Any]) -> Index:
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError("more than 100 MB")
        content = json.loads(text.decode("utf-8"), object_pairs_hook=_without_doubles if strict else dict)
        weight_map = content["weight_map"] if isinstance(content, dict) else None
        if not isinstance(weight_map, dict):
            raise TypeError("its weight_map is not an object")
        shards = dict[Any, Any]()
        homes = {}
        for name, shard in weight_map.items():
            if not (isinstance(shard, str) and shard in shards):  # checked once for each shard
                shards[shard] = shard_of(shard)
            homes[name] = shards[shard]
        return Index(str(path), homes)
    except KeyError:
        raise FormatError(f"{path}: not an index of shards: it has no weight_map") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: not an index of shards: {shown(str(error))}") from None


def _plain(path: str, flags: int) -> int:
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # Opening a pipe would take its data.
        raise OSError(errno.EINVAL, "an index of shards is a plain file", path)
    return os.open(path, flags | os.O_NONBLOCK)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("it has the same name twice")
    return content


def _plain_name(name: Any) -> str:
    try:
        encoded = os.fsencode(name) if isinstance(name, str) else b""
    except UnicodeEncodeError:  # JSON lets half a character stand alone
        encoded = b""
    if not 0 < len(encoded) <= _MAX_NAME or b"\0" in encoded:
        raise TypeError("a shard is not the name of a file")
    if "/" in name or name in (".", ".."):
        raise ValueError(f"the shard {name!r} is not a plain name of a file in the index's folder")
    return str(name)


def _shard(folder: Path, name: Any) -> Path:
    path = folder / _plain_name(name)
    # A missing shard is the error of the one who opens it. Others may be listed without it.
    if path.exists() and not path.is_file():
        raise ValueError(f"the shard {name!r} is not a plain file")
    return path
