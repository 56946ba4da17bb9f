"""A loader's exception, as the program gets it: of its own type, whatever its constructor asks for."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from typing import Any

from zerocopy.share.objects import by_value

# Attributes that pickle loses: names before Python 3.12, and file names that a subclass has set by itself.
_UNPICKLED = {AttributeError: ("name",), NameError: ("name",), OSError: ("filename", "filename2")}


def dumps(error: BaseException) -> bytes | None:
    """Return the pickle of an exception; None if its type cannot be sent."""
    for reduced in _ways(error):
        with contextlib.suppress(Exception):
            buffer = io.BytesIO()
            _Pickler(buffer, error, reduced).dump(error)
            again = pickle.loads(buffer.getvalue())
            # Not all that can be pickled can be made again, or becomes the same.
            is_same = type(again).__qualname__ == type(error).__qualname__ and str(again) == str(error)
            if is_same and _unpickled(again).keys() == _unpickled(error).keys():
                return buffer.getvalue()
    return None


def _ways(error: BaseException) -> Iterator[Any]:
    """Yield how it may be reduced: as it says itself, without its constructor, without what cannot be sent."""
    yield NotImplemented
    # The arguments come from the built-in type's reducer: for an OSError they include the file's name.
    args = _built_in(type(error)).__reduce__(error)[1]
    attributes = vars(error) | _unpickled(error)
    yield _made, (type(error), args, attributes)
    state = {name: value for name, value in attributes.items() if _can_be_sent(value)}
    yield _made, (type(error), args, state)
    yield _made, (type(error), (str(error),), state)


def _unpickled(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception that pickle loses."""
    names = [name for kind, own in _UNPICKLED.items() if isinstance(error, kind) for name in own]
    return {name: value for name in names if (value := getattr(error, name, None)) is not None}


def _can_be_sent(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def _built_in(cls: type[BaseException]) -> Any:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _made(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Make an exception as the built-in one that it derives from is made."""
    base = _built_in(cls)
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, error: BaseException, reduced: Any) -> None:
        super().__init__(file, protocol=5)
        self._error, self._reduced = error, reduced

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._error:
            return self._reduced
        if isinstance(obj, BaseException) and not _can_be_sent(obj):  # in a group, or an attribute
            return _made, (type(obj), _built_in(type(obj)).__reduce__(obj)[1], vars(obj))
        return by_value.reduced(obj)
