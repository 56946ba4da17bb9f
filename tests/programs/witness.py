"""Says on stderr of each call of torch.load that it returned, and of each that zerocopy handed on to torch.

The programs import this first, in every process. Where nothing is patched it does nothing.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

import torch

if "zerocopy" in sys.modules and sys.modules["zerocopy"].is_patched():
    patched = torch.load

    @functools.wraps(patched)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = patched(f, *args, **kwargs)
        sys.stderr.write(f"witness: loaded from {type(f).__name__}\n")
        return loaded

    torch.load = load

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("witness: %(message)s"))
    logging.getLogger("zerocopy").addHandler(handler)
    logging.getLogger("zerocopy").setLevel(logging.DEBUG)
