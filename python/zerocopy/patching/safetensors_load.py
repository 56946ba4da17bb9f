"""One call of the patched ``safetensors.torch.load_file`` or ``safe_open``: zerocopy's, or the original's.

The package's own reader runs nothing of a file either: so nothing is lost when the original tries again what zerocopy
did not take, and what it then raises is in its own words.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from zerocopy.errors import UnsupportedError
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.checkpoint import open as open_checkpoint
from zerocopy.loading import archives, backends, error_context, inputs
from zerocopy.loading.options import LoadOptions
from zerocopy.patching.torch_load import log

Function = Callable[..., Any]

_FRAMEWORKS = ("pt", "torch", "pytorch")


def load_file_for(original: Function) -> Function:
    """Return what replaces `original`, a release's ``safetensors.torch.load_file``."""

    def load_file(*args: Any, **kwargs: Any) -> Any:
        reason = "arguments that zerocopy does not know"
        with contextlib.suppress(TypeError):
            filename, *how = _file(*args, **kwargs)
            reason = _why_not_ours(filename, *how)
            if not reason:
                try:
                    return _load(filename)
                except Exception as error:
                    reason = str(error)
        log.debug("%s goes to safetensors: %s", _named(args, kwargs), reason)
        return original(*args, **kwargs)

    return load_file


def safe_open_for(original: Function) -> Function:
    """Return what replaces `original`, a release's ``safe_open``."""

    def safe_open(*args: Any, **kwargs: Any) -> Any:
        reason = "arguments that zerocopy does not know"
        with contextlib.suppress(TypeError):
            filename, framework, *how = _opened(*args, **kwargs)
            reason = _why_not_ours(filename, *how) or (
                "" if framework in _FRAMEWORKS else f"framework {framework!r}"
            )
            if not reason:
                try:
                    return SafeOpen(_open(filename), original, lambda: original(*args, **kwargs))
                except Exception as error:
                    reason = str(error)
        log.debug("%s goes to safetensors: %s", _named(args, kwargs), reason)
        return original(*args, **kwargs)

    return safe_open


class SafeOpen:
    """What ``safe_open`` returns, over a :class:`zerocopy.Checkpoint`. What that has not is asked of the original."""

    def __init__(self, checkpoint: Checkpoint, kind: Any, original: Callable[[], Any]) -> None:
        self._checkpoint: Checkpoint | None = checkpoint
        self._kind, self._open_original, self._original = kind, original, None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance asks
        return self._kind if isinstance(self._kind, type) else SafeOpen

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self._open())

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of their data."""
        return list(self._open())

    def metadata(self) -> dict[str, str] | None:
        """Return what the header has for the file as a whole."""
        return self._open().metadata() or None

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, in the mapping of the file."""
        checkpoint = self._open()
        if name not in checkpoint:
            return self._theirs().get_tensor(name)
        return checkpoint.get_tensor(name).detach()

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors, as :meth:`get_tensor` does."""
        return {name: self.get_tensor(name) for name in self._open()}

    def get_slice(self, name: str) -> Any:
        """Return a tensor of which parts can be read."""
        checkpoint = self._open()
        return checkpoint.get_slice(name) if name in checkpoint else self._theirs().get_slice(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs(), name)

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None

    def _theirs(self) -> Any:
        self._open()
        if self._original is None:
            self._original = self._open_original()
        return self._original

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            from safetensors import SafetensorError

            raise SafetensorError("File is closed")
        return self._checkpoint


def _file(filename: Any, device: Any = "cpu", *, backend: Any = "mmap") -> tuple[Any, Any, Any]:
    return filename, device, backend


def _opened(
    filename: Any, framework: Any, device: Any = "cpu", *, backend: Any = "mmap"
) -> tuple[Any, Any, Any, Any]:
    return filename, framework, device, backend


def _load(filename: Any) -> Any:
    with error_context.naming(filename, weights_only=True):
        archive = inputs.open_archive(filename, backend=backends.backend_of("auto", None))
        _require_safetensors(archive.container)
        result = archives.load(archive, LoadOptions())
        archive.require_unchanged()
        return result


def _open(filename: Any) -> Checkpoint:
    if inputs.several_files(filename) is not None:
        _require_safetensors("several files")
    checkpoint = open_checkpoint(filename)
    try:
        [layer] = checkpoint.layers
        _require_safetensors(layer.container)
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def _require_safetensors(container: str) -> None:
    """Leave what else zerocopy reads to the package, which refuses it: programs go by that to tell formats apart."""
    if container != "safetensors":
        raise UnsupportedError(f"its format is {container}")


def _why_not_ours(filename: Any, device: Any, backend: Any) -> str:
    if not isinstance(filename, (str, os.PathLike)):
        return "no path"
    if device not in ("cpu", torch.device("cpu")):
        return f"device {device!r}"
    return "" if backend == "mmap" else f"backend {backend!r}"


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return inputs.name_of(args[0] if args else kwargs.get("filename"))
