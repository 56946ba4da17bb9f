"""The model server: a result is computed once per machine, and rebuilt anywhere over shared storages.

``zerocopy.share.load(fn, *args)`` returns what ``fn(*args)`` returns. See its documentation.
``zerocopy.share.patch_all()`` has the loading functions of known libraries do so. Under
``zerocopy.share.resident("cuda")`` results lie on a GPU, in one copy for all processes.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerocopy.share.client.api import load, shutdown, status, unload
    from zerocopy.share.client.call_options import options
    from zerocopy.share.client.resident import resident
    from zerocopy.share.errors import ServerError
    from zerocopy.share.patches.patch_all import patch_all, unpatch_all

__all__ = [
    "ServerError",
    "load",
    "options",
    "patch_all",
    "resident",
    "shutdown",
    "status",
    "unload",
    "unpatch_all",
]

_HOMES = {
    "ServerError": "errors",
    "load": "client.api",
    "options": "client.call_options",
    "patch_all": "patches.patch_all",
    "resident": "client.resident",
    "shutdown": "client.api",
    "status": "client.api",
    "unload": "client.api",
    "unpatch_all": "patches.patch_all",
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
    importlib.import_module(f"{__name__}.client.load_call")
    for _name in __all__:
        __getattr__(_name)
