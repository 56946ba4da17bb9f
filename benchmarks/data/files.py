"""The files that are measured: made on first use by stock ``torch.save``, kept or deleted at the end."""

from __future__ import annotations

import os
import random
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from . import shapes
from .notebook import convert_to_hdf5
from .sparse import write_checkpoint, write_sparse_checkpoint

GIB = 1 << 30
TILE = 1 << 20
STREAM = 4 * GIB


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


def _write_module(path: Path, files: Files) -> None:
    """Save a whole module, as ``torch.save(module)`` does: twelve layers of a transformer."""
    width = 768 // files.shrink
    layer = torch.nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True)
    torch.save(torch.nn.TransformerEncoder(layer, 12).eval(), path)


def _write_llm(path: Path, files: Files) -> None:
    _write_model(path, shapes.llm(files.shrink), torch.bfloat16)


def _write_moe(path: Path, files: Files) -> None:
    _write_model(path, shapes.moe(files.shrink), torch.bfloat16)


def _write_lora(path: Path, files: Files) -> None:
    _write_model(path, shapes.lora(files.shrink), torch.float32)


def _write_bert_h5(path: Path, files: Files) -> None:
    convert_to_hdf5(files.path("bert.pt"), path)


def _write_safetensors(path: Path, files: Files) -> None:
    from safetensors.torch import save_file

    save_file(dict(torch.load(files.path(f"{path.name.partition('-')[0]}.pt"))), path)


def _write_bert_converted_h5(path: Path, files: Files) -> None:
    import zerocopy

    named = path.with_suffix(".h5")
    zerocopy.convert(files.path("bert.pt"), named)
    named.rename(path)


def _write_bert_arrays_h5(path: Path, files: Files) -> None:
    """Write tensors as people do who know HDF5: an array each, under its name."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, tensor in torch.load(files.path("bert.pt")).items():
            file[name] = tensor.numpy()


def _write_storage(path: Path, _: Files) -> None:
    """Save what pickling a tensor saves of it: see ``TypedStorage.__reduce__``."""
    torch.save(torch.arange(1024.0).storage(), path, _use_new_zipfile_serialization=False)


def _write_small(path: Path, _: Files) -> None:
    torch.save({f"layer{i}": torch.full((16, 16), float(i)) for i in range(50)}, path)


def _write_matrix(path: Path, files: Files) -> None:
    write_checkpoint(path, shapes.matrix(files.shrink), _pattern())


def _write_stream(path: Path, files: Files) -> None:
    write_checkpoint(path, shapes.streamed(files.stream // files.shrink), _pattern())


def _write_script(path: Path, files: Files) -> None:
    """Save a program with eight matrices of 62.5 MB."""
    torch.manual_seed(0)
    width = 3952 // files.shrink
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    torch.jit.save(torch.jit.script(torch.nn.Sequential(*layers)), str(path))


def _write_program(path: Path, files: Files) -> None:
    """Save a program of ``torch.export`` with the same layers."""
    torch.manual_seed(0)
    width = 3952 // files.shrink
    layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)))
    torch.export.save(torch.export.export(layers, (torch.ones(1, width),)), path)


def _pattern() -> bytes:
    """Return random bytes that begin anew at no border of blocks: the disk holds all that is written."""
    return random.Random(0).randbytes(3 * TILE + 64)


def _write_far(path: Path, files: Files) -> None:
    """Save 256 MiB in 16 tensors."""
    _write_layers(path, 16, 16 << 20, files)


def _write_half(path: Path, files: Files) -> None:
    """Save 512 MiB in 64 tensors."""
    _write_layers(path, 64, 8 << 20, files)


def _write_layers(path: Path, count: int, nbytes: int, files: Files) -> None:
    elements = nbytes // 4 // files.shrink
    torch.save({f"layer.{i}": torch.full((elements,), float(i)) for i in range(count)}, path)


def _write_gpu(path: Path, files: Files) -> None:
    """Save 16 GB in 136 matrices."""
    width = 14336 // files.shrink
    _write_model(path, ((f"layer.{i}", (4096, width)) for i in range(136)), torch.bfloat16)


def _write_gpu_moe(path: Path, files: Files) -> None:
    """Save 16 GB in 18 867 tensors."""
    width = 832 // files.shrink
    _write_model(path, ((f"expert.{i}", (512, width)) for i in range(18_867)), torch.bfloat16)


MAKERS: dict[str, Callable[[Path, Files], None]] = {
    "bert.pt": _write_bert,
    "bert.h5": _write_bert_h5,
    "bert.converted.h5": _write_bert_converted_h5,
    "bert.arrays.h5": _write_bert_arrays_h5,
    "llm.pt": _write_llm,
    "module.pt": _write_module,
    "moe.pt": _write_moe,
    "lora.pt": _write_lora,
    "gpu.pt": _write_gpu,
    "gpumoe.pt": _write_gpu_moe,
    **{
        f"{stem}.safetensors": _write_safetensors for stem in ("bert", "moe", "lora", "half", "gpu", "gpumoe")
    },
    "storage.pt": _write_storage,
    "small.pt": _write_small,
    "sparse-1GiB.pt": lambda path, _: write_sparse_checkpoint(path, 1 * GIB),
    "sparse-16GiB.pt": lambda path, _: write_sparse_checkpoint(path, 16 * GIB),
    "sparse-64GiB.pt": lambda path, _: write_sparse_checkpoint(path, 64 * GIB, tensors=291),
    "script.pt": _write_script,
    "program.pt2": _write_program,
    "matrix.pt": _write_matrix,
    "stream.pt": _write_stream,
    "far.pt": _write_far,
    "half.pt": _write_half,
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
    stream : int
        About how many bytes ``stream.pt`` has.
    """

    def __init__(self, folder: Path, shrink: int = 1, stream: int = STREAM) -> None:
        self.folder, self.shrink, self.stream = folder, shrink, stream
        self._marks = {"stream.pt": f"-{stream / GIB:g}GiB"}
        self._made: list[Path] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else: name another folder with --files")

    def path(self, name: str) -> Path:
        """Return the path of a file, made if it is not there yet."""
        release = torch.__version__.partition("+")[0]
        size = "" if self.shrink == 1 else f"-small{self.shrink}"
        stem, _, suffix = name.rpartition(".")
        path = self.folder / f"{stem}{self._marks.get(name, '')}-torch{release}{size}.{suffix}"
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
