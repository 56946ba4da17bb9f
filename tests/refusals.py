"""What a load may raise on a hostile file, and how much it may say."""

from __future__ import annotations

import pickle

import zerocopy

CLEAN = (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError, OSError)

#: Characters, beside the file's name.
LONGEST_MESSAGE = 10_000
