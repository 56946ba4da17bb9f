"""zerocopy: PyTorch checkpoints, ready in a millisecond, sharing one mapping of the file.

``zerocopy.load(path)`` returns what ``torch.load`` returns; see its documentation. Importing this package changes
nothing in torch or anywhere else.
"""

import torch as _torch_first  # noqa: F401  (its libraries have to be there before _C is loaded)

from zerocopy.allowlist import safe_globals
from zerocopy.errors import Error, FormatError, UnsupportedError
from zerocopy.explanation import Explanation, explain
from zerocopy.loading import load
from zerocopy.patching import is_patched, patch, patched, unpatch
from zerocopy.storage import untyped_storage
from zerocopy.unpickler import Unpickler

__version__ = "0.1.0"

__all__ = [
    "Error",
    "Explanation",
    "FormatError",
    "Unpickler",
    "UnsupportedError",
    "explain",
    "is_patched",
    "load",
    "patch",
    "patched",
    "safe_globals",
    "unpatch",
    "untyped_storage",
]
