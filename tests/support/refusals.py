"""Exceptions that a load may raise for a hostile file, and their length."""

from __future__ import annotations

import pickle

import zerocopy

CLEAN = (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError, OSError)

#: Characters, beside the file's name.
MAX_MESSAGE_LENGTH = 10_000


def is_of_a_location(error: RuntimeError) -> bool:
    """Return whether it is torch's about a device: where a storage goes is judged by torch, in its words."""
    return any(said in str(error) for said in ("deserialize", "restore data location", "device"))
