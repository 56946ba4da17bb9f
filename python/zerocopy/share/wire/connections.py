"""A client's or a loader's connection, as the server sees it: nothing here waits."""

from __future__ import annotations

import collections
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from zerocopy.share.errors import FrameError
from zerocopy.share.wire import frames
from zerocopy.share.wire.frames import Inbox, Message

_MAX_WAITING = 64


class Connection:
    """Reads messages as they come, and keeps answers that the other side does not take yet.

    Parameters
    ----------
    peer : socket.socket
        A non-blocking socket.
    pid : int
        The process at the other end.
    selector : selectors.BaseSelector
        Has the socket registered.
    most_descriptors : int, optional
        That a message may bring.
    """

    def __init__(
        self,
        peer: socket.socket,
        pid: int,
        selector: selectors.BaseSelector,
        most_descriptors: int = frames.MAX_OF_REQUEST,
    ) -> None:
        self.peer, self.pid, self._selector = peer, pid, selector
        self._inbox = Inbox(most_descriptors)
        # Frames still to be sent: the bytes, the descriptors, and the object that owns the descriptors.
        self._outbox: collections.deque[tuple[memoryview, list[int], Any]] = collections.deque()
        self.waits_since: float | None = None  # a frame has begun, or an answer is not taken
        self._is_watched = True
        self._wants_to_write = False

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is half read or half sent."""
        return self._inbox.is_empty and not self._outbox

    def read(self) -> bool:
        """Take what is there; False at the end. ``FrameError``, ``OSError``."""
        try:
            return self._inbox.read(self.peer)
        except BlockingIOError:
            return True

    def messages(self) -> Iterator[Message]:
        """Yield what is whole. ``FrameError``."""
        yield from self._inbox.messages()
        self._note_waiting()

    def send(self, body: object, descriptors: list[int] | None = None, holding: Any = None) -> None:
        """Send as soon as the other side takes it. `holding` is kept so long."""
        if len(self._outbox) >= _MAX_WAITING:
            raise FrameError("a client does not read its answers")
        frame, held = frames.encoded(body, len(descriptors or ()))
        self._outbox.append(
            (memoryview(frame), [*held, *(descriptors or ())], (holding, frames.Closing(held)))
        )
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes now. ``OSError``."""
        was_waiting = self._wants_to_write
        while self._outbox:
            data, descriptors, holding = self._outbox[0]
            try:
                sent = frames.send_some(self.peer, data, descriptors)
            except BlockingIOError:
                break
            if sent == len(data):
                self._outbox.popleft()
            else:
                self._outbox[0] = data[sent:], [], holding
        self._note_waiting()
        if was_waiting or self._outbox:
            self._watch()

    def _watch(self) -> None:
        if not self._is_watched:
            return
        self._wants_to_write = bool(self._outbox)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        self._selector.modify(self.peer, events, self._selector.get_key(self.peer).data)

    def _note_waiting(self) -> None:
        if self.is_idle:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = time.monotonic()

    def leave(self) -> None:
        """Look no more for what the other side sends: it has said that this is all."""
        if self._is_watched:
            self._is_watched = False
            self._selector.unregister(self.peer)

    def close(self) -> None:
        """End it."""
        self.leave()
        self.peer.close()
        self._inbox.close()
        self._outbox.clear()
