"""The files that are measured: made on first use by stock ``torch.save``, kept or deleted at the end."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from . import shapes
from .notebook import convert_to_hdf5
from .sparse import write_sparse_checkpoint

GIB = 1 << 30
TILE = 1 << 20


def _write_model(path: Path, entries: Iterable[shapes.Entry], dtype: torch.dtype) -> None:
    """Save a state dict as ``module.state_dict()`` gives it, with its ``_metadata``, and random values.

    One tile of random numbers fills every tensor, in each from another place: 2 GiB are made in seconds, and
    two tensors mixed up still differ.
    """
    tile = torch.randn(2 * TILE, generator=torch.Generator().manual_seed(0)).to(dtype)
    state: OrderedDict[str, torch.Tensor] = OrderedDict()
    for i, (name, shape) in enumerate(entries):
        state[name] = torch.empty(shape, dtype=dtype)
        for part in state[name].view(-1).split(TILE):
            part.copy_(tile[i : i + part.numel()])
    modules = dict.fromkeys(name.rpartition(".")[0] for name in state)
    state._metadata = OrderedDict((name, {"version": 1}) for name in ["", *modules])  # type: ignore[attr-defined]
    torch.save(state, path)


def _write_bert(path: Path, files: Files) -> None:
    _write_model(path, shapes.bert(files.shrink), torch.float32)


def _write_llm(path: Path, files: Files) -> None:
    _write_model(path, shapes.llm(files.shrink), torch.bfloat16)


def _write_moe(path: Path, files: Files) -> None:
    _write_model(path, shapes.moe(files.shrink), torch.bfloat16)


def _write_lora(path: Path, files: Files) -> None:
    _write_model(path, shapes.lora(files.shrink), torch.float32)


def _write_bert_h5(path: Path, files: Files) -> None:
    convert_to_hdf5(files.path("bert.pt"), path)


def _write_storage(path: Path, _: Files) -> None:
    """Save what pickling a tensor saves of it: see ``TypedStorage.__reduce__``."""
    torch.save(torch.arange(1024.0).storage(), path, _use_new_zipfile_serialization=False)


def _write_small(path: Path, _: Files) -> None:
    torch.save({f"layer{i}": torch.full((16, 16), float(i)) for i in range(50)}, path)


MAKERS: dict[str, Callable[[Path, Files], None]] = {
    "bert.pt": _write_bert,
    "bert.h5": _write_bert_h5,
    "llm.pt": _write_llm,
    "moe.pt": _write_moe,
    "lora.pt": _write_lora,
    "storage.pt": _write_storage,
    "small.pt": _write_small,
    "sparse-1GiB.pt": lambda path, _: write_sparse_checkpoint(path, 1 * GIB),
    "sparse-16GiB.pt": lambda path, _: write_sparse_checkpoint(path, 16 * GIB),
}


def default_folder() -> Path:
    """Return ``ZEROCOPY_BENCH_FILES``, or a folder of the user's own in the temporary folder."""
    named = os.environ.get("ZEROCOPY_BENCH_FILES")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"zerocopy-benchmarks-{os.getuid()}"


class Files:
    """Makes each file when it is first asked for, and remembers which it made.

    Parameters
    ----------
    folder : Path
        Where the files lie. Those found there are used as they are.
    shrink : int
        1 for the real sizes; larger for small files with other names.
    """

    def __init__(self, folder: Path, shrink: int = 1) -> None:
        self.folder, self.shrink = folder, shrink
        self._made: list[Path] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else: name another folder with --files")

    def path(self, name: str) -> Path:
        """Return the path of a file, made if it is not there yet."""
        release = torch.__version__.partition("+")[0]
        size = "" if self.shrink == 1 else f"-small{self.shrink}"
        stem, _, suffix = name.rpartition(".")
        path = self.folder / f"{stem}-torch{release}{size}.{suffix}"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}.part")
            try:
                MAKERS[name](partial, self)
                partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)
            self._made.append(path)
        return path

    def delete_made(self) -> None:
        """Delete what this run made, and the folder when that empties it."""
        for path in self._made:
            path.unlink(missing_ok=True)
        self._made.clear()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def warm(path: Path) -> None:
    """Read the file into the page cache, as the machine's first reader leaves it there.

    What the writer left in the cache is dropped before: it lies in small pieces there, and mapping them is many times
    slower than mapping what readahead brings. One with holes is left alone, nobody reads its data.
    """
    status = path.stat()
    if status.st_blocks * 512 < status.st_size // 2:
        return
    buffer = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.readinto(buffer):
            pass
