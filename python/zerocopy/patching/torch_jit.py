"""One call of the patched ``torch.jit.load``: zerocopy's, or the original's.

zerocopy and torch both trust a TorchScript archive. So, unlike torch.load, the original may try every archive that
zerocopy refuses, and raises its own errors.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from zerocopy import jit
from zerocopy.loading import inputs
from zerocopy.patching.torch_load import log

Function = Callable[..., Any]


class Call(NamedTuple):
    """The arguments of a call of torch.jit.load."""

    f: Any
    map_location: Any = None
    extra_files: Any = None
    restore_shapes: Any = False


def load_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's torch.jit.load."""
    recorded: list[warnings.WarningMessage] | None = None

    def load(*args: Any, **kwargs: Any) -> Any:
        nonlocal recorded
        try:
            call = _call(*args, **kwargs)
        except TypeError:  # the original raises its own message
            return original(*args, **kwargs)
        reason = _why_not_ours(call)
        begin = inputs.position_of(call.f)
        if not reason:
            try:
                module = jit.attempt(call.f, call.map_location, call.extra_files)
            except Exception as error:
                reason = str(error)
                if begin is not None:
                    call.f.seek(begin)
            else:
                recorded = _warnings_of(original) if recorded is None else recorded
                _warn(recorded, original.__module__)
                return module
        log.debug("%s goes to torch.jit.load: %s", inputs.name_of(call.f), reason)
        return original(*args, **kwargs)

    return load


def _call(f: Any, map_location: Any = None, _extra_files: Any = None, _restore_shapes: Any = False) -> Call:
    return Call(f, map_location, _extra_files, _restore_shapes)


def _why_not_ours(call: Call) -> str:
    """Return why this call's arguments send it to the original, or an empty string."""
    if not isinstance(call.f, (str, os.PathLike)):
        if not hasattr(call.f, "read") or inputs.position_of(call.f) is None:
            return "neither a path nor a file object that can seek"
        if isinstance(call.f, io.TextIOBase):
            return "a file open in text mode"
    if call.restore_shapes:
        return "_restore_shapes"
    try:
        jit.check_extra_files(call.extra_files)
    except TypeError as error:
        return str(error)
    return ""


def _warnings_of(original: Function) -> list[warnings.WarningMessage]:
    """Return the warnings that a release issues at every load, such as that TorchScript is deprecated."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):  # the file does not exist
            original("")
    return recorded


def _warn(recorded: list[warnings.WarningMessage], module: str) -> None:
    registry = (
        vars(sys.modules[module]).setdefault("__warningregistry__", {}) if module in sys.modules else None
    )
    for warning in recorded:
        warnings.warn_explicit(
            warning.message, warning.category, warning.filename, warning.lineno, module, registry
        )
