"""What ``share.load`` does: asks for a result, has it computed where there is none, and rebuilds it here."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import _C
from zerocopy.share import (
    attaching,
    blueprints,
    calls,
    frames,
    memory,
    references,
    residence,
    settings,
    sockets,
)
from zerocopy.share.errors import ServerError
from zerocopy.share.frames import MOST_OF_REQUEST, Body, Message
from zerocopy.share.references import References
from zerocopy.share.requests import Exchange, require
from zerocopy.share.residence import Residence

#: Over what a loader may take, for the server to say so.
_GRACE = 15.0
_MOST_ATTEMPTS = 4


class LoaderTraceback(Exception):
    """The traceback, as text, of an exception that a loader raised: the exception's cause."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def load(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)``, from the server."""
    again: references.Again | None = _attached_again
    attempts, deadline = 0, time.monotonic() + settings.timeout()
    while attempts < _MOST_ATTEMPTS:
        with References(again) as known:
            call = calls.encode(fn, args, kwargs, known)
            answer = _answer_to(call, known)
        state = answer.body.get("state")
        if state == "ready":
            with contextlib.suppress(references.LostReference):  # forgotten before it was on a device
                return _attached(answer, known.arguments, call.name)
        if state == "lost":  # the server has forgotten a result that is an argument: all go by value
            again = None
        elif state == "failed":
            _raise(answer)
        elif state != "absent":
            require(answer.body, "ready")
        elif time.monotonic() < deadline:  # it was another folder's turn, as it may be again
            continue
        attempts += 1
    raise ServerError(f"the model server does not come to a result of {calls.name_of(fn)}")


def _answer_to(call: calls.Call, known: References) -> Message:
    exchange = Exchange(sockets.path())
    timeout = settings.timeout()
    about = {"key": call.key, "cwd": calls.folder(), "files": list(call.files.items())}
    try:
        answer = exchange.ask({"op": "load", **about}, timeout=timeout + _GRACE)
        if answer.body.get("state") == "absent":
            answer = _computed(exchange, call, known, {**about, "timeout": timeout})
    except BaseException:
        exchange.close()
        raise
    exchange.end()
    return answer


def _computed(exchange: Exchange, call: calls.Call, known: References, about: Body) -> Message:
    """Send the call itself: what is the server's by its name, files and the rest as descriptors."""
    published = call.published(MOST_OF_REQUEST - 2)
    passed = [published.parts[0].descriptor]
    try:
        parts: list[tuple[int, int, Any]] = [(*published.parts[0][1:], 0)]
        for descriptor, offset, size in published.parts[1:]:
            origin = known.origins.get(descriptor)
            if origin is None:
                passed.append(os.dup(descriptor))
            parts.append((offset, size, origin or len(passed) - 1))
        head = {
            "name": call.name,
            "path": sys.path,
            "argv": sys.argv,
            "cwd": about["cwd"],
            "depends_on_cwd": call.depends_on_cwd,
            "files": call.files,
            "settings": calls.settings(),
            "parts": parts,
            "layout": published.layout,
        }
        sent = [*_described(head), *passed]
    except BaseException:
        frames.close_all(passed)
        raise
    return _started(exchange, {"op": "compute", "name": call.name, **about}, sent, about["timeout"])


def _described(head: dict[str, Any]) -> list[int]:
    """Return what a loader is told about itself, as descriptors: in words, and the environment."""
    described = memory.sealed("zerocopy-call", [pickle.dumps(head)])
    environment = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    try:
        return [described, memory.sealed("zerocopy-environment", [environment])]
    except BaseException:
        os.close(described)
        raise


def _started(exchange: Exchange, body: Body, sent: list[int], timeout: float) -> Message:
    """Have a loader started, and return what comes of it. Closes the descriptors."""
    try:
        return exchange.ask({**body, "python": sys.executable}, sent, timeout=timeout + _GRACE)
    finally:
        frames.close_all(sent)


def _attached(answer: Message, arguments: list[Any], name: str) -> Any:
    where = residence.wanted()
    try:
        if where is not None:  # no earlier result of later calls: others may write to it at any time
            way = functools.partial(_way_to, where, answer, name)
            return attaching.attach(answer.body, answer.descriptors, arguments, resident=way)
        result = attaching.attach(answer.body, answer.descriptors, arguments)
        references.note(result, answer.body["id"], attaching.memory_of(answer.body, answer.descriptors))
    finally:
        answer.close()
    return result


def _way_to(where: Residence, result: Message, name: str) -> residence.Way:
    """Return what stands for the road to where a result is resident, brought there if need be."""
    answer = _resident(where, result.body["id"], name)
    try:
        content, pipe, *descriptors = answer.descriptors
        size, handle = pickle.loads(memory.content(content))
        whole = (
            where.kind(where.device).open(handle, descriptors)
            if size
            else torch.UntypedStorage(0, device=where.device)
        )
        # As long as it is used its holder goes on, and the server keeps the result.
        whole = _C.leased_storage(whole, [pipe, result.descriptors[-1]])
    finally:
        answer.close()

    def bring(haul: _C.Haul) -> torch.UntypedStorage:
        if haul.size != size:
            raise ServerError(f"{name} takes {haul.size} bytes on {where.device}, and its holder has {size}")
        return whole

    return residence.Way(where.device, bring, blueprints.ROAD)


def _resident(where: Residence, entry: str, name: str) -> Message:
    """Return by what a result is opened on a device. ``LostReference`` if the server has forgotten it."""
    timeout = settings.timeout()
    about = {"id": entry, "device": str(where.device), "key": f"{entry} {where.device}"}
    exchange = Exchange(sockets.path())
    try:
        answer = exchange.ask({"op": "resident", **about}, timeout=timeout + _GRACE)
        if answer.body.get("state") == "absent":
            head = {"path": sys.path, "argv": sys.argv, "cwd": calls.folder(), **about}
            sent = _described({**head, "kind": pickle.dumps(where.kind)})
            body = {
                "op": "compute",
                "name": f"{name} on {where.device}",
                "timeout": timeout,
                "cwd": "",
                **about,
            }
            answer = _started(exchange, body, sent, timeout)
    except BaseException:
        exchange.close()
        raise
    exchange.end()
    state = answer.body.get("state")
    if state == "lost":
        raise references.LostReference(entry)
    if state == "failed":
        _raise(answer)
    require(answer.body, "resident")
    return answer


def _attached_again(entry: str) -> Any:
    """Return the result of that name once more. ``LostReference`` if there is none."""
    exchange = Exchange(sockets.path())
    answer = exchange.ask({"op": "attach", "id": entry})
    exchange.end()
    if answer.body.get("state") != "ready":
        raise references.LostReference(entry)
    try:
        return attaching.attach(answer.body, answer.descriptors, resolve=_attached_again)
    finally:
        answer.close()


def _raise(answer: Message) -> None:
    """Raise what the loader raised."""
    try:
        content, described, text = pickle.loads(memory.content(answer.descriptors[0]))
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
    raise error from LoaderTraceback(text)
