"""The circumstances that a program starts in, and that a fork server must share to stand in for a fresh Python.

This module is called by the client, by the fork server, and by the process that starts the fork server, so their
results can be compared. It imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from zerocopy._version import __version__
from zerocopy.process import descendants

if TYPE_CHECKING:
    from zerocopy.launch.request import Request

#: The number of a session, and when its leader started.
Session = tuple[int, str]

#: Variables that native libraries read when they are loaded. Those that Python code reads are found by watching.
_PREFIXES = """
ASAN_ ATEN_ BLIS_ CUBLAS_ CUDA_ CUDNN_ DIFFUSERS_ DNNL_ GLIBC_ GOMP_ GOTO_ HF_ HIP_ HOME HSA_ HUGGINGFACE_
KMP_ LANG LC_ LD_ LSAN_ MALLOC_ MKL_ MPL NCCL_ NPY_ NUMEXPR_ NUMPY_ NVIDIA_ OMP_ ONEDNN_ OPENBLAS_ PATH
PYTHON PYTORCH_ ROCR_ SSL_ TMPDIR TOKENIZERS_ TORCH_ TRANSFORMERS_ TRITON_ TSAN_ TZ UBSAN_ VIRTUAL_ENV XDG_
ZEROCOPY_
"""
READ_AT_IMPORT = tuple(_PREFIXES.split())
#: Alone: every variable, because an import has read all. After a prefix: every variable that begins with the prefix.
ALL = "*"
# torch reads these when a device is first used, which never happens in a fork server.
_READ_LATER = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
_OF_THE_SHELL = frozenset({"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL"})
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_CONFINEMENT = ("Cap", "NoNewPrivs", "Seccomp")
#: Stands for the program's arguments, if an import has read ``sys.argv``.
ARGUMENTS = "sys.argv"
_OF_WARNINGS = ("bytes_warning", "debug", "dev_mode", "warn_default_encoding")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
_OOM_SCORE = "/proc/self/oom_score_adj"


def reader(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether an import may depend on a variable. Imports have read those in `names`."""
    read = {*names}
    prefixes = (*READ_AT_IMPORT, *(name.removesuffix(ALL) for name in read if name.endswith(ALL)))
    return lambda name: (
        (name.startswith(prefixes) or name in read) and name not in _OF_THE_SHELL | _READ_LATER
    )


def session() -> Session:
    """Return the session's number, and when its leader started, because the kernel reuses numbers."""
    leader = os.getsid(0)
    try:
        with open(f"/proc/{leader}/stat", "rb") as file:
            started = file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        started = ""
    return leader, started


def settings() -> dict[str, Any]:
    """Return the settings of this process that :func:`take_settings` can give to another."""
    with open(_OOM_SCORE, encoding="ascii") as file:
        score = file.read().strip()
    return {
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        "scheduler": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "nice": os.nice(0),
        "oom_score": score,
    }


def take_settings(taken: dict[str, Any]) -> None:
    """Apply the settings of another process. Raise ``OSError`` or ``ValueError`` for one that is not allowed."""
    here = settings()
    for name, limits in taken["limits"].items():
        if (*limits,) != here["limits"][name]:
            resource.setrlimit(getattr(resource, name), limits)
    if taken["scheduler"] != here["scheduler"]:
        policy, priority = taken["scheduler"]
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    if taken["nice"] != here["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, taken["nice"])
    if taken["oom_score"] != here["oom_score"]:
        with open(_OOM_SCORE, "w", encoding="ascii") as file:
            file.write(taken["oom_score"])


def describe(
    path: list[str],
    environment: Mapping[str, str],
    names: Collection[str],
    modules: Iterable[str],
    request: Request,
) -> str:
    """Return, as one text, everything that must be the same in a fork server and in its client.

    Parameters
    ----------
    path : list of str
        ``sys.path`` without the entry of this command's own folder.
    environment : mapping
        The environment at the start.
    names : collection of str
        The variables that imports were seen to read; `ARGUMENTS` among them if they read the arguments.
    modules : iterable of str
        The modules that the fork server has imported.
    request : Request
        The program.
    """
    environment = descendants.unreached(environment)
    is_read = reader(names)
    root, here = os.stat("/"), os.stat(".")
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        cgroup = file.read()
    return json.dumps(
        {
            "zerocopy": __version__,
            "python": [sys.executable, sys.version, sys.prefix],
            "flags": [list(sys.flags), sys.warnoptions, _options()],
            "unbuffered": is_unbuffered(),
            "path": path,
            "variables": sorted(item for item in environment.items() if is_read(item[0])),
            "modules": zlib.crc32("\n".join(modules).encode()),
            "words": request.words if ARGUMENTS in names else [],
            "share": request.share,
            "session": [*request.session, request.is_apart],
            "user": [os.getresuid(), os.getresgid(), os.getgroups()],
            "root": [root.st_dev, root.st_ino],
            "folder": [os.getcwd(), here.st_dev, here.st_ino],
            "namespaces": [_namespace(name) for name in _NAMESPACES],
            "cgroup": cgroup,
            "confinement": _confinement(),
            # Libraries read these limits when they are loaded, for the stacks of threads and the sizes of thread pools.
            "stack": resource.getrlimit(resource.RLIMIT_STACK),
            "processors": sorted(os.sched_getaffinity(0)),
        }
    )


def as_given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variable that Python sets in the C locale when it starts (PEP 538).

    A process that is started with that variable is in another locale, and so without Python's UTF-8 mode.
    """
    with open("/proc/self/environ", "rb") as file:
        given = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    is_given = b"LC_CTYPE" in given
    return {name: value for name, value in environment.items() if name != "LC_CTYPE" or is_given}


def _options() -> list[tuple[str, str | bool]]:
    """Return the ``-X`` options, except ``dev``, which is among the flags however it was set."""
    return sorted(item for item in sys._xoptions.items() if item[0] != "dev")


def wanted_warnings() -> str:
    """Return the options of Python that can make an import print something.

    A record of imports that was made under them is valid only for starts with the same options.
    """
    flags = [f"{name}={value}" for name in _OF_WARNINGS if (value := getattr(sys.flags, name, 0))]
    return "".join(f" {option}" for option in (*flags, *(f"-W{text}" for text in sys.warnoptions)))


def reports_imports() -> bool:
    """Return whether Python prints a line for each import."""
    is_timed = "importtime" in sys._xoptions or os.environ.get("PYTHONPROFILEIMPORTTIME")
    return bool(sys.flags.verbose or is_timed)


def _namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return ""


def _confinement() -> list[str]:
    """Return the capabilities, filters and personality of this process, which its children cannot drop."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        found = [line.strip() for line in status if line.startswith(_CONFINEMENT)]
    with contextlib.suppress(OSError), open("/proc/self/personality", encoding="ascii") as file:
        found.append(file.read().strip())
    return found


def ignored_signals() -> list[int]:
    """Return the signals that this process ignores, except those that Python itself ignores."""
    by_python = {signal.SIGPIPE, signal.SIGXFSZ}
    return sorted(
        int(number)
        for number in signal.valid_signals()
        if number not in by_python and signal.getsignal(number) is signal.SIG_IGN
    )


def is_unbuffered() -> bool:
    """Return whether Python was started with ``-u`` or ``PYTHONUNBUFFERED``, which ``sys.flags`` does not show."""
    return bool(getattr(sys.__stdout__, "write_through", False))


def own_path() -> list[str]:
    """Return ``sys.path`` without the entry of this command's own folder."""
    return sys.path[0 if sys.flags.safe_path else 1 :]
