"""zerocopy: PyTorch checkpoints, ready in a millisecond, sharing one mapping of the file.

``zerocopy.load(path)`` returns what ``torch.load`` returns; see its documentation. Importing this package changes
nothing in torch or anywhere else.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from zerocopy import _interpreters
from zerocopy._version import __version__ as __version__

if TYPE_CHECKING:
    from zerocopy import distributed, gds, jit, share
    from zerocopy.converting.converter import convert
    from zerocopy.errors import ClosedError, Error, FormatError, UnsupportedError
    from zerocopy.lazy.assign import assign, load_model
    from zerocopy.lazy.checkpoint import Checkpoint, open
    from zerocopy.lazy.layer import TensorInfo
    from zerocopy.lazy.lazy_load import lazy_load
    from zerocopy.lazy.overlay import overlay
    from zerocopy.lazy.placeholder import NotYetLoadedTensor
    from zerocopy.lazy.prefetch import Prefetch, prefetch
    from zerocopy.loading.explain import Explanation, explain
    from zerocopy.loading.loader import load
    from zerocopy.loading.memory_report import FileMemory, MemoryReport, memory
    from zerocopy.loading.objects.stubs import Stub, UnknownGlobal
    from zerocopy.loading.objects.user_globals import safe_globals
    from zerocopy.loading.readers.unpickler import Unpickler
    from zerocopy.loading.untyped_storage import untyped_storage
    from zerocopy.patching import is_patched, patch, patched, unpatch
    from zerocopy.saving.edit import drop_keys, rename_keys
    from zerocopy.saving.handle import Saving
    from zerocopy.saving.pickler import StoredTensor
    from zerocopy.saving.saver import save
    from zerocopy.saving.skip_data import Extent, skip_data, storage_offsets
    from zerocopy.saving.writer import Writer

_interpreters.require_main()

__all__ = [
    "Checkpoint",
    "ClosedError",
    "Error",
    "Explanation",
    "Extent",
    "FileMemory",
    "FormatError",
    "MemoryReport",
    "NotYetLoadedTensor",
    "Prefetch",
    "Saving",
    "StoredTensor",
    "Stub",
    "TensorInfo",
    "UnknownGlobal",
    "Unpickler",
    "UnsupportedError",
    "Writer",
    "assign",
    "convert",
    "distributed",
    "drop_keys",
    "explain",
    "gds",
    "is_patched",
    "jit",
    "lazy_load",
    "load",
    "load_model",
    "memory",
    "open",
    "overlay",
    "patch",
    "patched",
    "prefetch",
    "rename_keys",
    "safe_globals",
    "save",
    "share",
    "skip_data",
    "storage_offsets",
    "unpatch",
    "untyped_storage",
]

_HOMES = {
    "Checkpoint": "lazy.checkpoint",
    "ClosedError": "errors",
    "Error": "errors",
    "Explanation": "loading.explain",
    "Extent": "saving.skip_data",
    "FileMemory": "loading.memory_report",
    "FormatError": "errors",
    "MemoryReport": "loading.memory_report",
    "NotYetLoadedTensor": "lazy.placeholder",
    "Prefetch": "lazy.prefetch",
    "Saving": "saving.handle",
    "StoredTensor": "saving.pickler",
    "Stub": "loading.objects.stubs",
    "TensorInfo": "lazy.layer",
    "UnknownGlobal": "loading.objects.stubs",
    "Unpickler": "loading.readers.unpickler",
    "UnsupportedError": "errors",
    "Writer": "saving.writer",
    "assign": "lazy.assign",
    "convert": "converting.converter",
    "distributed": "distributed",
    "drop_keys": "saving.edit",
    "explain": "loading.explain",
    "gds": "gds",
    "is_patched": "patching",
    "jit": "jit",
    "lazy_load": "lazy.lazy_load",
    "load": "loading.loader",
    "load_model": "lazy.assign",
    "memory": "loading.memory_report",
    "open": "lazy.checkpoint",
    "overlay": "lazy.overlay",
    "patch": "patching",
    "patched": "patching",
    "prefetch": "lazy.prefetch",
    "rename_keys": "saving.edit",
    "safe_globals": "loading.objects.user_globals",
    "save": "saving.saver",
    "share": "share",
    "skip_data": "saving.skip_data",
    "storage_offsets": "saving.skip_data",
    "unpatch": "patching",
    "untyped_storage": "loading.untyped_storage",
}


_MODULES = ("distributed", "gds", "jit", "share")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    found = home if name in _MODULES else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Where torch is there, all is imported now, so that no first use is slower than the next. Where it is not, it stays
# the program's to import: under "zerocopy run" with the environment that the program wants.
if "torch" in sys.modules:
    for _name in __all__:
        __getattr__(_name)
