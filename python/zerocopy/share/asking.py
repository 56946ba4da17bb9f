"""What ``share.load`` does: asks for a result, has it computed where there is none, and rebuilds it here."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch  # noqa: F401  its libraries have to be there before _C is loaded

from zerocopy.share import attaching, calls, memory, settings, sockets
from zerocopy.share.errors import ServerError
from zerocopy.share.frames import Message
from zerocopy.share.requests import Exchange, require

#: Over what a loader may take, for the server to say so.
_GRACE = 15.0
_MOST_ATTEMPTS = 4


class LoaderTraceback(Exception):
    """The traceback, as text, of an exception that a loader raised: the exception's cause."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def load(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)``, from the server."""
    by_name = True
    for _ in range(_MOST_ATTEMPTS):
        arguments: list[Any] = []
        call = calls.encode(fn, args, kwargs, lambda obj: _noted(obj, arguments) if by_name else None)
        answer = _answer_to(call)
        state = answer.body.get("state")
        if state == "ready":
            return _attached(answer, arguments)
        if state == "lost":  # the server has forgotten a result that is an argument: it goes by value
            by_name = False
        elif state == "failed":
            _raise(answer)
        elif state != "absent":
            require(answer.body, "ready")
    raise ServerError(f"the model server does not come to a result of {calls.name_of(fn)}")


def _answer_to(call: calls.Call) -> Message:
    exchange = Exchange(sockets.path())
    timeout = settings.timeout()
    about = {"key": call.key, "cwd": os.getcwd(), "files": list(call.files.items())}
    try:
        answer = exchange.ask({"op": "load", **about}, timeout=timeout + _GRACE)
        if answer.body.get("state") == "absent":
            answer = _computed(exchange, call, {**about, "timeout": timeout})
    except BaseException:
        exchange.close()
        raise
    exchange.end()
    return answer


def _computed(exchange: Exchange, call: calls.Call, about: dict[str, Any]) -> Message:
    """Send the call itself."""
    head = pickle.dumps(
        {
            "path": sys.path,
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "depends_on_cwd": call.cwd is not None,
            "files": call.files,
            "settings": calls.settings(),
        }
    )
    environment = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    sent = [
        memory.sealed("zerocopy-call", [len(head).to_bytes(8, "big"), head, call.blob]),
        memory.sealed("zerocopy-environment", [environment]),
    ]
    try:
        body = {"op": "compute", "name": call.name, "python": sys.executable, **about}
        return exchange.ask(body, sent, timeout=about["timeout"] + _GRACE)
    finally:
        for descriptor in sent:
            os.close(descriptor)


def _attached(answer: Message, arguments: list[Any]) -> Any:
    try:
        result = attaching.attach(answer.body, answer.descriptors, arguments)
    finally:
        answer.close()
    _note_origin(result, answer.body["id"])
    return result


# --------------------------------------------------------------------------- earlier results as arguments

_origins: dict[int, tuple[weakref.ref[Any], str]] = {}


def _note_origin(result: Any, entry: str) -> None:
    try:
        reference = weakref.ref(result, lambda _, at=id(result): _origins.pop(at, None))
    except TypeError:  # a dict, a list, ...
        return
    _origins[id(result)] = reference, entry


def _noted(obj: Any, arguments: list[Any]) -> str | None:
    """Return which result an object is, and note it."""
    known = _origins.get(id(obj))
    if known is None or known[0]() is not obj:
        return None
    arguments.append(obj)
    return known[1]


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
