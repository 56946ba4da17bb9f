"""``dcp.load`` in a job of several ranks: ours, torch's Hugging Face reader, and DCP's own format."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module

_ROOT = Path(__file__).resolve().parents[2]
_FILE = "moe.safetensors"
_RANKS = (1, 2, 4)
_READERS = {
    "zerocopy": "CheckpointReader, LoadPlanner",
    "hugging-face": "HuggingFaceStorageReader",
    "dcp": "FileSystemReader",
}

# ------------------------------------------------------------------------------ this process


class _Job:
    """Ranks that load when they are asked to. They are forked from one process, and end with this one."""

    def __init__(self, path: str, ranks: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="zerocopy-ranks-")
        arguments = [sys.executable, "-W", "ignore", "-m", "benchmarks.rows.distributed", path, self._folder]
        self._process = subprocess.Popen(
            [*arguments, str(ranks)], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._end)

    def load(self, reader: str) -> None:
        """Have all ranks load, and wait for them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(reader, file=self._process.stdin, flush=True)
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError(f"a rank could not load with {_READERS[reader]}")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_job = functools.cache(_Job)


def _missing(reader: str) -> str:
    try:
        has_load = importlib.util.find_spec("torch.distributed.checkpoint.state_dict_loader")
        has_reader = reader != "hugging-face" or importlib.util.find_spec(
            "torch.distributed.checkpoint.hf_storage"
        )
    except ImportError:
        has_load = has_reader = None
    if not (has_load and has_reader):
        return f"torch {torch.__version__} has no {_READERS[reader]}"
    return needs_module("zerocopy")()


def _loader(reader: str, ranks: int) -> Loader:
    return Loader(
        f"{_READERS[reader]}, {ranks} ranks,",
        lambda _, job: job.load(reader),
        lambda: _missing(reader),
        prepare=lambda path: _job(path, ranks),
        expected=None,  # the ranks compare
    )


LOADERS: dict[str, Loader] = {
    f"{reader}-{ranks}-ranks": _loader(reader, ranks) for reader in _READERS for ranks in _RANKS
}

CASES: tuple[Case, ...] = tuple(
    TimeCase(
        f"distributed/{peer}-{ranks}",
        Side(f"zerocopy-{ranks}-ranks", _FILE),
        Side(f"{peer}-{ranks}-ranks", _FILE),
        columns=("ready",),
        most_rounds=3,
    )
    for ranks in _RANKS
    for peer in ("hugging-face", "dcp")
)

# ------------------------------------------------------------------------------ the ranks


def _lead(path: str, folder: str, ranks: int) -> None:
    """Fork the ranks, and pass on which reader to use."""

    members = []
    for rank in range(ranks):
        (asks, ask), (told, tell) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(ask)
            with contextlib.suppress(EOFError), os.fdopen(asks) as orders:
                _serve(path, folder, rank, ranks, orders, lambda tell=tell: os.write(tell, b"."))
            os._exit(0)
        os.close(asks)
        os.close(tell)
        members.append((ask, told))
    for line in sys.stdin:
        for ask, _ in members:
            os.write(ask, line.encode())
        done = [os.read(told, 1) for _, told in members]
        print("done" if all(done) else "failed", flush=True)


def _serve(path: str, folder: str, rank: int, ranks: int, orders: Any, tell: Callable[[], object]) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import zerocopy
    from zerocopy.distributed import CheckpointReader, LoadPlanner

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120)
    )
    mesh = init_device_mesh("cpu", (ranks,))
    wanted = {
        name: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)
        for name, tensor in zerocopy.load(path).items()
    }
    state = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    own, of_torch = f"{folder}/dcp", f"{folder}/hugging-face"
    if rank == 0:
        Path(of_torch).mkdir()
        Path(of_torch, "model.safetensors").symlink_to(path)
    dist.barrier()
    made = {
        "zerocopy": lambda: {"storage_reader": CheckpointReader(path), "planner": LoadPlanner()},
        "hugging-face": lambda: {"storage_reader": dcp.HuggingFaceStorageReader(of_torch)},
        "dcp": lambda: {"storage_reader": dcp.FileSystemReader(own)},
    }
    checked = set()
    for line in orders:
        reader = line.strip()
        if reader == "dcp" and reader not in checked:
            dcp.save(wanted, checkpoint_id=own)
        if reader not in checked:
            for tensor in state.values():
                tensor.to_local().zero_()
        dcp.load(state, **made[reader]())
        if reader not in checked:
            for name, tensor in wanted.items():
                assert torch.equal(state[name].to_local(), tensor.to_local()), (reader, name)
            checked.add(reader)
        tell()


if __name__ == "__main__":
    _lead(sys.argv[1], sys.argv[2], int(sys.argv[3]))
