"""The rows, one entry each. A new file is added to `files.MAKERS`, a new loader to `loaders.LOADERS`."""

from __future__ import annotations

from math import prod

from . import shapes
from .cases import Case, ClientsCase, Goal, MemoryCase, Side, TimeCase, UseCase

LARGEST = max(prod(shape) for _, shape in shapes.llm()) * 2 / 1e6  # megabytes
LARGEST_STREAMED = 2048 * 5632 * 4 / 1e6
PAGE = 4096 / 1e6
GIB = (1 << 30) / 1e6


def _against(peer: str, file: str, *goals: Goal) -> TimeCase:
    return TimeCase(f"{file.partition('.')[0]}/{peer}", Side("zerocopy", file), Side(peer, file), goals)


CASES: tuple[Case, ...] = (
    _against("torch", "bert.pt", Goal("ready", at_least=300)),
    _against("torch-mmap", "bert.pt", Goal("ready", at_least=30)),
    _against("torch-mmap-trusted", "bert.pt"),
    TimeCase(
        "bert/notebook",
        Side("zerocopy", "bert.pt"),
        Side("notebook", "bert.h5"),
        (Goal("ready", at_least=20),),
    ),
    TimeCase(
        "bert-h5/notebook",
        Side("zerocopy", "bert.converted.h5"),
        Side("notebook", "bert.h5"),
        (Goal("ready", at_least=10),),
    ),
    TimeCase(
        "bert-h5/h5py",
        Side("zerocopy-plain", "bert.arrays.h5"),
        Side("h5py", "bert.arrays.h5"),
        (Goal("ready", at_least=100),),
    ),
    _against("torch", "llm.pt", Goal("ready", at_least=2000), Goal("touch", at_least=80)),
    _against("torch-mmap", "llm.pt"),
    _against("torch", "moe.pt"),
    _against("torch-mmap", "moe.pt", Goal("ready", at_least=40)),
    _against("torch", "lora.pt", Goal("ready", at_least=60, since=(2, 13))),
    _against("torch-mmap", "lora.pt"),
    *(
        TimeCase(
            f"memory/{file.partition('.')[0]}",
            Side("patched-memory", file),
            Side("torch-memory", file),
            (Goal("ready", at_least=1),),
            columns=("ready",),
        )
        for file in ("storage.pt", "small.pt")
    ),
    TimeCase(
        "size/16GiB-over-1GiB",
        Side("zerocopy", "sparse-1GiB.pt"),
        Side("zerocopy", "sparse-16GiB.pt"),
        (Goal("ready", at_most=1.2),),
        columns=("ready",),
        check_ends=True,
    ),
    MemoryCase(
        "copies/torch",
        Side("zerocopy", "bert.pt"),
        Side("torch", "bert.pt"),
        copies=(1000, 4),
        goals=(Goal("private", at_most=0.1, unit="MB"),),
    ),
    # 500 of the peer's: each of its copies keeps a file descriptor, and 1024 are what a process usually gets.
    MemoryCase(
        "copies/notebook", Side("zerocopy", "bert.pt"), Side("notebook", "bert.h5"), copies=(1000, 500)
    ),
    TimeCase(
        "sparse64/list",
        Side("zerocopy-list", "sparse-64GiB.pt"),
        None,
        (Goal("ready", at_most=20, unit="ms"),),
        columns=("ready",),
    ),
    UseCase(
        "sparse64/list",
        Side("zerocopy-list", "sparse-64GiB.pt"),
        None,
        columns=("resident",),
        goals=(Goal("resident", at_most=20, unit="MB"),),
    ),
    *(
        TimeCase(
            f"moe/one/{peer}",
            Side("zerocopy-one", "moe.pt"),
            Side(f"{peer}-one", "moe.pt"),
            (Goal("ready", at_least=goal),),
            columns=("ready",),
        )
        for peer, goal in (("torch-mmap", 80), ("zipslicer", 40))
    ),
    *(
        TimeCase(
            f"{stem}/safetensors",
            Side("zerocopy-safetensors", f"{stem}.safetensors"),
            Side("load_file", f"{stem}.safetensors"),
            (Goal("ready", at_least=goal),),
        )
        for stem, goal in (("bert", 20), ("moe", 25), ("lora", 30))
    ),
    *(
        TimeCase(
            f"pread/{peer}",
            Side("zerocopy-pread", "half.safetensors"),
            Side(peer, "half.safetensors"),
            (Goal("consume", at_least=1), Goal("cold-consume", at_least=1)),
            columns=("consume", "cold-consume"),
        )
        for peer in ("fastsafetensors", "runai")
    ),
    TimeCase(
        "moe/one/safe_open",
        Side("zerocopy-one", "moe.safetensors"),
        Side("safe_open-one", "moe.safetensors"),
        (Goal("ready", at_least=100),),
        columns=("ready",),
    ),
    TimeCase(
        "moe/lazy",
        Side("zerocopy-lazy", "moe.pt"),
        Side("fabric-lazy", "moe.pt"),
        (Goal("ready", at_least=30),),
        columns=("ready",),
    ),
    TimeCase(
        "script/torch.jit",
        Side("zerocopy-script", "script.pt"),
        Side("torch-script", "script.pt"),
        (Goal("ready", at_least=50),),
        columns=("ready",),
    ),
    UseCase(
        "llm/load_state_dict",
        Side("zerocopy-module", "llm.pt"),
        Side("torch-module", "llm.pt"),
        columns=("peak", "resident"),
        goals=(Goal("peak", at_most=LARGEST + 20, unit="MB"),),
    ),
    *(
        UseCase(
            f"slice/{rows}",
            Side(f"zerocopy-{rows}", "matrix.pt"),
            Side(f"torch-mmap-{rows}", "matrix.pt"),
            columns=("read",),
            goals=(Goal("read", at_most=1.1 * megabytes + 2 * PAGE, unit="MB"),),
        )
        for rows, megabytes in (("few-rows", 0.065536), ("many-rows", 33.554432))
    ),
    TimeCase(
        "stream/layers",
        Side("zerocopy-layers", "stream.pt"),
        Side("disk", "stream.pt"),
        (Goal("cold", at_least=0.85),),
        columns=("cold",),
        most_rounds=5,
    ),
    *(
        TimeCase(
            f"cold/{peer}",
            Side("zerocopy-prefetch", "llm.pt"),
            Side(peer, "llm.pt"),
            (Goal("cold-consume", at_least=goal),),
            columns=("cold-consume",),
            most_rounds=5,
        )
        for peer, goal in (("torch", 2.3), ("torch-mmap", 1.2), ("disk-direct", 0.95))
    ),
    TimeCase(
        "second/mapping",
        Side("loop-prefetch", "llm.pt"),
        Side("loop-mapping", "llm.pt"),
        (Goal("second", at_least=3),),
        columns=("second",),
        most_rounds=5,
    ),
    *(
        TimeCase(
            name,
            Side(ours, file),
            Side(peer, file),
            (Goal("ready", at_least=goal),),
            columns=("ready",),
            most_rounds=5,
        )
        for name, ours, peer, file, goal in (
            ("save/torch", "zerocopy-save", "torch-save", "llm.pt", 2),
            ("save/disk", "zerocopy-save", "disk-write", "llm.pt", 0.9),
            ("save/mapped", "zerocopy-save-mapped", "torch-save-loaded", "llm.pt", 3),
            ("save/reflink", "zerocopy-save-xfs", "torch-save-loaded-xfs", "llm.pt", 20),
            ("save/reflink-checked", "zerocopy-save-checked-xfs", "torch-save-loaded-xfs", "llm.pt", 20),
            ("convert/shards", "zerocopy-convert", "transformers-convert", "stream.pt", 2),
            ("save/rename", "zerocopy-rename", "torch-rewrite", "stream.pt", 100),
        )
    ),
    UseCase(
        "convert/shards",
        Side("zerocopy-convert", "stream.pt"),
        Side("transformers-convert", "stream.pt"),
        columns=("peak",),
        goals=(Goal("peak", at_most=LARGEST_STREAMED + 50, unit="MB"),),
    ),
    *(
        TimeCase(
            name, Side(ours, file), Side(peer, file), (Goal("attach", at_least=goal),), columns=("attach",)
        )
        for name, ours, peer, file, goal in (
            ("share/multiprocessing", "share", "multiprocessing", "bert.pt", 200),
            ("share/torch", "share", "torch", "bert.pt", 300),
            ("share/module/torch", "share-module", "torch-trusted", "module.pt", 80),
            ("share/pipeline/plain", "share-pipeline", "pipeline", "small.pt", 20),
        )
    ),
    TimeCase(
        "share/first",
        Side("share-first", "bert.pt"),
        Side("zerocopy-process", "bert.pt"),
        (Goal("ready", at_least=1 / 1.1),),
        columns=("ready",),
        most_rounds=9,
    ),
    ClientsCase(
        "share/attaches", Side("share", "bert.pt"), "attaches", (Goal("attaches", at_least=2000, unit="/s"),)
    ),
    ClientsCase("share/pss", Side("share", "matrix.pt"), "pss", (Goal("pss", at_most=1.1 * GIB, unit="MB"),)),
    *(
        TimeCase(
            f"far/{ours}",
            Side(f"far-{ours}", "far.pt"),
            Side("far-touch", "far.pt"),
            (Goal("cold-consume", at_least=goal),),
            columns=("cold-consume",),
            most_rounds=5,
        )
        for ours, goal in (("auto", 12), ("direct", 20))
    ),
    *(
        TimeCase(name, Side(ours, file), Side(peer, file), goals, columns=("ready",), most_rounds=9)
        for name, ours, peer, file, goals in (
            # Without a GPU: the stages. The rest is skipped where there is no CUDA device.
            ("road/fill", "road-fill", "memcpy", "half.pt", (Goal("ready", at_least=0.9),)),
            ("road/memory", "road-memory", "memcpy-twice", "half.pt", (Goal("ready", at_least=0.9),)),
            *(
                (f"{file.replace('.', '-')}/{peer}", "gpu-zerocopy", f"gpu-{peer}", file, goals)
                for file, peer, goals in (
                    ("gpu.safetensors", "copy", (Goal("ready", at_least=0.9),)),
                    ("gpu.safetensors", "load-file", (Goal("ready", at_least=3),)),
                    ("gpu.safetensors", "fastsafetensors", ()),
                    ("gpu.safetensors", "runai", ()),
                    ("gpu.pt", "copy", (Goal("ready", at_least=0.9),)),
                    ("gpu.pt", "torch", (Goal("ready", at_least=15),)),
                    ("gpu.pt", "torch-mmap", (Goal("ready", at_least=6),)),
                    ("gpumoe.safetensors", "load-file", (Goal("ready", at_least=3),)),
                    ("gpumoe.safetensors", "fastsafetensors", (Goal("ready", at_least=3),)),
                    ("gpumoe.safetensors", "runai", (Goal("ready", at_least=3),)),
                    ("gpumoe.pt", "torch", ()),
                )
            ),
        )
    ),
    TimeCase(
        "gpu/first",
        Side("gpu-first", "gpu.pt"),
        None,
        (Goal("ready", at_most=10, unit="ms"),),
        columns=("ready",),
        most_rounds=9,
    ),
    TimeCase(
        "gpu/resident",
        Side("share-resident", "gpu.pt"),
        None,
        (Goal("ready", at_most=3, unit="ms"),),
        columns=("ready",),
        most_rounds=9,
    ),
)
