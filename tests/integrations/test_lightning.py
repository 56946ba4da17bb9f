"""ZerocopyCheckpointIO: Lightning's plugin, and what it leaves to Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import lies_in_mapping

pytestmark = pytest.mark.slow("imports pytorch_lightning")

STATE = {"state_dict": {"weight": torch.arange(5000.0)}, "epoch": 3}


def make(**options: Any) -> Any:
    """Return a plugin. Lightning takes seconds to import, so the fast tier must not."""
    pytest.importorskip("pytorch_lightning")
    from zerocopy.integrations.lightning import ZerocopyCheckpointIO

    return ZerocopyCheckpointIO(**options)


@pytest.mark.parametrize("wait", [True, False])
def test_checkpoint_of_the_plugin_is_mapped_and_read_by_torch(tmp_path: Path, wait: bool) -> None:
    plugin = make(wait=wait)
    path = tmp_path / "new" / "a.ckpt"
    plugin.save_checkpoint(STATE, path)
    loaded = plugin.load_checkpoint(path, map_location=lambda storage, _: storage)
    assert lies_in_mapping(loaded["state_dict"]["weight"].data_ptr(), path)
    assert torch.load(path)["epoch"] == 3
    plugin.save_checkpoint({**STATE, "epoch": 4}, path)  # over the mapped file
    plugin.teardown()
    assert torch.equal(loaded["state_dict"]["weight"], STATE["state_dict"]["weight"])
    plugin.remove_checkpoint(path)
    assert not path.exists()


def test_checkpoint_removed_while_it_is_written_stays_removed(tmp_path: Path) -> None:
    plugin = make(wait=False)
    plugin.save_checkpoint(STATE, tmp_path / "a.ckpt")
    plugin.remove_checkpoint(tmp_path / "a.ckpt")
    plugin.teardown()
    assert not list(tmp_path.iterdir())


def test_error_in_the_background_is_raised_at_the_end(tmp_path: Path) -> None:
    plugin = make(wait=False)
    (tmp_path / "a.ckpt").mkdir()
    with pytest.raises(OSError, match=r"a\.ckpt"):
        plugin.save_checkpoint(STATE, tmp_path / "a.ckpt")
        plugin.teardown()


def test_address_with_a_scheme_goes_to_lightning(tmp_path: Path) -> None:
    plugin = make()
    address = f"file://{tmp_path}/a.ckpt"
    plugin.save_checkpoint(STATE, address)
    loaded = plugin.load_checkpoint(address, weights_only=True)
    assert not lies_in_mapping(loaded["state_dict"]["weight"].data_ptr(), tmp_path / "a.ckpt")


def test_storage_options_are_refused_as_by_lightning(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        make().save_checkpoint(STATE, tmp_path / "a.ckpt", storage_options={})


def test_hostile_checkpoint_is_refused_unless_weights_only_is_false(tmp_path: Path) -> None:
    torch.save({"call": Harmless()}, tmp_path / "a.ckpt")
    plugin = make()
    with pytest.raises(Exception, match="Harmless"):
        plugin.load_checkpoint(tmp_path / "a.ckpt")
    loaded: Any = plugin.load_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert isinstance(loaded["call"], Harmless)


class Harmless:
    """A class that no list of safe globals has."""


def test_trainer_takes_the_plugin() -> None:
    plugin = make()
    import pytorch_lightning
    from lightning_fabric.plugins import CheckpointIO

    assert isinstance(plugin, CheckpointIO)
    trainer = pytorch_lightning.Trainer(plugins=[plugin], accelerator="cpu", logger=False)
    assert trainer.strategy.checkpoint_io is plugin
