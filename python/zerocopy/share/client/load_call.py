"""Implement ``share.load``: ask for a result, have a loader compute it if needed, and rebuild it here."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch

from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.process import descendants, interrupts, tally
from zerocopy.share import settings
from zerocopy.share.client import call_options, calls, resident, result_references
from zerocopy.share.client.connection import Exchange, require
from zerocopy.share.client.resident import Residence
from zerocopy.share.client.result_references import References
from zerocopy.share.conditions import caller, generators, namespaces
from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.errors import RunHere, ServerError
from zerocopy.share.objects import attach, serialized
from zerocopy.share.wire import file_identity, frames, messages, sealed_memory, sockets
from zerocopy.share.wire.frames import MAX_OF_REQUEST, Message

#: Over what a loader may take, for the server to say so.
_GRACE = 15.0
_MAX_ATTEMPTS = 4
#: Results of one key that are not true in this process.
_MAX_SKIPPED = 64

_log = logging.getLogger("zerocopy")


class LoaderTraceback(Exception):
    """The traceback, as text, of an exception that a loader raised: the exception's cause."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def load(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], is_strict: bool = False
) -> Any:
    """Return ``fn(*args, **kwargs)``, from the server.

    Parameters
    ----------
    fn, args, kwargs
        The call.
    is_strict : bool
        Whether the call has to leave this process as it would have left it, too: `RunHere` is raised for a call
        that uses random numbers, or whose result cannot be sent.
    """
    why = caller.why_here()
    if is_strict and (why := why or calls.why_here(args, kwargs)):
        raise RunHere(why, is_usual=True)
    if why:
        raise UnsupportedError(f"the model server cannot make a call of {calls.name_of(fn)} now: {why}")
    with interrupts.deferred():
        return _Asking(fn, args, kwargs, is_strict).result()


class _Asking:
    """One call of `load`."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], is_strict: bool
    ) -> None:
        self._call, self._is_strict = (fn, args, kwargs), is_strict
        self._skip: list[str] = []  # results that are not true in this process

    def result(self) -> Any:
        """Return the result. ``ServerError`` also where this process cannot ask, say for want of a descriptor."""
        try:
            return self._result()
        except OSError as error:
            if isinstance(error.__cause__, LoaderTraceback):  # what the call itself raises
                raise
            raise ServerError(f"this process cannot ask the model server: {error}") from error

    def _result(self) -> Any:
        source: result_references.Source | None = result_references.Source(_attached_again, _keep_digest)
        attempts = 0
        while attempts < _MAX_ATTEMPTS and len(self._skip) < _MAX_SKIPPED:
            exchange = Exchange(sockets.path())  # the server accepts it while the call is encoded
            try:
                with References(source) as known:
                    call = calls.encode(*self._call, known, self._is_strict)
                    answer = self._answer_to(exchange, call, known)
            except BaseException:
                exchange.close()
                raise
            exchange.end()
            state = answer.body.state
            if state == "ready":
                why = _why_not_true(answer)
                if not why:
                    self._require_unchanged(answer)
                    # A result may be forgotten before it is on a device.
                    with contextlib.suppress(result_references.LostReference):
                        return self._accepted(answer, known.arguments, call.name)
                else:
                    answer.close()
                    if answer.body.is_own:
                        raise ServerError(f"the loader of {call.name} ran elsewhere: {why}")
                    self._skip.append(answer.body.id)
                    continue
            elif state == "lost":  # the server has forgotten a result that is an argument: all go by value
                source = None
            elif state == "failed":
                error = _error_of(answer)
                if self._is_strict:  # this process may have what the loader lacks
                    raise RunHere(f"it raises {type(error).__name__} in a loader", is_usual=True)
                raise error
            elif state in ("moved", "unsupported"):
                if self._is_strict:
                    raise RunHere(str(answer.body.why), is_usual=state == "moved")
            elif state != "absent":
                require(answer.body, "ready")
            attempts += 1
        name = calls.name_of(self._call[0])
        raise ServerError(f"no result for {name} after {attempts + len(self._skip)} attempts")

    def _require_unchanged(self, answer: Message) -> None:
        """Raise `RunHere` where the program has changed what the result is made of."""
        name = namespaces.changed(answer.body.layout["namespaces"]) if self._is_strict else ""
        if name:
            answer.close()
            raise RunHere(f"the program has changed {name}", is_usual=True)

    def _answer_to(self, exchange: Exchange, call: calls.Call, known: References) -> Message:
        timeout = settings.timeout()
        namespace, files = file_identity.namespace(), list(call.files.items())
        request = messages.Load(call.key, files, namespace, self._is_strict, self._skip)
        answer = exchange.ask(request, timeout=timeout + _GRACE)
        if answer.body.state == "absent":
            compute = messages.Compute(vars(request), call.name, namespace, timeout, sys.executable)
            answer = _computed(exchange, compute, call, known, self._is_strict)
        return answer

    def _accepted(self, answer: Message, arguments: list[Any], name: str) -> Any:
        """Return the result, unless this call does not take such a one."""
        moved, unseen = answer.body.moved, answer.body.conditions["unseen"]
        seeded = answer.body.layout["generators"]
        try:
            if moved and self._is_strict and seeded is None:
                raise RunHere(f"it uses random numbers ({', '.join(moved)})", is_usual=True)
            if unseen and call_options.current().unseen == "refuse":
                raise UnsupportedError(
                    f"the result of {name} may depend on something unseen ({'; '.join(unseen)}), "
                    'and share.options(unseen="refuse") is set'
                )
        except BaseException:
            answer.close()
            raise
        if moved and seeded is None:
            _log.info(
                "%s uses random numbers (%s): its result is the same whatever the seed. "
                "share.options(generators=True) makes the seed part of the call.",
                name,
                ", ".join(moved),
            )
        result = _attached(answer, arguments, name)
        tally.add_shared(sum(size for _, size, _ in answer.body.parts))
        if seeded is not None:
            generators.set_states(generators.from_body(seeded))
        return result


def _why_not_true(answer: Message) -> str:
    """Return why a result is not that of this process's call, or an empty string."""
    conditions = Conditions(**answer.body.conditions)
    return conditions.why_not_here() or conditions.why_not_paths()


def _computed(
    exchange: Exchange, compute: messages.Compute, call: calls.Call, known: References, is_strict: bool
) -> Message:
    """Send the call itself: earlier results by their names, files and the rest as descriptors."""
    published = call.published(MAX_OF_REQUEST - 2)
    passed = [published.parts[0].descriptor]
    try:
        parts: list[tuple[int, int, Any]] = [(*published.parts[0][1:], 0)]
        for descriptor, offset, size in published.parts[1:]:
            origin = known.origins.get(descriptor)
            if origin is None:
                passed.append(os.dup(descriptor))
            parts.append((offset, size, origin or len(passed) - 1))
        head = messages.Call(
            sys.path,
            sys.argv,
            calls.folder(),
            call.name,
            call.files,
            call.state,
            call.torchs_globals,
            call.generators,
            is_strict,
            parts,
            published.layout,
        )
        sent = [*_described(head), *passed]
    except BaseException:
        frames.close_all(passed)
        raise
    return _started(exchange, compute, sent)


def _described(head: messages.Process) -> list[int]:
    """Return what a worker has to know about its call, and the environment, as descriptors."""
    described = sealed_memory.sealed("zerocopy-call", [pickle.dumps(head)])
    variables = descendants.unreached(os.environ)
    environment = b"\0".join(os.fsencode(f"{name}={value}") for name, value in variables.items())
    try:
        return [described, sealed_memory.sealed("zerocopy-environment", [environment])]
    except BaseException:
        os.close(described)
        raise


def _started(exchange: Exchange, compute: messages.Compute, sent: list[int]) -> Message:
    """Have a worker started, and return the answer. Closes the descriptors."""
    try:
        return exchange.ask(compute, sent, timeout=compute.timeout + _GRACE)
    finally:
        frames.close_all(sent)


def _attached(answer: Message, arguments: list[Any], name: str) -> Any:
    """Return a new object over the memory of a result. Closes the answer."""
    where = resident.wanted()
    try:
        with interrupts.allowed():
            if where is not None:  # not an earlier result of later calls: others may write to it at any time
                placement = functools.partial(_placement_on, where, answer, name)
                return attach.attach(answer.body, answer.descriptors, arguments, resident=placement)
            result = attach.attach(answer.body, answer.descriptors, arguments)
        memory = attach.memory_of(answer.body, answer.descriptors)
        result_references.note(result, answer.body.id, memory, answer.body.digest)
    finally:
        answer.close()
    return result


@interrupts.deferred()
def _placement_on(where: Residence, result: Message, name: str) -> resident.ResidentPlacement:
    """Return the placement of a result that is resident on a device, brought there if need be."""
    answer = _resident(where, result.body.id, name)
    try:
        content, pipe, *descriptors = answer.descriptors
        size, handle = pickle.loads(sealed_memory.content(content))
        whole = (
            where.kind(where.device).open(handle, descriptors)
            if size
            else torch.UntypedStorage(0, device=where.device)
        )
        # As long as the allocation is used the device owner goes on, and the server keeps the result.
        whole = _C.leased_storage(whole, [pipe, result.descriptors[-1]])
    finally:
        answer.close()

    def bring(plan: _C.TransferPlan) -> torch.UntypedStorage:
        if plan.size != size:
            raise ServerError(
                f"expected {plan.size} bytes for {name} on {where.device}, and the device owner has {size}: "
                "zerocopy.share.unload makes the server forget it"
            )
        return whole

    return resident.ResidentPlacement(where.device, bring, serialized.TRANSFER)


def _resident(where: Residence, entry: str, name: str) -> Message:
    """Return by what a result is opened on a device. ``LostReference`` if the server has forgotten it."""
    timeout = settings.timeout()
    device, key, kind = str(where.device), f"{entry} {where.device}", pickle.dumps(where.kind)
    exchange = Exchange(sockets.path())
    try:
        request = messages.Resident(entry, device, key)
        answer = exchange.ask(request, timeout=timeout + _GRACE)
        if answer.body.state == "absent":
            namespace = file_identity.namespace()
            compute = messages.Compute(
                vars(request), f"{name} on {device}", namespace, timeout, sys.executable
            )
            head = messages.Residence(sys.path, sys.argv, calls.folder(), entry, device, kind)
            answer = _started(exchange, compute, _described(head))
    except BaseException:
        exchange.close()
        raise
    exchange.end()
    if answer.body.state == "lost":
        raise result_references.LostReference(entry)
    if answer.body.state == "failed":
        raise _error_of(answer)
    require(answer.body, "resident")
    return answer


@interrupts.deferred()
def _attached_again(entry: str) -> Any:
    """Return the result of that name once more. ``LostReference`` if there is none."""
    exchange = Exchange(sockets.path())
    answer = exchange.ask(messages.Attach(entry))
    exchange.end()
    if answer.body.state != "ready":
        raise result_references.LostReference(entry)
    try:
        return attach.attach(answer.body, answer.descriptors, resolve=_attached_again)
    except ServerError:  # a file that it lies in has been renamed or written to
        raise result_references.LostReference(entry) from None
    finally:
        answer.close()


@interrupts.deferred()
def _keep_digest(entry: str, digest: str) -> None:
    exchange = Exchange(sockets.path())
    exchange.ask(messages.Keep(entry, digest)).close()
    exchange.end()


def _error_of(answer: Message) -> Exception:
    """Return what the loader raised, with its traceback as the cause."""
    try:
        content, described, text = pickle.loads(sealed_memory.content(answer.descriptors[0]))
    finally:
        answer.close()
    error: BaseException | None = None
    if content is not None:
        try:
            error = pickle.loads(content)
        except Exception:  # it is of a class that is only there
            error = None
    if not isinstance(error, Exception):  # SystemExit and its like would end this process
        error = ServerError(f"the loader raised {described}")
    error.__cause__ = LoaderTraceback(text)
    return error
