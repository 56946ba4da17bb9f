"""A load format for vLLM: ``vllm serve FOLDER --load-format zerocopy``.

vLLM finds :func:`register` by the entry point ``vllm.general_plugins``, and calls it in each of its processes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["register", "weights"]


def register() -> None:
    """Register the load format ``zerocopy``. Other load formats stay as they are."""
    loaders = importlib.import_module("vllm.model_executor.model_loader")

    class ZerocopyModelLoader(loaders.BaseModelLoader):  # type: ignore[misc, name-defined]
        """Gives a model the tensors of a mapped checkpoint."""

        def download_model(self, model_config: Any) -> None:
            """Fetch the repository of a model's name from the hub. A path needs nothing."""
            _local(model_config, self.load_config)

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            """Copy the tensors of the checkpoint into the model, as its own ``load_weights`` does."""
            path = _local(model_config, self.load_config)
            loaded = model.load_weights(weights(path))  # type: ignore[operator]
            if loaded is not None and getattr(model_config, "quantization", None) is None:
                missing = sorted({name for name, _ in model.named_parameters()} - set(loaded))
                if missing:
                    raise ValueError(
                        f"{path} must have all parameters of the model; {missing[0]!r} and {len(missing) - 1} "
                        "others are missing: choose the checkpoint of this model"
                    )

    loaders.register_model_loader("zerocopy")(ZerocopyModelLoader)


def weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of a checkpoint. Each tensor lies in the mapping of its file.

    Parameters
    ----------
    path : Path
        A file, or a folder with one model file or an index of shards.

    Yields
    ------
    tuple of str and torch.Tensor
        They stay valid after the next one is taken.
    """
    from zerocopy.lazy.opening import open

    with open(path) as checkpoint:
        for name in checkpoint:
            yield name, checkpoint.get_tensor(name)


def _local(model_config: Any, load_config: Any) -> Path:
    """Return the path of a model; one that does not exist is a name of the hub."""
    path = Path(model_config.model)
    if path.exists():
        return path
    hub = importlib.import_module("huggingface_hub")
    revision, folder = getattr(model_config, "revision", None), getattr(load_config, "download_dir", None)
    return Path(hub.snapshot_download(model_config.model, revision=revision, cache_dir=folder))
