"""Kept results: ours, torch.multiprocessing, and loading in each process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..engine.cases import Case, ClientsCase, Side, TimeCase
from ..engine.loader import Loader, needs_module, stock_load

_KEY = b"benchmarks"  # both sides of torch.multiprocessing have to have it
_ADDRESS, _FOLDER = "ZEROCOPY_BENCHMARK_ADDRESS", "ZEROCOPY_BENCHMARK_FOLDER_"
_ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def cache() -> Any:
    """Keep results in a folder of this process, which it deletes at its end. Clients inherit the folder's name."""
    from zerocopy import share

    if "ZEROCOPY_CACHE" not in os.environ:
        folder = tempfile.mkdtemp(prefix="zc.")
        os.environ["ZEROCOPY_CACHE"] = folder
        owner = os.getpid()
        atexit.register(lambda: shutil.rmtree(folder, True) if os.getpid() == owner else None)
    return share


def _attach(path: str, share: Any) -> Any:
    return share.load(torch.load, path)


def _attach_module(path: str, share: Any) -> Any:
    return share.load(torch.load, path, weights_only=False)


def _published(path: str, share: Any) -> Any:
    """Make the call, and keep its result."""
    import zerocopy

    share.unload("*")
    return share.load(zerocopy.load, path)


def cast(path: str) -> Any:
    """Load a file, and convert what is in it."""
    import zerocopy

    return {name: tensor.to(torch.float16) for name, tensor in zerocopy.load(path).items()}


def _published_cast(path: str, share: Any) -> Any:
    share.unload("*")
    return share.load(cast, path)


# ------------------------------------------------------------------------------ torch.multiprocessing


def _publisher(path: str) -> str:
    """Start a process that sends its tensors to whoever connects; return its address, which clients inherit."""
    if _ADDRESS in os.environ:
        return os.environ[_ADDRESS]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.rows.share", "publish", path],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    atexit.register(process.kill)
    os.environ[_ADDRESS] = process.stdout.readline().strip()
    return os.environ[_ADDRESS]


def _received(_: str, address: str) -> Any:
    """Receive tensors as torch.multiprocessing sends them, a descriptor for each."""
    import multiprocessing
    from multiprocessing.connection import Client

    import torch.multiprocessing  # noqa: F401  says how tensors are sent

    multiprocessing.current_process().authkey = _KEY
    with Client(address, authkey=_KEY) as connection:
        return connection.recv()


def _publish(path: str) -> None:
    import multiprocessing
    from multiprocessing.connection import Listener

    import torch.multiprocessing as torch_multiprocessing

    torch_multiprocessing.set_sharing_strategy("file_descriptor")
    multiprocessing.current_process().authkey = _KEY
    state = stock_load(path)
    with Listener(authkey=_KEY) as listener:
        print(listener.address, flush=True)
        while True:
            with listener.accept() as connection:
                connection.send(state)
                connection.poll(60)  # until the other one has what it needs, and closes


# ------------------------------------------------------------------------------ models in folders


@functools.cache
def _folder_of(kind: str) -> str:
    """Make a folder with a model of half a gigabyte. It is removed when this process ends; clients get its path."""
    name = _FOLDER + kind
    if name in os.environ:
        return os.environ[name]
    os.environ[name] = folder = tempfile.mkdtemp(prefix=f"zc.{kind}.")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder) if os.getpid() == owner else None)
    # By another process: this one will fork, and may have no threads of OpenMP then.
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.rows.share", kind, folder]
    subprocess.run(command, cwd=_ROOT, check=True, stderr=subprocess.DEVNULL)
    return folder


def _save_bert(folder: str) -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig()).save_pretrained(folder)


def _pretrained(_: str, folder: str) -> Any:
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    return BertModel.from_pretrained(folder)


def _patched_anew() -> None:
    cache().unload("*")
    cache().patch_all()


def _unpatched() -> None:
    cache().unpatch_all()


def _save_pipeline(folder: str) -> None:
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    transformer = DiTTransformer2DModel(
        num_attention_heads=12,
        attention_head_dim=64,
        num_layers=12,
        in_channels=4,
        out_channels=8,
        sample_size=32,
    )
    vae = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )
    pipeline = DiTPipeline(transformer=transformer.half(), vae=vae.half(), scheduler=DDIMScheduler())
    pipeline.save_pretrained(folder)


def _pipeline(_: str, folder: str) -> Any:
    """Load a model, and a pipeline that is given it."""
    from diffusers import AutoencoderKL, DiTPipeline

    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae", torch_dtype=torch.float16)
    return DiTPipeline.from_pretrained(folder, vae=vae, torch_dtype=torch.float16)


def _plain(_: str) -> str:
    return _folder_of("pipeline")


def _shared(_: str) -> str:
    cache().patch_all()
    return _folder_of("pipeline")


def _bert(_: str) -> str:
    return _folder_of("bert")


_OURS = needs_module("zerocopy")
ASKING = ("zerocopy", "zerocopy.share.loading")  # what the first call would import
_PIPELINE = (
    "diffusers",
    "diffusers.pipelines.dit.pipeline_dit",
    "diffusers.models.autoencoders.autoencoder_kl",
)


def _pipelines(label: str, prepare: Callable[[str], str], missing: Callable[[], str] = lambda: "") -> Loader:
    def why_not() -> str:
        return needs_module("diffusers")() or missing()

    return Loader(label, _pipeline, why_not, prepare, modules=_PIPELINE, expected=None)


def _models(label: str, settle: Callable[[], None]) -> Loader:
    def why_not() -> str:
        return needs_module("transformers")() or _OURS()

    modules = ("transformers", *ASKING)
    return Loader(label, _pretrained, why_not, _bert, modules=modules, expected=None, settle=settle)


_MODULE: dict[str, Any] = {"reference": "torch-trusted", "real": lambda module: dict(module.state_dict())}

LOADERS: dict[str, Loader] = {
    "share": Loader("share.load(torch.load)", _attach, _OURS, lambda _: cache(), modules=ASKING),
    "share-module": Loader(
        "share.load(torch.load)",
        _attach_module,
        _OURS,
        lambda _: cache(),
        modules=ASKING,
        expected=lambda module: dict(module.state_dict()),
        **_MODULE,
    ),
    "share-first": Loader("share.load, kept anew", _published, _OURS, lambda _: cache(), modules=ASKING),
    "share-computed": Loader(
        "share.load(cast), kept anew",
        _published_cast,
        _OURS,
        lambda _: cache(),
        modules=ASKING,
        reference="cast",
    ),
    "cast": Loader("cast", cast, _OURS, reference="cast"),
    "share-pretrained": _models("from_pretrained, kept anew", _patched_anew),
    "pretrained": _models("from_pretrained", _unpatched),
    "multiprocessing": Loader("torch.multiprocessing, fd", _received, prepare=_publisher),
    "torch-trusted": Loader(
        "torch.load", lambda path: stock_load(path, weights_only=False), reference="torch-trusted"
    ),
    "pipeline": _pipelines("diffusers", _plain),
    "share-pipeline": _pipelines("diffusers, patch_all", _shared, _OURS),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(name, Side(ours, file), Side(peer, file), columns=("attach",))
        for name, ours, peer, file in (
            ("share/multiprocessing", "share", "multiprocessing", "bert.pt"),
            ("share/torch", "share", "torch", "bert.pt"),
            ("share/module/torch", "share-module", "torch-trusted", "module.pt"),
            ("share/pipeline/plain", "share-pipeline", "pipeline", "small.pt"),
        )
    ),
    *(
        TimeCase(name, Side(ours, file), Side(peer, file), columns=("ready",), most_rounds=9)
        for name, ours, peer, file in (
            ("share/first", "share-first", "zerocopy", "bert.pt"),
            ("share/first/pretrained", "share-pretrained", "pretrained", "small.pt"),
            ("share/first/computed", "share-computed", "cast", "matrix.pt"),
        )
    ),
    ClientsCase("share/attaches", Side("share", "bert.pt"), "attaches"),
    ClientsCase("share/pss", Side("share", "matrix.pt"), "pss"),
)

if __name__ == "__main__":
    {"publish": _publish, "pipeline": _save_pipeline, "bert": _save_bert}[sys.argv[1]](sys.argv[2])
