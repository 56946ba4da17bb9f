"""The model server: a result is computed once per machine, and rebuilt anywhere over shared storages.

``zerocopy.share.load(fn, *args)`` returns what ``fn(*args)`` returns. See its documentation.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerocopy.share.client import load, shutdown, status, unload
    from zerocopy.share.errors import ServerError

__all__ = ["ServerError", "load", "shutdown", "status", "unload"]

_HOMES = {
    "ServerError": "errors",
    "load": "client",
    "shutdown": "client",
    "status": "client",
    "unload": "client",
}


def __getattr__(name: str) -> Any:
    # On first use, since the server's own process has no use for torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# As the whole package: where torch is there, no first use is slower than the next.
if "torch" in sys.modules:
    importlib.import_module(f"{__name__}.asking")
    for _name in __all__:
        __getattr__(_name)
