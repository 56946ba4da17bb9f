"""The load format of vLLM, against a stand-in of the interface that vLLM documents."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import lies_in_mapping

import zerocopy


class BaseModelLoader:
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config


class Model(torch.nn.Linear):
    """A model that takes its weights as those of vLLM do."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        self.seen = dict(weights)
        for name, tensor in self.seen.items():
            self.get_parameter(name).data.copy_(tensor)
        return set(self.seen)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register the plugin as vLLM does, and return the loader of its format."""
    registered: dict[str, Any] = {}
    module = ModuleType("vllm.model_executor.model_loader")
    vars(module).update(
        BaseModelLoader=BaseModelLoader,
        register_model_loader=lambda name: lambda kind: registered.setdefault(name, kind),
    )
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (plugin,) = entry_points(group="vllm.general_plugins", name="zerocopy")
    plugin.load()()
    (made,) = registered.items()
    assert made[0] == "zerocopy" and issubclass(made[1], BaseModelLoader)
    return made[1](SimpleNamespace(download_dir=None))


def test_model_gets_mapped_tensors(loader: Any, tmp_path: Path) -> None:
    state = torch.nn.Linear(64, 64).state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    config, model = SimpleNamespace(model=str(tmp_path)), Model(64, 64)
    loader.download_model(config)
    loader.load_weights(model, config)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
    assert all(lies_in_mapping(t.data_ptr(), tmp_path / "pytorch_model.bin") for t in model.seen.values())


def test_checkpoint_without_a_parameter_is_refused(loader: Any, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(64, 64)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="'bias'"):
        loader.load_weights(Model(64, 64), SimpleNamespace(model=tmp_path / "a.pt", quantization=None))


def test_name_of_the_hub_is_fetched(loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("huggingface_hub")
    asked = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path)

    vars(hub)["snapshot_download"] = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    zerocopy.save(torch.nn.Linear(4, 4).state_dict(), tmp_path / "pytorch_model.bin")
    loader.load_weights(Model(4, 4), SimpleNamespace(model="owner/name", revision="main"))
    assert asked == [("owner/name", {"revision": "main", "cache_dir": None})]
