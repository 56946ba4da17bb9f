"""Environment variables by which ``zerocopy run`` reaches the Python processes that its program starts.

``PYTHONPATH`` begins with a folder that has a ``sitecustomize.py``, which each Python imports before its program. So
the workers of a launcher are patched, and processes that multiprocessing spawns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

#: ``patch``, or ``share`` for kept results; where programs start warm, their session and when its leader started.
VARIABLE = "ZEROCOPY_RUN"
PATH = "PYTHONPATH"
FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "launch", "children")


def reach(share: bool, session: tuple[int, str] | None) -> None:
    """Set variables so that each Python that inherits this environment is patched, and starts warm in a session."""
    os.environ[VARIABLE] = " ".join(["share" if share else "patch", *map(str, session or ())])
    path = os.environ.get(PATH)
    if FOLDER not in (path or "").split(os.pathsep):
        os.environ[PATH] = os.pathsep.join([FOLDER, path] if path else [FOLDER])


def unreached(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it was before :func:`reach`, for processes that zerocopy starts for itself."""
    found = dict(environment)
    if found.pop(VARIABLE, None):
        path = found.pop(PATH, FOLDER)
        if path != FOLDER:
            found[PATH] = path.removeprefix(FOLDER + os.pathsep)
    return found
