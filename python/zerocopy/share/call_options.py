"""Options of ``share.load``, for the calls in a block."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple


class Options(NamedTuple):
    """As :func:`options` takes them."""

    generators: bool = False
    unseen: str = "share"


_DEFAULT = Options()
_options: contextvars.ContextVar[Options] = contextvars.ContextVar("zerocopy_share_options", default=_DEFAULT)


def current() -> Options:
    """Return the options of the calling thread or task."""
    return _options.get()


@contextlib.contextmanager
def options(*, generators: bool | None = None, unseen: str | None = None) -> Iterator[None]:
    """Set options of :func:`zerocopy.share.load` for the calls of this thread or task within a ``with`` block.

    Blocks nest; an option that is left out stays as it is.

    Parameters
    ----------
    generators : bool, optional
        Whether the states of the generators of random numbers (Python's, NumPy's and torch's for the CPU) belong to
        a call. The result is then that of a call with these states, and the states afterwards are as the call would
        have left them. Without it (the default) a result is computed once, whatever the seed.
    unseen : {"share", "refuse"}, optional
        How to treat a result that depends on something that cannot be recorded, such as the network or a
        program that the call started. "share" (the default) keeps the result until a file that the call read
        changes. "refuse" makes the call each time, and keeps nothing.

    Raises
    ------
    TypeError
        If `generators` is not a bool.
    ValueError
        If `unseen` is neither "share" nor "refuse".

    Examples
    --------
    >>> import torch, zerocopy
    >>> _ = torch.manual_seed(1)
    >>> wanted = torch.rand(2)
    >>> _ = torch.manual_seed(1)
    >>> with zerocopy.share.options(generators=True):
    ...     found = zerocopy.share.load(torch.rand, 2)
    >>> torch.equal(found, wanted)
    True
    """
    if generators is not None and not isinstance(generators, bool):
        raise TypeError(f"generators must be a bool, not {type(generators).__name__}")
    if unseen not in (None, "share", "refuse"):
        raise ValueError(f'unseen must be "share" or "refuse", not {unseen!r}')
    before = _options.get()
    token = _options.set(
        Options(
            before.generators if generators is None else generators,
            before.unseen if unseen is None else unseen,
        )
    )
    try:
        yield
    finally:
        _options.reset(token)
