"""The process that loaders are forked from: it has imported torch, which takes seconds, and does nothing else.

It runs no thread and none of its clients' code, and touches no device: a child finds torch as if it had just imported
it. One is kept for a while, for the loads that follow. It forks loaders ahead, because a fork of a process that has
torch takes some 20 ms. They warm up before their calls come (warm_up.py), which saves another 7 to 12 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from zerocopy.share.errors import FrameError
from zerocopy.share.wire import frames, messages
from zerocopy.share.worker import worker

if TYPE_CHECKING:
    from zerocopy.share.worker.warm_up import WarmUp

_PR_SET_PDEATHSIG = 1
#: Loaders that wait for calls. When the last is taken, the next fork begins at once, beside the call, which takes 3 ms
#: longer for that. With a second one, a call that comes alone does not.
_SPARES = 2
#: Seconds without a request after which the second one is forked.
_UNDISTURBED = 0.1


def main() -> None:
    """Fork loaders as the server says: ``sys.argv`` has the socket to it."""
    die_with_parent()
    with socket.socket(fileno=int(sys.argv[2])) as server:
        server.set_inheritable(False)
        worker.import_all()
        from zerocopy.share.worker.warm_up import WarmUp  # which imports torch

        warm_up = WarmUp()
        gc.freeze()  # what is here now the children need not look through, and so not copy
        with contextlib.suppress(FrameError, OSError):  # the server has gone
            _ForkServer(server, warm_up).run()


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Spare(NamedTuple):
    """A loader that waits for the descriptors of its call."""

    pid: int
    channel: socket.socket


class _ForkServer:
    def __init__(self, server: socket.socket, warm_up: WarmUp) -> None:
        self._server = server
        self._inbox = frames.Inbox(frames.MAX_DESCRIPTORS)
        self._children: dict[int, int] = {}  # the numbers of loads, by pid
        self._spares: list[_Spare] = []
        self._warm_up = warm_up
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes the selector
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                if not self._spares:
                    self._spares.append(self._forked(selector))
                is_full = len(self._spares) == _SPARES
                ready = {key.fileobj for key, _ in selector.select(None if is_full else _UNDISTURBED)}
                if not ready:
                    self._spares.append(self._forked(selector))
                if self._woken in ready:
                    self._woken.recv(4096)
                    self._reap()
                if self._server in ready:
                    if not self._inbox.read(self._server):
                        return
                    for message in self._inbox.messages():
                        with contextlib.closing(message):
                            self._start(message, selector)

    def _start(self, message: frames.Message, selector: selectors.BaseSelector) -> None:
        """Have a loader that was forked ahead begin. If it was killed meanwhile, another one begins."""
        while True:
            pid, channel = self._spares.pop(0) if self._spares else self._forked(selector)
            try:
                with channel:
                    frames.send(channel, {"client": message.body["client"]}, message.descriptors)
                break
            except OSError:
                continue
        number = self._children[pid] = message.body["number"]
        frames.send(self._server, messages.Forked(number, pid))

    def _forked(self, selector: selectors.BaseSelector) -> _Spare:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            selector.close()
            for channel in (ours, *(spare.channel for spare in self._spares)):
                channel.close()
            self._be_loader(theirs)
        theirs.close()
        return _Spare(pid, ours)

    def _be_loader(self, channel: socket.socket) -> NoReturn:
        try:
            die_with_parent()
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._server, self._woken, self._waker):
                end.close()
            self._warm_up.run()
            with channel:
                message = frames.receive(channel)
            output, server, *call = message.descriptors
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            worker.run(server, message.body["client"], call)
        finally:
            os._exit(1)  # it has not come to its own end

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for spare in [spare for spare in self._spares if spare.pid == pid]:
                    spare.channel.close()
                    self._spares.remove(spare)
                number, code = self._children.pop(pid, None), os.waitstatus_to_exitcode(status)
                if number is not None:
                    frames.send(self._server, messages.Ended(number, code))
