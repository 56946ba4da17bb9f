"""How near a load is to what no loader can do without, and what anybody can write in fifteen lines."""

from __future__ import annotations

import inspect
import json
import mmap
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..engine import floor
from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, by_name, needs_module

_TYPED = torch.storage.TypedStorage
_INTERNAL = {"_internal": True} if "_internal" in inspect.signature(_TYPED.__init__).parameters else {}


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _fifteen_lines(path: str) -> Any:
    """Load a checkpoint over a mapping of it; no line of this checks anything."""
    memory = _mapped(path)
    archive = zipfile.ZipFile(path)
    headers = {info.filename.rpartition("/")[2]: info.header_offset for info in archive.infolist()}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, found: Any) -> Any:
            _, kind, key, _, numel = found
            name, extra = struct.unpack_from("<HH", memory, headers[key] + 26)
            data = torch.frombuffer(
                memory, dtype=kind.dtype, count=numel, offset=headers[key] + 30 + name + extra
            )
            untyped = data.untyped_storage() if hasattr(data, "untyped_storage") else data.storage()._storage
            return _TYPED(wrap_storage=untyped, dtype=kind.dtype, **_INTERNAL)

    name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    return Unpickler(archive.open(name)).load()


_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def _fifteen_lines_safetensors(path: str) -> dict[str, torch.Tensor]:
    memory = _mapped(path)
    (length,) = struct.unpack_from("<Q", memory)
    header = json.loads(memory[8 : 8 + length])
    header.pop("__metadata__", None)
    made = {}
    for name, entry in header.items():
        (begin, end), dtype = entry["data_offsets"], _DTYPES[entry["dtype"]]
        count = (end - begin) // torch.empty(0, dtype=dtype).element_size()
        data = torch.frombuffer(memory, dtype=dtype, count=count, offset=8 + length + begin)
        made[name] = data.view(entry["shape"])
    return made


def _floor_missing() -> str:
    return needs_module("zerocopy")() or floor.why_not()


LOADERS: dict[str, Loader] = {
    "floor": Loader("the floor", floor.load, _floor_missing, floor.plan_of, real=by_name, expected=by_name),
    "fifteen-lines": Loader("torch.frombuffer(mmap), pickle", _fifteen_lines),
    "fifteen-lines-safetensors": Loader(
        "torch.frombuffer(mmap), json", _fifteen_lines_safetensors, real=by_name, expected=by_name
    ),
}

STEMS = ("bert", "lora", "moe")

CASES: tuple[Case, ...] = (
    *(
        TimeCase(
            f"floor/{stem}",
            Side("zerocopy", f"{stem}.pt"),
            Side("floor", f"{stem}.pt"),
            columns=("ready", "cold"),
        )
        for stem in STEMS
    ),
    *(
        TimeCase(
            f"floor/{stem}-safetensors",
            Side("zerocopy-safetensors", f"{stem}.safetensors"),
            Side("floor", f"{stem}.safetensors"),
            columns=("ready", "cold"),
        )
        for stem in STEMS
    ),
    *(
        TimeCase(
            f"{stem}/fifteen-lines",
            Side("zerocopy", f"{stem}.pt"),
            Side("fifteen-lines", f"{stem}.pt"),
            columns=("ready", "consume", "cold", "cold-consume"),
        )
        for stem in STEMS
    ),
    *(
        TimeCase(
            f"{stem}/fifteen-lines-safetensors",
            Side("zerocopy-safetensors", f"{stem}.safetensors"),
            Side("fifteen-lines-safetensors", f"{stem}.safetensors"),
            columns=("ready", "consume", "cold", "cold-consume"),
        )
        for stem in STEMS
    ),
)
