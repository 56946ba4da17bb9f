"""``zerocopy.share.load``, and the rest of what programs ask of the model server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from zerocopy.share import role
from zerocopy.share.client import connection
from zerocopy.share.wire import messages

P = ParamSpec("P")
R = TypeVar("R")


def load(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return ``fn(*args, **kwargs)``, computed once per machine, and rebuilt here over shared storages.

    The first call computes the result in a process of its own, which ends then; every other, in any process of the
    same user, takes milliseconds and next to no memory. A result is forgotten when a file changes that it was made of.

    Parameters
    ----------
    fn : callable
        The function that loads: ``torch.load``, ``AutoModel.from_pretrained``, a function of your own. A
        function that cannot be imported by its name (of ``__main__``, a lambda, a nested one) is sent by
        value, which needs dill.
    *args, **kwargs
        Its arguments. Earlier results among them go by name, without their weights.

    Returns
    -------
    object
        A new object each time. Its tensors are private copy-on-write: what is written to them nobody else sees.

    Raises
    ------
    ServerError
        If no server runs and none can be started, if the server refuses, or if the loader dies or takes
        longer than ``ZEROCOPY_SHARE_TIMEOUT`` (half an hour). This function never loads in this process
        instead, as ``patch_all`` does.
    UnsupportedError
        If the call, or the result, can only be pickled by dill, and there is none.
    TypeError
        If `fn` is not callable.
    Exception
        Any exception of `fn`, of the same type; the loader's traceback is in its ``__cause__``.

    Notes
    -----
    The server is started by the first call, and ends after an hour (``ZEROCOPY_SHARE_IDLE``, in seconds) without any.
    ``ZEROCOPY_MAX_BYTES`` limits the memory that it keeps. Weights that lie unchanged in a file's mapping stay there.

    Within a loader this calls `fn`: what it returns is published with the rest.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.arange(3.0)}, file.name)
    >>> zerocopy.share.load(torch.load, file.name)
    {'weight': tensor([0., 1., 2.])}
    >>> zerocopy.share.load(zerocopy.load, file.name)["weight"].add_(1)
    tensor([1., 2., 3.])
    >>> zerocopy.share.shutdown()
    """
    if not callable(fn):
        raise TypeError(f"{type(fn).__name__!r} object is not callable")
    if role.is_worker():
        return fn(*args, **kwargs)
    from zerocopy.share.client import load_call  # torch is there by now, or needed

    return load_call.load(fn, args, kwargs)


def load_strictly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)`` from the server if the program cannot tell it from a call of its own.

    Raises
    ------
    RunHere
        If the call uses random numbers, or is made under a mode that belongs to this process.
    """
    from zerocopy.share.client import load_call

    return load_call.load(fn, args, kwargs, is_strict=True)


def status() -> dict[str, Any] | None:
    """Return what the server keeps; None if there is none. It is not started for that.

    Returns
    -------
    dict or None
        ``pid``, ``memory`` and ``max_bytes`` in bytes, ``connections``, ``loading``, and ``entries``: of each result
        its ``key``, ``name``, ``memory``, ``mapped`` (bytes that lie in files), ``files``, ``attached`` (whether a
        process has it), ``resident`` (by device: the ``memory`` there, and the ``pid`` of who holds it), ``hits``,
        ``created``, ``used`` (for the last time), ``seconds`` (that computing it took), ``unseen`` (why it may
        depend on more than the server asks about) and ``random`` (the generators of random numbers that computing it
        used).

    Raises
    ------
    ServerError
        If the server is of another release.

    Examples
    --------
    >>> import zerocopy
    >>> zerocopy.share.status() is None
    True
    """
    answer = connection.ask_if_there(messages.AskStatus())
    if answer is None:
        return None
    answer.close()
    connection.require(answer.body, "status")
    return {name: value for name, value in vars(answer.body).items() if name != "state"}


def unload(key: str) -> int:
    """Have the server forget a result. Processes that have it keep it.

    Parameters
    ----------
    key : str
        A key as in :func:`status`, or its first characters (six at least), or the name of a function, or ``"*"``.

    Returns
    -------
    int
        How many results it was.

    Raises
    ------
    TypeError
        If `key` is not a str.
    ServerError
        If the server is of another release.

    Examples
    --------
    >>> import zerocopy
    >>> zerocopy.share.unload("*")
    0
    """
    if not isinstance(key, str):
        raise TypeError(f"expected a str as key, got {type(key).__name__}")
    answer = connection.ask_if_there(messages.Unload(key))
    if answer is None:
        return 0
    connection.require(answer.body, "unloaded")
    return int(answer.body.count)


def shutdown() -> None:
    """End the server, if there is one, and wait until it has ended. Tensors that were loaded stay.

    Raises
    ------
    ServerError
        If it does not end.

    Examples
    --------
    >>> import zerocopy
    >>> zerocopy.share.shutdown()
    """
    connection.end_server()
