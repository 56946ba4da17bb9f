"""One call of the patched ``safetensors.torch.load_file`` or ``safe_open``: zerocopy's, or the original's.

The package's own reader runs nothing of a file either. So the original may try each file that zerocopy refuses, and
raises its own errors.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import torch

from zerocopy.errors import UnsupportedError
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.opening import open as open_checkpoint
from zerocopy.loading import archives, backends, error_context, inputs
from zerocopy.loading.options import LoadOptions
from zerocopy.patching.torch_load import log

Function = Callable[..., Any]

_FRAMEWORKS = ("pt", "torch", "pytorch")


class Call(NamedTuple):
    """The arguments of a call of ``load_file`` or ``safe_open``."""

    filename: Any
    framework: Any
    device: Any
    backend: Any


def load_file_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's ``safetensors.torch.load_file``."""

    def call_of(filename: Any, device: Any = "cpu", *, backend: Any = "mmap") -> Call:
        return Call(filename, "pt", device, backend)

    return _replacement(original, call_of, lambda call, _: _load(call.filename))


def safe_open_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's ``safe_open``."""

    def call_of(filename: Any, framework: Any, device: Any = "cpu", *, backend: Any = "mmap") -> Call:
        return Call(filename, framework, device, backend)

    return _replacement(
        original, call_of, lambda call, again: SafeOpen(_open(call.filename), original, again)
    )


def _replacement(
    original: Function, call_of: Callable[..., Call], serve: Callable[[Call, Function], Any]
) -> Function:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        call_original = functools.partial(original, *args, **kwargs)
        try:
            call = call_of(*args, **kwargs)
        except TypeError:
            reason = "arguments that zerocopy does not know"
        else:
            reason = _why_not_ours(call)
            if not reason:
                try:
                    return serve(call, call_original)
                except Exception as error:
                    reason = str(error)
        name = inputs.name_of(args[0] if args else kwargs.get("filename"))
        log.debug("%s goes to safetensors: %s", name, reason)
        return call_original()

    return replacement


class SafeOpen:
    """The result of ``safe_open``, over a :class:`zerocopy.Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, kind: Any, original: Callable[[], Any]) -> None:
        self._checkpoint: Checkpoint | None = checkpoint
        self._has_slices = False
        self._kind, self._open_original, self._original = kind, original, None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance asks for it
        return self._kind if isinstance(self._kind, type) else SafeOpen

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self._open())

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of their data."""
        return list(self._open())

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata in the header."""
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
        if name not in checkpoint:
            return self._theirs().get_slice(name)
        self._has_slices = True
        return checkpoint.get_slice(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs(), name)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'safe_open' object")

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A slice can be read after the block. The file closes with the last slice.
        if self._checkpoint is not None and not self._has_slices:
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


def _load(filename: Any) -> Any:
    with error_context.naming(filename):
        archive = inputs.open_archive(filename, backend=backends.backend_of("auto", None))
        _require_safetensors(archive.container)
        result = archives.load(archive, LoadOptions())
        archive.require_unchanged()
        return result


def _open(filename: Any) -> Checkpoint:
    if not isinstance(inputs.located(filename), (str, os.PathLike)):
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
    """Raise for files of other formats, so that the package's own error tells programs that it is another format."""
    if container != "safetensors":
        raise UnsupportedError(f"its format is {container}")


def _why_not_ours(call: Call) -> str:
    """Return why this call's arguments send it to the original, or an empty string."""
    if not isinstance(call.filename, (str, os.PathLike)):
        return "no path"
    if call.device != "cpu":  # safetensors refuses torch.device("cpu") itself
        return f"device {call.device!r}"
    if call.backend != "mmap":
        return f"backend {call.backend!r}"
    return "" if call.framework in _FRAMEWORKS else f"framework {call.framework!r}"
