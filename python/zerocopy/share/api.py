"""``zerocopy.share.load``, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from zerocopy.errors import CacheError as CacheError
from zerocopy.share.cache import folder
from zerocopy.share.cache.entries import Entry
from zerocopy.share.cache.folder import Cache

P = ParamSpec("P")
R = TypeVar("R")
_SHORTEST_KEY = 6  # characters that name results by their key


class Result(NamedTuple):
    """A kept result, as :func:`status` lists it.

    Attributes
    ----------
    key : str
        Of the call.
    what : str
        The function.
    written : int
        Bytes that were written for it.
    mapped : int
        Bytes of it that lie in other files.
    used : float
        When it was last taken, in seconds since 1970.
    seconds : float
        How long the call took.
    depends_on : list of str
        The files and folders that it depends on.
    unseen : list of str
        Why it may depend on more.
    random : list of str
        The generators of random numbers that the call used.
    note : str
        The reason why a program with patched functions makes this call itself. If there is one, the entry may hold
        this note and no result.
    """

    key: str
    what: str
    written: int
    mapped: int
    used: float
    seconds: float
    depends_on: list[str]
    unseen: list[str]
    random: list[str]
    note: str


def load(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return ``fn(*args, **kwargs)``, computed once per machine, and rebuilt here over mapped files.

    The first call is made in this process, and its result is kept in the user's cache folder. Every other, in any
    process of the same user, takes milliseconds and next to no memory, as long as what the call depended on is the
    same: the files that it read, the folders that it listed, the names that it asked for, the variables, arguments,
    modules and settings that it read.

    Parameters
    ----------
    fn : callable
        The function that loads: ``torch.load``, ``AutoModel.from_pretrained``, a function of your own. A
        function that cannot be imported by its name (of ``__main__``, a lambda, a nested one) goes by
        value, which needs dill.
    *args, **kwargs
        Its arguments. Arguments that are unchanged results of earlier calls are identified by their entries;
        their weights that lie in files are not hashed.

    Returns
    -------
    object
        A new object each time. Its tensors are private copy-on-write: what is written to them nobody else sees.

    Raises
    ------
    CacheError
        If the cache folder is another user's, or open to others.
    TypeError
        If `fn` is not callable.
    Exception
        Any exception of `fn`.

    Notes
    -----
    The folder is ``$XDG_CACHE_HOME/zerocopy``; ``ZEROCOPY_CACHE`` names another one. ``ZEROCOPY_MAX_BYTES`` limits
    it. Weights that lie unchanged in a file's mapping stay in that file. Calls of one key wait for each other. If a
    result cannot be kept, the plain result is returned, and the logger "zerocopy" says why.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.arange(3.0)}, file.name)
    >>> zerocopy.share.load(torch.load, file.name)
    {'weight': tensor([0., 1., 2.])}
    >>> zerocopy.share.load(zerocopy.load, file.name)["weight"].add_(1)
    tensor([1., 2., 3.])
    """
    if not callable(fn):
        raise TypeError(f"{type(fn).__name__!r} object is not callable")
    from zerocopy.share import loading  # torch is there by now, or needed

    return loading.load(fn, args, kwargs)


def status() -> list[Result]:
    """Return what is kept, the last used first.

    Returns
    -------
    list of Result
        One for each entry of the cache folder.

    Raises
    ------
    CacheError
        If the cache folder is another user's, or open to others.

    Examples
    --------
    >>> import zerocopy
    >>> isinstance(zerocopy.share.status(), list)
    True
    """
    cache = _cache()
    found = [] if cache is None else [_described(entry) for entry in cache]
    return sorted(found, key=lambda result: -result.used)


def unload(key: str) -> int:
    """Remove kept results, and those that refer to them. Processes that have one keep it.

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
    CacheError
        If the cache folder is another user's, or open to others.

    Examples
    --------
    >>> import zerocopy
    >>> zerocopy.share.unload("no_such_function")
    0
    """
    if not isinstance(key, str):
        raise TypeError(f"expected a str as key, got {type(key).__name__}")
    cache = _cache()
    if cache is None:
        return 0
    is_long = len(key) >= _SHORTEST_KEY
    chosen = [
        entry.path
        for entry in cache
        if key in ("*", entry.key, entry.head["what"]) or (is_long and entry.key.startswith(key))
    ]
    return len(cache.remove(chosen))


def _cache() -> Cache | None:
    place = folder.default_folder()
    if not os.path.exists(place):
        return None
    folder.require_private(place)
    return Cache(place)


def _described(entry: Entry) -> Result:
    head: dict[str, Any] = entry.head
    conditions = head["conditions"]
    return Result(
        entry.key,
        head["what"],
        os.fstat(entry.descriptor).st_blocks * 512,
        sum(part.size for part in entry.parts),
        entry.used,
        head["seconds"],
        [path for path, kind, *_ in conditions["paths"] if kind in ("file", "names")],
        conditions["unseen"],
        head["random"],
        head["note"],
    )
