"""Saving and converting. Every side ends with the bytes on the disk."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase, UseCase
from ..engine.loader import Loader, by_name, needs_module, stock_load
from ..system import loop

stock_save = torch.save
PIECE = 16 << 20


@dataclass(eq=False)
class Target:
    """A file to be written beside the measured one, and gone with this object."""

    folder: Path
    state: Any = None
    content: memoryview | None = None
    is_new: bool = True  # the target does not exist before: freeing an old file takes time
    _file: Any = field(init=False)

    def __post_init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115  it is deleted with this object
            dir=self.folder, prefix="saved.", suffix=".pt"
        )
        _TARGETS.add(self)

    @property
    def path(self) -> Path:
        return Path(self._file.name)

    def __del__(self) -> None:
        self.path.touch()  # deleted by what has made it, which wants it there


_TARGETS: weakref.WeakSet[Target] = weakref.WeakSet()


def _settle() -> None:
    """Delete what was written, and let the disk come to rest."""
    for made in _TARGETS:
        if made.is_new:
            made.path.unlink(missing_ok=True)
    os.sync()


def _target(path: str) -> Target:
    """Return where to save to."""
    return Target(Path(path).parent)


def _target_and_state(path: str) -> Target:
    """Return where to save to, and what: tensors in private memory."""
    return Target(Path(path).parent, stock_load(path))


def _target_and_content(path: str) -> Target:
    """Return where to write to, and the bytes of the file."""
    content = bytearray(Path(path).stat().st_size)
    with Path(path).open("rb", buffering=0) as file:
        at = 0
        while at < len(content):
            at += file.readinto(memoryview(content)[at:])
    return Target(Path(path).parent, content=memoryview(content))


def _read_back(made: Target) -> Any:
    """Return what stock torch.load reads of what was saved."""
    return stock_load(made.path)


def _save(_: str, made: Target) -> Target:
    """Save private tensors."""
    import zerocopy

    zerocopy.save(made.state, made.path)
    return made


def _save_mapped(path: str, made: Target) -> Target:
    """Save a checkpoint under another name."""
    import zerocopy

    zerocopy.save(zerocopy.load(path), made.path)
    return made


def _save_aligned(checksum: bool) -> Callable[[str, Target], Target]:
    """Save a checkpoint under another name, its storages in blocks of their own."""

    def save(path: str, made: Target) -> Target:
        import zerocopy

        zerocopy.save(zerocopy.load(path), made.path, alignment=4096, checksum=checksum)
        return made

    return save


def _torch_save(_: str, made: Target) -> Target:
    """Save private tensors."""
    _synced(lambda: stock_save(made.state, made.path), made)
    return made


def _torch_save_loaded(path: str, made: Target) -> Target:
    """Save a checkpoint under another name."""
    _synced(lambda: stock_save(stock_load(path), made.path), made)
    return made


def _write_to_disk(_: str, made: Target) -> Target:
    """Write bytes as fast as the disk takes them, which it is given as they come."""
    assert made.content is not None
    sync_file_range: Callable[..., int] = ctypes.CDLL(None).sync_file_range
    with made.path.open("wb", buffering=0) as file:
        for at in range(0, len(made.content), PIECE):
            size = file.write(made.content[at : at + PIECE])
            sync_file_range(file.fileno(), ctypes.c_int64(at), ctypes.c_int64(size), 2)
        os.fsync(file.fileno())
    return made


def _synced(write: Callable[[], object], made: Target) -> None:
    write()
    with made.path.open("r+b") as file:
        os.fsync(file.fileno())


_OURS = needs_module("zerocopy")


def _saver(label: str, load: Callable[..., Any], prepare: Callable[[str], Target], **more: Any) -> Loader:
    return Loader(label, load, prepare=prepare, settle=_settle, **({"real": _read_back} | more))


# --------------------------------------------------------------------------------- converting


SHARDS = "1GB"
_FOLDERS: weakref.WeakSet[tempfile.TemporaryDirectory[str]] = weakref.WeakSet()


def _folder(path: str) -> tempfile.TemporaryDirectory[str]:
    """Return where the shards go: beside the measured file, and gone with this object."""
    made = tempfile.TemporaryDirectory(dir=Path(path).parent, prefix="converted.")
    _FOLDERS.add(made)
    return made


def _settle_folders() -> None:
    """Delete what was converted, and let the disk come to rest."""
    for made in _FOLDERS:
        for file in Path(made.name).iterdir():
            file.unlink()
    os.sync()


def _convert(path: str, folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Convert a .pt file to sharded .safetensors."""
    import zerocopy

    zerocopy.convert(path, folder.name, max_shard_size=SHARDS)
    return folder


def _convert_by_transformers(path: str, folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Do what `save_pretrained` does with the tensors of a model, without the model."""
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(stock_load(path), folder.name, max_shard_size=SHARDS)
    for file in Path(folder.name).iterdir():
        with file.open("r+b") as written:
            os.fsync(written.fileno())
    return folder


def _read_shards(folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Return what the package safetensors reads of the shards, by name."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for shard in Path(folder.name).glob("*.safetensors"):
        found |= load_file(shard)
    return dict(sorted(found.items()))


LOADERS: dict[str, Loader] = {
    "zerocopy-save": _saver("zerocopy.save", _save, _target_and_state, missing=_OURS),
    "torch-save": _saver("torch.save, fsync", _torch_save, _target_and_state),
    "disk-write": _saver("write(), fsync", _write_to_disk, _target_and_content, expected=None),
    "zerocopy-save-mapped": _saver("zerocopy.save(zerocopy.load)", _save_mapped, _target, missing=_OURS),
    "torch-save-loaded": _saver("torch.save(torch.load), fsync", _torch_save_loaded, _target),
    **{
        name: _saver(
            f"{label}, XFS,", call, _target, missing=lambda: loop.why_not("xfs"), place=loop.aligned_place_of
        )
        for name, label, call in (
            ("zerocopy-save-checked-xfs", "zerocopy.save(alignment=4096)", _save_aligned(True)),
            ("zerocopy-save-xfs", "zerocopy.save(alignment=4096, checksum=False)", _save_aligned(False)),
            ("torch-save-loaded-xfs", "torch.save(torch.load), fsync", _torch_save_loaded),
        )
    },
    "zerocopy-convert": Loader(
        "zerocopy.convert",
        _convert,
        missing=needs_module("zerocopy"),
        prepare=_folder,
        real=_read_shards,
        expected=by_name,
        settle=_settle_folders,
    ),
    "transformers-convert": Loader(
        "torch.load, save_torch_state_dict, fsync",
        _convert_by_transformers,
        missing=needs_module("huggingface_hub"),
        prepare=_folder,
        modules=("huggingface_hub", "safetensors.torch"),
        real=_read_shards,
        expected=by_name,
        settle=_settle_folders,
    ),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(
            name,
            Side(ours, file),
            Side(peer, file),
            columns=("ready",),
            most_rounds=5,
        )
        for name, ours, peer, file in (
            ("save/torch", "zerocopy-save", "torch-save", "llm.pt"),
            ("save/disk", "zerocopy-save", "disk-write", "llm.pt"),
            ("save/mapped", "zerocopy-save-mapped", "torch-save-loaded", "llm.pt"),
            ("save/reflink", "zerocopy-save-xfs", "torch-save-loaded-xfs", "llm.pt"),
            ("save/reflink-checked", "zerocopy-save-checked-xfs", "torch-save-loaded-xfs", "llm.pt"),
            ("convert/shards", "zerocopy-convert", "transformers-convert", "stream.pt"),
        )
    ),
    UseCase(
        "convert/shards",
        Side("zerocopy-convert", "stream.pt"),
        Side("transformers-convert", "stream.pt"),
        columns=("peak",),
    ),
)
