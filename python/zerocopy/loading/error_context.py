"""Context managers for errors about a file: with its name, and as one of the public exceptions."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from zerocopy.display import shown
from zerocopy.errors import Error, FormatError
from zerocopy.loading import diagnosis, inputs


class naming:
    """Add the file's name, once, to errors about it. Errors of pickle without `weights_only` stay as they are."""

    __slots__ = ("_f", "_weights_only")

    def __init__(self, f: Any, weights_only: bool = True) -> None:
        self._f, self._weights_only = f, weights_only

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Error):
            raise type(error)(_named(self._f, error)) from error.__cause__
        if isinstance(error, EOFError):
            raise FormatError(_named(self._f, f"truncated: {error}")) from error
        if isinstance(error, diagnosis.UnknownPickleError) and not self._weights_only:
            raise diagnosis.UnknownFormatError(_named(self._f, diagnosis.PLAIN_PICKLE)) from None
        if isinstance(error, pickle.UnpicklingError) and self._weights_only:
            error.args = (_named(self._f, error),)


@contextlib.contextmanager
def public(f: Any, weights_only: bool = True) -> Iterator[None]:
    """Add the file's name as :func:`naming` does, and raise a diagnosis of the file as a public exception."""
    try:
        with naming(f, weights_only):
            yield
    except diagnosis.DIAGNOSES as error:
        raise diagnosis.public_error(error) from error.__cause__


def _named(f: Any, error: object) -> str:
    name, text = shown(inputs.name_of(f), None), str(error)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"
