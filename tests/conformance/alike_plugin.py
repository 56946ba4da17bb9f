"""A pytest plugin that has both zerocopy and safetensors read whatever the package's tests write, open or take apart.

Both have to give the same tensors, bit for bit, and the same metadata, or both have to refuse. Where they do not, the
call at which it was found raises, and its test fails. zerocopy stands in the package's place too (`patched_plugin`).
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outcomes_plugin
import safetensors.numpy
import safetensors.torch
from safetensors._safetensors_rust import safe_open

Function = Callable[..., Any]

_looking = threading.local()  # what the looking itself calls is not looked at
_alike = 0
_refused = 0


def _looked_at(function: Function, content_of: Function) -> Function:
    """Return `function`, and have both read the content that a call is about."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception:
            _look(content_of(None, *args, **kwargs))
            raise
        _look(content_of(result, *args, **kwargs))
        return result

    return call


def _look(content: bytes | None) -> None:
    if content is None or getattr(_looking, "now", False):
        return
    _looking.now = True
    try:
        _compare(content)
    finally:
        _looking.now = False


def _compare(content: bytes) -> None:
    global _alike, _refused
    theirs, ours = _answer(_theirs, content), _answer(_ours, content)
    if isinstance(theirs, Exception) and isinstance(ours, Exception):
        _refused += 1
        return
    assert ours == theirs, f"safetensors: {theirs!r:.300}\nzerocopy: {ours!r:.300}"
    _alike += 1


def _answer(read: Function, content: bytes) -> Any:
    try:
        return read(content)
    except Exception as error:
        return error


def _theirs(content: bytes) -> tuple[Any, ...]:
    # From a file: of bytes in memory the package does not read its newest dtypes.
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with safe_open(file.name, "pt") as opened:
            tensors = {name: _described(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}


def _ours(content: bytes) -> tuple[Any, ...]:
    import zerocopy

    tensors = {name: _described(tensor) for name, tensor in zerocopy.load(memoryview(content)).items()}
    with zerocopy.open(content) as opened:
        assert {name: _described(opened.get_tensor(name)) for name in opened} == tensors
        return tensors, opened.metadata()


def _described(tensor: Any) -> tuple[Any, ...]:
    import torch

    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, tensor.stride(), bytes(data.numpy())


def _file(_: Any, filename: Any, *args: Any, **kwargs: Any) -> bytes | None:
    return Path(filename).read_bytes() if Path(filename).is_file() else None


# The tests take them by name from any of these, and `patched_plugin` has put zerocopy's there.
_LOOKED_AT: dict[str, Function] = {
    "deserialize": lambda _, data: bytes(data),
    "serialize": lambda result, *args, **kwargs: result,
    "serialize_file": lambda _, tensors, filename, **kwargs: _file(_, filename),
    "safe_open": _file,
    "load_file": _file,
}
for module in (safetensors, safetensors.numpy, safetensors.torch):
    for name in _LOOKED_AT.keys() & vars(module).keys():
        setattr(module, name, _looked_at(getattr(module, name), _LOOKED_AT[name]))


def pytest_sessionfinish() -> None:
    outcomes_plugin.record(alike=_alike, refused_by_both=_refused)
