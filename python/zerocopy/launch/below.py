"""Starts Python processes warm that a program under ``zerocopy run --warm`` starts, for example ranks and workers."""

from __future__ import annotations

import sys

from zerocopy import environment
from zerocopy.launch import circumstances
from zerocopy.launch.request import of_this_process


def start(share: bool, session: circumstances.Session) -> str:
    """Hand this process's program over to its fork server, or record this run. Return why the program stays here.

    Python calls this before it looks for the program, so the first entry of ``sys.path`` is not there yet.
    """
    request = of_this_process(share, session)
    if request is None or environment.is_disabled() or circumstances.reports_imports():
        return ""
    from zerocopy.launch import client
    from zerocopy.launch.recording import Recorder

    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    try:
        reason = client.hand_over(request)
        Recorder(request, circumstances.own_path(), only_with="torch")
    except OSError as error:
        reason = str(error)
    finally:
        if not sys.flags.safe_path:
            del sys.path[0]
    return reason
