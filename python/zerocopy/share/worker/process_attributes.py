"""Gives a worker the umask, processors, nice value and limits of its client, in place of those of the server."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def take_over(pid: int) -> None:
    """Give this process the umask, processors, nice value and limits of another of the same user.

    The system refuses some: a lower nice value, a limit that is above what this process may have at most. A client
    that has ended, or that is in a container of its own, is left out.
    """
    if pid <= 0:
        return
    with contextlib.suppress(OSError, ValueError, StopIteration):
        os.umask(_umask_of(pid))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(pid))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            _take_limit(pid, limit)


def _umask_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _take_limit(pid: int, limit: int) -> None:
    wanted, own = resource.prlimit(pid, limit), resource.getrlimit(limit)
    if wanted == own:
        return
    try:
        resource.setrlimit(limit, wanted)
    except ValueError:  # above what this process may have at most
        soft = wanted[0] if _is_within(wanted[0], own[1]) else own[1]
        resource.setrlimit(limit, (soft, own[1]))


def _is_within(value: int, most: int) -> bool:
    infinity = resource.RLIM_INFINITY
    return most == infinity or (value != infinity and value <= most)
