"""Messages over a Unix socket: a length, JSON, and descriptors along with it.

    ├─ length, 4 bytes, big-endian ─┼─ JSON: an object ─┤      with SCM_RIGHTS: as many descriptors as its "descriptors"

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

LARGEST = 1 << 26
MAX_DESCRIPTORS = 240  # the kernel takes 253
_HEAD = 4
_PIECE = 1 << 16
_CUT = int(socket.MSG_CTRUNC)  # of an enum the first "&" takes 80 µs
_encoder = json.JSONEncoder(separators=(",", ":"))

Body = dict[str, Any]


class FrameError(Exception):
    """The socket delivered something other than a frame, so the connection cannot be used any more."""


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


def encode(body: Body, descriptors: int = 0) -> bytes:
    """Return the frame of a dict. ``FrameError`` if it is longer than any peer takes."""
    text = _encoder.encode({**body, "descriptors": descriptors} if descriptors else body).encode()
    if len(text) > LARGEST or descriptors > MAX_DESCRIPTORS:
        raise FrameError(f"a frame of {len(text)} bytes and {descriptors} descriptors")
    return len(text).to_bytes(_HEAD, "big") + text


class Inbox:
    """Puts messages together from what a socket gives.

    Parameters
    ----------
    most_descriptors : int
        That one message may bring.
    """

    def __init__(self, most_descriptors: int) -> None:
        self._most = most_descriptors
        self._bytes = bytearray()
        self._descriptors: collections.deque[int] = collections.deque()

    def read(self, connection: socket.socket) -> bool:
        """Receive once, and return False at the end of the stream. ``OSError``, ``FrameError``."""
        room = socket.CMSG_SPACE((self._most + 1) * array.array("i").itemsize)
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
            yield Message(body, self._take(body.get("descriptors", 0)))

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


def _parse(text: bytes) -> Body:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise FrameError("not a JSON object")
    return body


def send(connection: socket.socket, body: Body, descriptors: Sequence[int] = ()) -> None:
    """Send a message and wait until it is sent. Descriptors go with the first byte."""
    frame = encode(body, len(descriptors))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = connection.sendmsg([frame], rights, socket.MSG_NOSIGNAL)
    if sent < len(frame):  # else the other side may have taken it, and closed
        connection.sendall(frame[sent:])


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
