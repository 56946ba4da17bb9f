"""Registry of replaced functions, so that two kinds of patches can be undone in any order.

A patch that goes while another lies over it leaves its replacement behind, which from then on only passes calls on. The
one above puts back what it found there when it goes itself: without this the left one would stay for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MARK = "_zerocopy_standin"


def note(replacement: Any, original: Any, is_wanted: Callable[[], bool]) -> None:
    """Remember that `replacement` lies over `original`, and how to ask whether it still should."""
    # With itself: functools.wraps copies attributes, so that another's wrapper of it has the mark too.
    setattr(replacement, _MARK, (replacement, original, is_wanted))


def beneath(function: Any) -> Any:
    """Return a function, or what lies under it if it is a replacement that nobody wants any more."""
    while True:
        replacement, original, is_wanted = getattr(function, _MARK, (None, None, None))
        if replacement is not function or is_wanted is None or is_wanted():
            return function
        function = original


def original(function: Any) -> Any:
    """Return a function, or what lies under all replacements of it."""
    while True:
        replacement, under, _ = getattr(function, _MARK, (None, None, None))
        if replacement is None or replacement is not function:
            return function
        function = under
