"""The staged copy: on a GPU against its peers and against one plain copy, and its stages in host memory.

Few machines have a GPU, so the stages are measured too: "staging-fill" is everything up to the ring, the device taking
nothing; "staging-memory" is the whole copy with host memory as the device, which copies each byte twice, so it is held
against copying twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, mapped, needs_module, needs_torch_mmap, stock_load


def _needs_cuda() -> str:
    return "" if torch.cuda.is_available() else "there is no CUDA device"


def _needs(*reasons: Callable[[], str]) -> Callable[[], str]:
    return lambda: next(filter(None, (reason() for reason in (_needs_cuda, *reasons))), "")


def _on_cpu(state: Any) -> Any:
    return {name: tensor.cpu() for name, tensor in state.items()}


def _settled(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that is over when the GPU is."""

    @functools.wraps(load)
    def timed(*arguments: Any) -> Any:
        loaded = load(*arguments)
        torch.cuda.synchronize()
        return loaded

    return timed


def _staged_to_cuda(path: str) -> Any:
    import zerocopy

    return zerocopy.load(path, map_location="cuda")


def _first_tensor(path: str) -> Any:
    import zerocopy

    lazy = zerocopy.lazy_load(path, device="cuda")
    return next(iter(lazy.values())).materialize()


def _load_file(path: str) -> Any:
    from safetensors.torch import load_file

    return load_file(path, device="cuda")


def _fastsafetensors(path: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cuda:0"), nogds=True)
    loader.add_filenames({0: [path]})
    loaded = loader.copy_files_to_device()
    return {name: loaded.get_tensor(name) for name in loaded.key_to_rank_lidix}


def _streamer(path: str) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}


def _pinned(path: str) -> Any:
    """Return page-locked memory and GPU memory of a file's size, up to 1 GiB, and how often that is to be copied."""
    whole = Path(path).stat().st_size
    piece = min(whole, 1 << 30)
    source = torch.empty(piece, dtype=torch.uint8, pin_memory=True)
    return source, torch.empty(piece, dtype=torch.uint8, device="cuda"), whole


def _copy_pinned(_: str, prepared: Any) -> None:
    source, target, whole = prepared
    for done in range(0, whole, len(source)):
        size = min(len(source), whole - done)
        target[:size].copy_(source[:size], non_blocking=True)
    torch.cuda.synchronize()


def _gpu(label: str, load: Callable[[str], Any], *reasons: Callable[[], str]) -> Loader:
    return Loader(label, _settled(load), _needs(*reasons), real=_on_cpu)


# ------------------------------------------------------------------------------------ without a GPU


def _needs_staging() -> str:
    there = importlib.util.find_spec("zerocopy") and importlib.util.find_spec(
        "zerocopy.loading.device.staging"
    )
    return "" if there else "zerocopy has no staged copy"


@contextlib.contextmanager
def _leading_to(kind: Any) -> Iterator[None]:
    """Stage copies to such a device for storages that torch tags as CPU."""
    from zerocopy.loading.device import devices

    devices.KINDS["cpu"] = kind
    try:
        yield
    finally:
        del devices.KINDS["cpu"]


@functools.cache
def _kept(nbytes: int) -> torch.Tensor:
    """Return memory whose pages are there: a device's is."""
    return torch.zeros(nbytes, dtype=torch.uint8)


@functools.cache
def _kept_device(copies: bool) -> Any:
    from benchmarks.system.memory_device import MemoryDevice

    class Kept(MemoryDevice):
        def allocate(self, nbytes: int) -> torch.Tensor:
            return _kept(nbytes)

        def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
            if copies:
                super().move(target, source)

    return Kept


def _staged(copies: bool) -> Callable[[str], Any]:
    def load(path: str) -> Any:
        import zerocopy

        with _leading_to(_kept_device(copies)):
            return zerocopy.load(path)

    return load


def _two_buffers(path: str) -> Any:
    size = Path(path).stat().st_size
    return _kept(size), torch.ones(size, dtype=torch.uint8)


def _copied(times: int) -> Callable[..., None]:
    """Return a call that copies as many bytes as a file has, by all cores."""

    def copy(_: str, prepared: Any) -> None:
        target, source = prepared
        cores = len(os.sched_getaffinity(0))
        share = -(-len(source) // cores)

        def part(i: int) -> None:
            size = max(0, min(share, len(source) - i * share))
            ctypes.memmove(target.data_ptr() + i * share, source.data_ptr() + i * share, size)

        with ThreadPoolExecutor(cores) as pool:
            for _ in range(times):
                list(pool.map(part, range(cores)))

    return copy


LOADERS: dict[str, Loader] = {
    "gpu-zerocopy": _gpu('zerocopy.load("cuda")', _staged_to_cuda, needs_module("zerocopy")),
    "gpu-torch": _gpu('torch.load("cuda")', lambda path: stock_load(path, map_location="cuda")),
    "gpu-torch-mmap": _gpu(
        "torch.load(mmap).to()",
        lambda path: {name: tensor.to("cuda") for name, tensor in mapped(path).items()},
        needs_torch_mmap,
    ),
    "gpu-load-file": _gpu('load_file("cuda")', _load_file, needs_module("safetensors")),
    "gpu-fastsafetensors": _gpu(
        "fastsafetensors, no GDS,", _fastsafetensors, needs_module("fastsafetensors")
    ),
    "gpu-runai": _gpu("runai_model_streamer", _streamer, needs_module("runai_model_streamer")),
    "gpu-first": Loader("first tensor of lazy_load", _settled(_first_tensor), _needs(), expected=None),
    "gpu-copy": Loader(
        "pinned copy of as much as", _copy_pinned, _needs_cuda, prepare=_pinned, expected=None
    ),
    "staging-fill": Loader(
        "staging, page cache to ring,", _staged(copies=False), _needs_staging, expected=None
    ),
    "staging-memory": Loader("staged copy into memory,", _staged(copies=True), _needs_staging),
    "memcpy": Loader("memcpy of as much as", _copied(1), prepare=_two_buffers, expected=None),
    "memcpy-twice": Loader("memcpy, twice, of as much as", _copied(2), prepare=_two_buffers, expected=None),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(name, Side(ours, file), Side(peer, file), columns=("ready",), most_rounds=9)
        for name, ours, peer, file in (
            # The stages run without a GPU. The other rows are skipped without a CUDA device.
            ("staging/fill", "staging-fill", "memcpy", "half.pt"),
            ("staging/memory", "staging-memory", "memcpy-twice", "half.pt"),
            *(
                (f"{file.replace('.', '-')}/{peer}", "gpu-zerocopy", f"gpu-{peer}", file)
                for file, peer in (
                    ("gpu.safetensors", "copy"),
                    ("gpu.safetensors", "load-file"),
                    ("gpu.safetensors", "fastsafetensors"),
                    ("gpu.safetensors", "runai"),
                    ("gpu.pt", "copy"),
                    ("gpu.pt", "torch"),
                    ("gpu.pt", "torch-mmap"),
                    ("gpumoe.safetensors", "load-file"),
                    ("gpumoe.safetensors", "fastsafetensors"),
                    ("gpumoe.safetensors", "runai"),
                    ("gpumoe.pt", "torch"),
                )
            ),
        )
    ),
    TimeCase(
        "gpu/first",
        Side("gpu-first", "gpu.pt"),
        None,
        columns=("ready",),
        most_rounds=9,
    ),
)
