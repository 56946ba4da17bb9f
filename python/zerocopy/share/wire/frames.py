"""Messages over a Unix socket: a length, JSON, and descriptors along with it.

    ├─ length, 4 bytes, big-endian ─┼─ JSON: an object ─┤      with SCM_RIGHTS: as many descriptors as its "descriptors"

A body that is longer than a frame may be is in sealed memory, the first of the descriptors: the frame says so.

Nothing here unpickles, and no number of a peer is trusted: frames are capped, descriptors that nobody announced are
closed, and so is the connection they came by.
"""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.wire import sealed_memory

LARGEST = 1 << 20
_MAX_IN_MEMORY = 1 << 26
MAX_DESCRIPTORS = 240  # the kernel takes 253
MAX_OF_REQUEST = 16
_HEAD = 4
_PIECE = 1 << 16
_CUT = int(socket.MSG_CTRUNC)  # of an enum the first "&" takes 80 µs
_encoder = json.JSONEncoder(separators=(",", ":"))

Body = dict[str, Any]
_IN_MEMORY: Body = {"body": "memory"}


class Message(NamedTuple):
    """A received message with its descriptors, which the receiver owns."""

    body: Any
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors, which nobody wants."""
        close_all(self.descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class Closing:
    """Closes descriptors when nobody needs them any more."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def __del__(self) -> None:
        close_all(self._descriptors)


def encode(body: object, descriptors: int = 0) -> bytes:
    """Return the frame of a dict, or of a message (messages.py). ``FrameError`` if it is longer than any peer takes."""
    text = _text(body, descriptors)
    if len(text) > LARGEST:
        raise FrameError(f"a frame of {len(text)} bytes")
    return len(text).to_bytes(_HEAD, "big") + text


def encoded(body: object, descriptors: int) -> tuple[bytes, list[int]]:
    """Return a frame, and the memory that goes before the descriptors if the body is in that: the caller's to close.

    Raises ``FrameError`` for more than any peer takes, ``OSError`` if memory runs out.
    """
    text = _text(body, descriptors)
    if len(text) > _MAX_IN_MEMORY or descriptors > MAX_DESCRIPTORS:
        raise FrameError(f"a message of {len(text)} bytes and {descriptors} descriptors")
    if len(text) <= LARGEST:
        return len(text).to_bytes(_HEAD, "big") + text, []
    return encode(_IN_MEMORY, descriptors + 1), [sealed_memory.sealed("zerocopy-message", [text])]


def _text(body: object, descriptors: int) -> bytes:
    items = body if isinstance(body, dict) else vars(body)
    if descriptors:
        items = {**items, "descriptors": descriptors}
    return _encoder.encode(items).encode()


class Inbox:
    """Puts messages together from what a socket gives.

    Parameters
    ----------
    most_descriptors : int
        That one message may bring.
    """

    def __init__(self, most_descriptors: int) -> None:
        self._most = most_descriptors + 1  # and the body's memory
        self._bytes = bytearray()
        self._descriptors: collections.deque[int] = collections.deque()

    @property
    def is_empty(self) -> bool:
        """Return whether no frame has begun."""
        return not self._bytes

    def read(self, connection: socket.socket) -> bool:
        """Receive once, and return False at the end of the stream. ``OSError``, ``FrameError``."""
        room = socket.CMSG_SPACE(self._most * array.array("i").itemsize)
        data, ancillary, flags, _ = connection.recvmsg(_PIECE, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came = array.array("i")
                came.frombytes(content[: len(content) - len(content) % came.itemsize])
                self._descriptors.extend(came)
        is_too_many = len(self._descriptors) > self._most
        if flags & _CUT or is_too_many:
            self.close()
            if is_too_many:
                raise FrameError("too many descriptors for one message")
            # The kernel has closed those for which this process has no number left.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.feed(data)

    def feed(self, data: bytes) -> bool:
        """Take bytes, and return False if there are none."""
        self._bytes += data
        return bool(data)

    def messages(self) -> Iterator[Message]:
        """Yield the messages that are whole. ``FrameError`` for what is none."""
        while len(self._bytes) >= _HEAD:
            length = int.from_bytes(self._bytes[:_HEAD], "big")
            if length > LARGEST:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._bytes) < _HEAD + length:
                return
            body = _parse(bytes(self._bytes[_HEAD : _HEAD + length]))
            del self._bytes[: _HEAD + length]
            taken = self._take(body.get("descriptors", 0))
            yield _out_of_memory(taken) if body.get("body") == _IN_MEMORY["body"] else Message(body, taken)

    def _take(self, count: Any) -> list[int]:
        if type(count) is not int or not 0 <= count <= len(self._descriptors):
            raise FrameError("the descriptors are not those that were announced")
        taken = [self._descriptors.popleft() for _ in range(count)]
        # The kernel ends a read where descriptors begin, so what is left came with bytes of the same frame.
        if self._descriptors and not self._bytes:
            close_all(taken)
            raise FrameError("descriptors that were not announced")
        return taken

    def close(self) -> None:
        """Close the descriptors of messages that never became whole."""
        close_all(self._descriptors)
        self._descriptors.clear()


def _out_of_memory(descriptors: list[int]) -> Message:
    """Return the message whose body is in memory. ``FrameError`` if it is not."""
    try:
        if not descriptors:
            raise FrameError("the body's descriptor is not memory with a body")
        sealed_memory.require_sealed(descriptors[0], 0)
        if os.fstat(descriptors[0]).st_size > _MAX_IN_MEMORY:
            raise FrameError("the body is too long")
        body = _parse(sealed_memory.content(descriptors[0]))
    except BaseException as error:
        close_all(descriptors)
        if isinstance(error, ServerError):
            raise FrameError(str(error)) from None
        raise
    os.close(descriptors[0])
    return Message(body, descriptors[1:])


def _parse(text: bytes) -> Body:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise FrameError("not a JSON object")
    return body


def send(connection: socket.socket, body: object, descriptors: Sequence[int] = ()) -> None:
    """Send a message and wait until it is sent."""
    frame, held = encoded(body, len(descriptors))
    try:
        sent = send_some(connection, frame, [*held, *descriptors])
    finally:
        close_all(held)
    if sent < len(frame):  # else the other side may have taken it, and closed
        connection.sendall(frame[sent:])


def send_some(connection: socket.socket, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
    """Send what the socket takes at once: descriptors go with the first byte."""
    if not descriptors:
        return connection.send(data, socket.MSG_NOSIGNAL)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    return connection.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> Message:
    """Wait for a message. ``FrameError`` if none comes, ``TimeoutError`` as the socket says."""
    inbox = Inbox(MAX_DESCRIPTORS)
    try:
        while inbox.read(connection):
            for message in inbox.messages():
                return message
    except BaseException:
        inbox.close()
        raise
    inbox.close()
    raise FrameError("the connection was closed")
