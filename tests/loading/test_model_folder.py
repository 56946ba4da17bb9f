"""A folder with one model file, as Hugging Face writes it, is a checkpoint for every call that takes a path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import zerocopy
from zerocopy.__main__ import main

STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


@pytest.fixture(params=["model.safetensors", "pytorch_model.bin", "pytorch_lora_weights.safetensors"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "hub"
    made.mkdir()
    (made / "config.json").write_text("{}")
    torch.save(STATE, tmp_path / "m.pt")
    if request.param.endswith(".bin"):
        shutil.copy(tmp_path / "m.pt", made / request.param)
    else:
        zerocopy.convert(tmp_path / "m.pt", made / request.param)
    return made


def test_folder_with_one_model_file_loads_in_every_way(folder: Path, tmp_path: Path) -> None:
    weight = STATE["weight"]
    assert torch.equal(zerocopy.load(folder)["weight"], weight)
    assert torch.equal(zerocopy.load(str(folder))["weight"], weight)
    assert torch.equal(zerocopy.lazy_load(folder)["weight"] + 0, weight)
    with zerocopy.open(folder) as checkpoint:
        assert set(checkpoint) == set(STATE) and Path(checkpoint.path).parent == folder
    assert len(zerocopy.explain(folder).storages) == 2
    assert zerocopy.prefetch(folder).wait()
    module = torch.nn.Linear(3, 2)
    zerocopy.load_model(module, folder)
    assert torch.equal(module.weight, weight)
    zerocopy.convert(folder, tmp_path / "copy.pt")
    assert torch.equal(torch.load(tmp_path / "copy.pt")["weight"], weight)
    zerocopy.convert(folder, tmp_path / "copy.h5")
    assert torch.equal(zerocopy.load(tmp_path / "copy.h5")["weight"], weight)
    assert torch.equal(zerocopy.gds.load(folder, device="cpu")["weight"], weight)


def test_distributed_reader_takes_a_folder_with_one_model_file(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.checkpoint")
    reader = zerocopy.distributed.CheckpointReader
    assert reader.validate_checkpoint_id(folder) and not reader.validate_checkpoint_id(tmp_path)


@pytest.mark.parametrize("command", ["scan", "verify"])
def test_folder_is_scanned_and_verified(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(folder)]) == 0
    assert str(folder) in capsys.readouterr().out
    zerocopy.convert(folder, tmp_path / "shards", max_shard_size="30B")
    assert main([command, str(tmp_path / "shards")]) == 0
    assert capsys.readouterr().out.count("-of-00002") == 2


LOOKED_FOR = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "other.index.json",
)


def test_of_several_checkpoints_the_one_that_transformers_takes(tmp_path: Path) -> None:
    for number, name in enumerate(LOOKED_FOR):
        content = tmp_path / f"{number}.safetensors"
        torch.save({name: torch.ones(1)}, tmp_path / "m.pt")
        zerocopy.convert(tmp_path / "m.pt", content)
        if name.endswith(".json"):
            (tmp_path / name).write_text(json.dumps({"weight_map": {name: content.name}}))
        else:
            content.rename(tmp_path / name)
    for name in LOOKED_FOR:
        assert list(zerocopy.load(tmp_path)) == list(zerocopy.open(tmp_path)) == [name]
        (tmp_path / name).unlink()
    for name in ("one", "two"):
        (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(zerocopy.UnsupportedError, match="several"):
        zerocopy.load(tmp_path)


@pytest.mark.slow("imports transformers")
def test_transformers_takes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20
    )
    name = "embeddings.word_embeddings.weight"
    made = transformers.BertModel(config)
    made.save_pretrained(tmp_path)
    other = {key: torch.zeros_like(value) for key, value in made.state_dict().items()}
    torch.save(other, tmp_path / "zeros.pt")
    for target, more in (("model.safetensors", {}), ("", {"max_shard_size": "1kB"})):
        zerocopy.convert(tmp_path / "zeros.pt", tmp_path / target, **more)
        theirs = transformers.BertModel.from_pretrained(tmp_path).state_dict()[name]
        assert torch.equal(zerocopy.load(tmp_path)[name], theirs)
        made.save_pretrained(tmp_path)  # in the place of the zeros


def test_shards_beside_a_file_that_loaders_prefer_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "m.pt")
    zerocopy.convert(tmp_path / "m.pt", tmp_path, max_shard_size="12B")
    assert not caplog.records
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "model.safetensors")
    zerocopy.convert(tmp_path / "m.pt", tmp_path, max_shard_size="12B")
    assert str(tmp_path / "model.safetensors") in caplog.text and "remove one" in caplog.text
