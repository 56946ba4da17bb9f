"""A checkpoint plugin for Lightning: ``Trainer(plugins=[ZerocopyCheckpointIO()])``.

It serves the packages ``lightning`` and ``pytorch_lightning``, which have base classes of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from zerocopy.errors import UnsupportedError

__all__ = ["ZerocopyCheckpointIO"]

# Each package that a trainer may come from, and the module that has its base class.
_BASES = {"lightning": "lightning.fabric.plugins", "pytorch_lightning": "lightning_fabric.plugins"}
_Path = str | os.PathLike[str]

ZerocopyCheckpointIO: Any  # made when it is first used


class _MappedCheckpointIO:
    """Map checkpoints when a trainer resumes, and write them without a copy in memory.

    A path with a scheme, such as ``s3://``, is left to Lightning's own ``TorchCheckpointIO``.

    Parameters
    ----------
    wait : bool
        If False, a checkpoint is written in the background while training goes on, as by
        ``zerocopy.save(wait=False)``. An error in the background is raised by the next save, or at the end.
    """

    def __init__(self, *, wait: bool = True) -> None:
        super().__init__()
        self._wait = wait
        self._saving: tuple[str, Any] | None = None

    def save_checkpoint(self, checkpoint: Any, path: _Path, storage_options: Any = None) -> None:
        """Write a checkpoint to a temporary file, and rename the file to `path`."""
        self._finish()
        if storage_options is not None or _has_scheme(path):
            self._lightnings().save_checkpoint(checkpoint, path, storage_options)
            return
        from zerocopy.saving.saver import save

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if self._wait:
            save(checkpoint, path)
        else:
            self._saving = os.fspath(path), save(checkpoint, path, wait=False)

    def load_checkpoint(self, path: _Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Map a checkpoint. ``weights_only=None`` means True, on every release of PyTorch."""
        self._finish()
        if _has_scheme(path):
            chosen = {} if weights_only is None else {"weights_only": weights_only}
            return self._lightnings().load_checkpoint(path, map_location, **chosen)
        from zerocopy.loading.loader import load

        return load(path, map_location=map_location, weights_only=weights_only is not False)

    def remove_checkpoint(self, path: _Path) -> None:
        """Delete a checkpoint. Tensors that are mapped from it keep their values."""
        if self._saving is not None and self._saving[0] == os.fspath(path):
            self._finish()
        self._lightnings().remove_checkpoint(path)

    def teardown(self) -> None:
        """Wait for a checkpoint that is written in the background."""
        self._finish()
        self._lightnings().teardown()

    def _finish(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving[1].wait()

    def _lightnings(self) -> Any:
        """Return this object with the methods of Lightning's own class."""
        return super()


def _has_scheme(path: _Path) -> bool:
    return "://" in os.fspath(path)


def _make() -> type:
    """Return the plugin: a subclass of the base class of each package that the program may use."""
    packages = [name for name in _BASES if name in sys.modules]
    packages = packages or [name for name in _BASES if importlib.util.find_spec(name) is not None]
    if not packages:
        raise UnsupportedError(
            "ZerocopyCheckpointIO needs lightning or pytorch_lightning: neither is installed"
        )
    bases = [importlib.import_module(_BASES[name]).TorchCheckpointIO for name in packages]
    described = {"__module__": __name__, "__doc__": _MappedCheckpointIO.__doc__}
    return type("ZerocopyCheckpointIO", (_MappedCheckpointIO, *bases), described)


def __getattr__(name: str) -> Any:
    if name != "ZerocopyCheckpointIO":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _make()
    return made
