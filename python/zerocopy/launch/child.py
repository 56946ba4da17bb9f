"""Turns a process that the fork server has forked into the process that the client requested."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zerocopy.launch import circumstances, ending, program, records, sockets
from zerocopy.launch.recording import Recorder
from zerocopy.launch.request import Request

_PR_SET_PDEATHSIG = 1
_STREAMS = (("stdin", "rb", "r"), ("stdout", "wb", "w"), ("stderr", "wb", "w"))


class Imported(NamedTuple):
    """The modules of the fork server, and the names of those that its imports did not find."""

    modules: Sequence[str]
    absent: set[str]


class Refused(Exception):
    """The program cannot run here as Python would run it, and the reason why."""


def moved(connection: socket.socket, body: dict[str, Any]) -> socket.socket:
    """Return the connection with a descriptor number above those of the client's files."""
    fresh = socket.socket(fileno=_moved(connection.fileno(), body))
    connection.close()
    return fresh


def _moved(number: int, body: dict[str, Any]) -> int:
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(body["files"]) + 1)


def prepared(
    connection: socket.socket,
    body: dict[str, Any],
    descriptors: list[int],
    record: records.Record,
    imported: Imported,
) -> Callable[[], object]:
    """Become the client's process, report that, wait for its go-ahead; return the program. ``Refused``, ``OSError``."""
    files = [_moved(number, body) for number in descriptors]
    sockets.close_all(descriptors)
    checked, go, *rest = files
    become(body, rest, record.set_by_imports)
    ending.leave_loaded()
    request = Request(*body["request"])
    recorder = Recorder(request, circumstances.own_path(), record, imported.modules)
    del recorder  # the interpreter's end calls it
    run = program.prepared(request.words[0], request.words[1:], request.is_module)
    ahead = [sys.path[0], *body["ahead"]] if not sys.flags.safe_path else body["ahead"]
    require_no_shadows(ahead, imported.absent)
    program.patch_this_process(request.share, request.session)
    _wait_for_word(checked)
    sockets.send(connection, {"ready": os.getpid()})
    _wait_for_word(go)
    connection.close()
    return run


def _wait_for_word(descriptor: int) -> None:
    """Wait for the go-ahead at the other end of a pipe. End the process if the pipe is closed without it."""
    word = os.read(descriptor, 1)
    os.close(descriptor)
    if word != b"g":
        os._exit(1)


def become(body: dict[str, Any], descriptors: list[int], set_by_imports: dict[str, str | None]) -> None:
    """Take over the client's files, folder, environment, signals, settings and terminal. ``OSError``, ``ValueError``.

    Parameters
    ----------
    body : dict
        The client's description of its own process.
    descriptors : list of int
        The client's folder, then its files in the order of ``body["files"]``.
    set_by_imports : dict
        The variables that imports have set in the fork server, or removed.
    """
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # which Python 3.11 leaves after a fork
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if Request(*body["request"]).is_apart:
        os.setsid()
    else:
        os.setpgid(0, body["group"])
    folder, *files = descriptors
    os.fchdir(folder)
    os.close(folder)
    os.umask(body["umask"])
    _take_files(files, body["files"])
    _take_environment(body["environment"], set_by_imports)
    _renew_streams()
    _take_signals(body["ignored"], body["blocked"])
    circumstances.take_settings(body["settings"])
    sys.path[:] = body["path"]  # its first entry is the program's to replace
    sys.orig_argv[:] = body["arguments"]
    sys._xoptions.clear()
    sys._xoptions.update(body["options"])
    _renew_state()


def _take_files(files: list[int], numbers: list[int]) -> None:
    """Move the client's files to the numbers that they have in the client. They lie above all of these numbers."""
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _take_environment(environment: dict[str, str], set_by_imports: dict[str, str | None]) -> None:
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    os.environ.update(environment)
    for name, value in set_by_imports.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    time.tzset()


def _renew_streams() -> None:
    """Reopen the standard streams within the same objects, because loggers may hold references to these objects."""
    is_unbuffered = circumstances.is_unbuffered()
    for number, (name, binary, mode) in enumerate(_STREAMS):
        stream = getattr(sys, name)
        unbuffered = is_unbuffered and number > 0
        buffer: Any = open(number, binary, buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        raw = buffer if unbuffered else buffer.raw
        raw.name = f"<{name}>"
        stream.__init__(
            buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=not unbuffered and (os.isatty(number) or number == 2),
            write_through=unbuffered,
        )
        stream.mode = mode


def _take_signals(ignored: list[int], blocked: list[int]) -> None:
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        if int(number) in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _renew_state() -> None:
    """Renew what imports have set: seeds of NumPy and torch, multiprocessing's key, logging's start."""
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "torch" in modules:
        modules["torch"].default_generator.seed()
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    start = getattr(modules.get("logging"), "_startTime", None)
    if start is not None:
        modules["logging"]._startTime = time.time() if isinstance(start, float) else time.time_ns()  # type: ignore[attr-defined]


def require_no_shadows(ahead: list[str], absent: set[str]) -> None:
    """Raise ``Refused`` if the program's own folders have a module that an import has found elsewhere, or not found."""
    known = absent | {name.partition(".")[0] for name in sys.modules}
    for folder in ahead:
        if not os.path.isdir(folder):
            if os.path.exists(folder):
                raise Refused(f"{folder} is an archive, which may hold modules of any name")
            continue
        for entry in os.listdir(folder):
            name = entry.partition(".")[0]
            if name in known and _is_module(folder, entry, name) and not _comes_from(folder, name):
                raise Refused(f"{folder}/{entry} may stand in front of the module {name}")


def _comes_from(folder: str, name: str) -> bool:
    return (getattr(sys.modules.get(name), "__file__", None) or "").startswith(f"{folder}/")


def _is_module(folder: str, entry: str, name: str) -> bool:
    if entry.endswith((".py", ".pyc", ".so")):
        return True
    return entry == name and os.path.isdir(f"{folder}/{entry}")
