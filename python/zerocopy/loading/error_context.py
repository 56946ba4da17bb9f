"""Context managers for errors about a file: with its name, and as one of the public exceptions."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

from zerocopy.errors import Error, FormatError
from zerocopy.loading import diagnosis, inputs


@contextlib.contextmanager
def naming(f: Any, weights_only: bool = True) -> Iterator[None]:
    """Put the file's name into what is raised about it, once; not into what pickle raises without `weights_only`."""
    try:
        yield
    except Error as error:
        raise type(error)(_named(f, error)) from error.__cause__
    except EOFError as error:
        raise FormatError(_named(f, f"truncated: {error}")) from error
    except pickle.UnpicklingError as error:
        if weights_only:
            error.args = (_named(f, error),)
        raise


@contextlib.contextmanager
def public(f: Any, weights_only: bool = True) -> Iterator[None]:
    """Put in the file's name as :func:`naming`, and raise what it is instead of a checkpoint as a public exception."""
    try:
        with naming(f, weights_only):
            yield
    except diagnosis.DIAGNOSES as error:
        raise diagnosis.public_error(error) from error.__cause__


def _named(f: Any, error: object) -> str:
    name, text = inputs.name_of(f), str(error)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"
