"""Name what a client and its server must have in common: releases, and the groups that decide on access to files."""

from __future__ import annotations

import os
import sys
from typing import Any

from zerocopy._version import __version__
from zerocopy.share.wire import sockets


def own() -> dict[str, str]:
    """Return this process's."""
    return {
        "zerocopy": __version__,
        "torch": sockets.torch_version(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "groups": " ".join(map(str, [os.getegid(), *sorted(set(os.getgroups()))])),
    }


def why_not(body: dict[str, Any]) -> str:
    """Return how a client's differ from this process's, or an empty string."""
    theirs, here = body["versions"], own()
    differing = [
        f"{name} {here[name]}, not {str(theirs.get(name))[:50]}"
        for name in here
        if theirs.get(name) != here[name]
    ]
    return f"the model server has {', '.join(differing)}; `zerocopy stop` ends it" if differing else ""
