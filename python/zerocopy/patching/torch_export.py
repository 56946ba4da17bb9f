"""One call of the patched ``torch.export.load``: zerocopy's, or the original's.

A program is trusted, by zerocopy as by torch, and the original falls back to pickle. So the original tries each archive
that zerocopy refuses, and raises its own errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerocopy import export
from zerocopy.loading import inputs
from zerocopy.patching.torch_load import log

Function = Callable[..., Any]


def load_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's torch.export.load."""

    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            f, options = _call(*args, **kwargs)
        except TypeError:  # the original raises its own message
            return original(*args, **kwargs)
        begin = inputs.position_of(f)
        try:
            return export.load(f, **options)
        except Exception as error:
            log.debug("%s goes to torch.export.load: %s", inputs.name_of(f), error)
        if begin is not None:
            f.seek(begin)
        return original(*args, **kwargs)

    return load


def _call(
    f: Any, *, extra_files: Any = None, expected_opset_version: Any = None
) -> tuple[Any, dict[str, Any]]:
    return f, {"extra_files": extra_files, "expected_opset_version": expected_opset_version}
