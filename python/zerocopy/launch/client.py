"""The client of warm starts: hands its program to a fork server, and stands in for the program until that ends.

The shell knows this process and its process group; the program is in the same group. This process forwards signals
that come to it alone, stops when the program stops, and ends as the program ends. It imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from zerocopy.launch import circumstances, records, sockets
from zerocopy.launch.request import (
    Request,
    doubt_of_process,
    doubt_of_record,
    doubt_of_script,
    importable_ahead,
)

_PATIENCE = 10.0
_SI_KERNEL = 0x80
_NOT_BLOCKED = {signal.SIGKILL, signal.SIGSTOP}
# If the terminal or the kernel sends these, the program receives them too.
_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_FROM_KERNEL_ONLY = {signal.SIGCHLD, signal.SIGURG}


def hand_over(request: Request) -> str:
    """Run a program in a fork of its fork server, and end as it ends.

    Returns
    -------
    str
        The reason why the program has to be run without a fork server. The program has not begun.
    """
    try:
        reason = doubt_of_process(request.is_apart)
        record = records.load(request.identity)
        if reason or record is None:
            return reason or "the program's imports are not known yet"
        reason = doubt_of_record(record) or doubt_of_script(request, record)
        if reason:
            return reason
        path = circumstances.own_path()
        described = circumstances.describe(
            path, os.environ, record.variables, importable_ahead(record), request
        )
        connection = sockets.connect(records.socket_of(described), _PATIENCE)
        if connection is None:
            return "no fork server is running for it"
    except OSError as error:
        return str(error)
    return _hand_over(connection, request, described)


def _hand_over(connection: socket.socket, request: Request, described: str) -> str:
    everything = set(signal.valid_signals()) - _NOT_BLOCKED
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, everything)
    held: list[int] = []
    try:
        body = _body(request, described, blocked)
        waiting, go = os.pipe2(os.O_CLOEXEC)
        folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
        held += [go, waiting, folder]
        sockets.receive(connection)
        sockets.send(connection, body, [waiting, folder, *body["files"]])
        answer, _ = sockets.receive(connection)
        if "ready" not in answer:
            raise OSError(str(answer.get("refused", "it says nothing of use")))
        child = os.pidfd_open(answer["ready"])
        os.write(go, b"g")
    except OSError as error:
        sockets.close_all(held)  # without the go-ahead, the child ends before the program begins
        connection.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return f"the fork server: {error}"
    sockets.close_all(held)
    return _Waiting(connection, child, answer["ready"], everything).run()


def _body(request: Request, described: str, blocked: Iterable[int]) -> dict[str, Any]:
    files = [0, 1, 2]
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                files.append(int(name))
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "op": "start",
        "circumstances": described,
        "request": request,
        "group": os.getpgrp(),
        "settings": circumstances.settings(),
        "umask": mask,
        "files": files,
        "environment": dict(os.environ),
        "ignored": circumstances.ignored_signals(),
        "blocked": sorted(map(int, blocked)),
        "path": sys.path,
        "ahead": _ahead(),
        "arguments": sys.orig_argv,
        "options": sys._xoptions,
    }


def _ahead() -> list[str]:
    """Return the folders that are searched before the standard library's."""
    own, library = circumstances.own_path(), os.path.dirname(os.__file__)
    found = own[: own.index(library)] if library in own else own
    return [path for path in found if not path.endswith(".zip") or os.path.exists(path)]


class _Waiting:
    """Waits for messages of the fork server and for signals, both as signals.

    Parameters
    ----------
    connection : socket.socket
        The connection to the fork server.
    child : int
        A descriptor of the program's process.
    pid : int
        The program's process.
    everything : set of signal.Signals
        The signals that are blocked.
    """

    def __init__(
        self, connection: socket.socket, child: int, pid: int, everything: set[signal.Signals]
    ) -> None:
        self._connection, self._child, self._pid, self._everything = connection, child, pid, everything
        connection.setblocking(False)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)

    def run(self) -> NoReturn:
        """Forward signals to the program, and end as it ends."""
        while True:
            self._hear()
            info = signal.sigwaitinfo(self._everything)
            number = info.si_signo
            if info.si_code == _SI_KERNEL or number in _FROM_KERNEL_ONLY:
                continue
            # A pending stop signal came after this SIGCONT, and was for the whole group: the program must stay stopped.
            if number == signal.SIGCONT and (not self._is_stopped() or signal.sigpending() & _STOPS):
                continue
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child, number)

    def _hear(self) -> None:
        while True:
            try:
                message, _ = sockets.receive(self._connection)
                if "ended" in message:
                    _end(message["ended"])
                self._stop(message["stopped"])
            except BlockingIOError:
                return
            except OSError:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._child, signal.SIGKILL)
                message_text = (
                    "zerocopy run: the fork server of warm starts was killed, and the program with it\n"
                )
                with contextlib.suppress(OSError):
                    os.write(2, message_text.encode())
                _end(-signal.SIGKILL)

    def _stop(self, number: int) -> None:
        """Stop as the program did, until the shell continues both."""
        if not self._is_stopped():
            return
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), number)
            return
        before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        signal.signal(number, before)

    def _is_stopped(self) -> bool:
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2][:1] == b"T"
        except OSError:
            return False


def _end(code: int) -> NoReturn:
    """End with an exit code. If it is negative, end by that signal, without a second core dump."""
    if code < 0:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            if -code not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os._exit(code if code >= 0 else 128 - code)
