"""Runs a call in a loader, and publishes what it returns."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from zerocopy import patching
from zerocopy.errors import UnsupportedError
from zerocopy.saving.mapped_files import FileExtent, MappedFiles, identity_of
from zerocopy.share import role
from zerocopy.share.client import calls, result_references
from zerocopy.share.conditions import caller, generators, namespaces, program
from zerocopy.share.conditions.file_tracker import Reading
from zerocopy.share.errors import ServerError
from zerocopy.share.objects import attach, fingerprint, serialized
from zerocopy.share.objects.dedupe import Checksum
from zerocopy.share.objects.publish import Published, publish
from zerocopy.share.wire import file_identity, frames, messages
from zerocopy.share.wire.hashes import Hashes


def compute(connection: socket.socket, info: messages.Call, descriptors: Sequence[int]) -> None:
    """Run a call, and send the server what it returns.

    Parameters
    ----------
    connection : socket.socket
        To the server.
    info : Call
        The client's description of the call.
    descriptors : sequence of int
        The call's own memory, and files.
    """
    role.become_worker()
    caller.apply(info.state)
    # Hooks are kept by numbers, one process's from 0: those that others add must not take the place of these.
    torch.utils.hooks.RemovableHandle.next_id = secrets.randbits(62)
    patch_loading()
    session = _Session(connection)
    with Reading(info.files) as reading:
        function, args, kwargs, extensions = session.call(info, descriptors)
        session.note_arguments()
        if info.generators is not None:
            generators.set_states(info.generators)
        watched = _Arguments(args, kwargs, session.earlier_results()) if info.is_strict else None
        try:
            with (
                generators.Use() as use,
                Hashes() as noted,
                caller.applied(info.state),
                caller.extended(extensions, info.torchs_globals),
            ):
                result = function(*args, **dict(kwargs))
        except AttributeError as error:
            # Unpickling says this of a class of the program: the loader's __main__ is another module.
            if not str(error).endswith(f" on {sys.modules['__main__']!r}"):
                raise
            why = f"the call needs the program's own __main__, which a loader does not have: {error}"
            if not info.is_strict:
                raise ServerError(why) from error
            session.refuse("moved", why, reading)
            return
    if info.is_strict and use.names:
        session.refuse("moved", f"it uses random numbers ({', '.join(use.names)})", reading)
        return
    if watched is not None and (why := watched.why_here(result)):
        session.refuse("moved", why, reading)
        return
    left = generators.states() if info.generators is not None else None
    with session.mapped() as mapped:
        arguments = session.unchanged_arguments(mapped)
        try:
            published = publish(result, mapped, session.find, session.reserve, can_attach, arguments, noted)
        except UnsupportedError as error:
            if not info.is_strict:
                raise
            session.refuse("unsupported", str(error), reading)
            return
        except OSError as error:  # memory has ended: that is not the call's own error
            raise ServerError(f"the result of {info.name} cannot be published: {error}") from error
        published.layout["generators"] = None if left is None else generators.as_body(left)
        published.layout["namespaces"] = {**reading.own_modules(), **namespaces.of_classes(published.pickles)}
        session.send(published, reading, use.names)


def patch_loading() -> None:
    """Patch loading, so that what it returns lies in the file and need not be copied to be published."""
    # The fork server has imported its own safetensors; the client's sys.path may have another one.
    if program.origin_of(sys.modules.get("safetensors")) != program.found("safetensors", sys.path):
        for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
            del sys.modules[name]
    patching.patch(safetensors=importlib.util.find_spec("safetensors") is not None)


class _Arguments:
    """The arguments of a call, of which the caller has others: what the call does to these it would not see."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Sequence[tuple[str, Any]], earlier: Sequence[Any]
    ) -> None:
        self._all = args, [value for _, value in kwargs]
        self._mutable = calls.mutable([*args, *self._all[1]])
        # The caller gets its own object where an earlier result is part of the result.
        self._own = [value for value in self._mutable if not any(value is result for result in earlier)]
        self._before = self._described()

    def _described(self) -> fingerprint.State | None:
        if not self._mutable:
            return None
        with MappedFiles() as mapped:
            return fingerprint.described(self._all, mapped)

    def why_here(self, result: Any) -> str:
        """Return why the caller has to make the call itself, or an empty string."""
        if self._before is not None and self._described() != self._before:
            return "it changes its arguments"
        if self._own and fingerprint.has_any(result, self._own):
            return "its result has an argument in it"
        return ""


class _Argument(NamedTuple):
    """An earlier result."""

    name: str
    value: Any
    before: fingerprint.State | None


class _Session:
    """The conversation between a loader and the server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._arguments: dict[int, _Argument] = {}
        self._known: dict[str, int] = {}  # memory that is mapped here, by what the kernel calls it

    def _ask(self, request: object) -> frames.Message:
        frames.send(self._connection, request)
        answer = frames.receive(self._connection)
        return answer._replace(body=messages.of_server(answer.body))

    # ---------------------------------------------------------------------------------- the call

    def call(
        self, info: messages.Call, descriptors: Sequence[int]
    ) -> tuple[Any, tuple[Any, ...], Any, caller.Extensions | None]:
        """Return the function, its arguments, and what the program has added to loading."""
        parts = [
            (self._descriptor_of(where, descriptors), offset, size) for offset, size, where in info.parts
        ]
        with _lease() as lease:
            archive, skeleton = attach.opened(parts, lease, info.layout)
        made: tuple[Any, tuple[Any, ...], Any, caller.Extensions | None] = serialized.build(
            archive, skeleton, resolve=calls.resolver(self._argument)
        )
        return made

    def _descriptor_of(self, where: Any, descriptors: Sequence[int]) -> int:
        """Return one of the call's own, or the server's of a part of an earlier result."""
        if isinstance(where, int):
            return descriptors[where]
        return self._answer(where.entry).descriptors[where.part]

    def _answer(self, name: str) -> frames.Message:
        answer = self._ask(messages.Attach(name))
        if answer.body.state != "ready":
            raise result_references.LostReference(name)
        for _, descriptor in attach.memory_of(answer.body, answer.descriptors):
            identity = identity_of(descriptor)
            if identity is not None:
                self._known[identity] = descriptor
        return answer

    def _argument(self, name: str, number: int) -> Any:
        if number not in self._arguments:
            self._arguments[number] = _Argument(name, self._attached(name), None)
        return self._arguments[number].value

    def _attached(self, name: str) -> Any:
        answer = self._answer(name)
        try:
            return attach.attach(answer.body, answer.descriptors, resolve=self._attached)
        except ServerError:  # a file that it lies in has been renamed or written to
            raise result_references.LostReference(name) from None

    def mapped(self) -> MappedFiles:
        """Return what is mapped now."""
        return MappedFiles(self._known)

    def note_arguments(self) -> None:
        """Note what earlier results are before the call."""
        if self._arguments:
            with self.mapped() as mapped:
                self._arguments = {
                    number: argument._replace(before=fingerprint.of(argument.value, mapped))
                    for number, argument in self._arguments.items()
                }

    def earlier_results(self) -> list[Any]:
        """Return the earlier results among the arguments."""
        return [argument.value for argument in self._arguments.values()]

    def unchanged_arguments(self, mapped: MappedFiles) -> dict[int, Any]:
        """Return those that the call has left as they were: the caller has them."""
        return {
            number: argument.value
            for number, argument in self._arguments.items()
            if fingerprint.are_same(argument.before, fingerprint.of(argument.value, mapped))
        }

    # ---------------------------------------------------------------------------------- the result

    def find(self, checksums: list[Checksum]) -> list[FileExtent | None]:
        """Return where such bytes were published before."""
        answer = self._ask(messages.Find(checksums))
        return [
            None if place is None else FileExtent(answer.descriptors[place[0]], place[1])
            for place in answer.body.places
        ]

    def reserve(self, size: int) -> None:
        """Ask for room. ``ServerError`` if there is none."""
        answer = self._ask(messages.Reserve(size)).body
        if isinstance(answer, messages.Declined):
            raise ServerError(answer.why)

    def refuse(self, state: str, why: str, reading: Reading) -> None:
        """Say that only the client itself can make the call, as long as the conditions hold."""
        frames.send(self._connection, messages.Here(state, why[:4000], reading.conditions().as_body()))

    def send(self, published: Published, reading: Reading, moved: list[str]) -> None:
        """Publish."""
        parts, descriptors = _described(published)
        arguments = [self._arguments[number].name for number in range(len(self._arguments))]
        conditions = reading.conditions().as_body()
        report = messages.Published(
            parts, published.layout, conditions, moved, published.checksums, arguments
        )
        frames.send(self._connection, report, descriptors)


def can_attach(published: Published) -> bool:
    """Return whether the machine can build a result."""
    parts, descriptors = _described(published)
    with _lease() as lease:
        try:
            attach.attach(messages.Ready("", parts, published.layout, [], {}, []), [*descriptors, lease])
        except Exception:  # whatever it is, Python's unpickler has another way
            return False
    return True


@contextlib.contextmanager
def _lease() -> Iterator[int]:
    """Yield a lease that no client holds."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def _described(published: Published) -> tuple[list[Any], list[int]]:
    """Return the parts as a message has them, and their descriptors."""
    parts = [[part.offset, part.size, _identity_of(part.descriptor)] for part in published.parts]
    return parts, [part.descriptor for part in published.parts]


def _identity_of(descriptor: int) -> Sequence[int] | None:
    """Return which file it is; of memory that has none: None."""
    status = os.fstat(descriptor)
    return None if status.st_nlink == 0 else file_identity.identity(status)
