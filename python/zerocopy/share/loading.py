"""Find a kept result and rebuild it, or make the call here, record what it depends on, and keep what it returns.

load ─┬─ a mode is active, or no folder is usable ────────────→ the call itself
      ├─ an entry of the key whose conditions hold here ──────→ mapped copy-on-write and rebuilt
      └─ none: share.load waits for whoever makes this call
               the call, recorded, by the loaders that map
               written as an entry ─┬─ share.load ────────────→ rebuilt from the entry, as for everybody else
                                    └─ a patched function ────→ the program's own object
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from zerocopy.errors import UnsupportedError
from zerocopy.process import tally
from zerocopy.share import call, call_options, earlier
from zerocopy.share.cache import folder, new_entry
from zerocopy.share.cache.entries import Entry
from zerocopy.share.conditions import generators, hearing, state
from zerocopy.share.conditions.conditions import Conditions, Here
from zerocopy.share.conditions.messages import say_again
from zerocopy.share.keeping import Computation, attached

_log = logging.getLogger("zerocopy")
_Args = tuple[Any, ...]


class _Thread(threading.local):
    """The keys of the calls that this thread makes."""

    def __init__(self) -> None:
        self.keys: set[str] = set()


_thread = _Thread()


def load(fn: Callable[..., Any], args: _Args, kwargs: dict[str, Any]) -> Any:
    """Return ``fn(*args, **kwargs)``, rebuilt from the cache."""
    return _Load(fn, fn, args, kwargs, is_patched=False).result()


def load_as_program(
    fn: Callable[..., Any], original: Callable[..., Any], args: _Args, kwargs: dict[str, Any]
) -> Any:
    """Return ``fn(*args, **kwargs)`` so that the program cannot tell it from a call of `original`.

    Nothing is raised but what `original` raises, and nobody is waited for.
    """
    return _Load(fn, original, args, kwargs, is_patched=True).result()


class _Missing:
    """Stands for a missing result."""


class _PlainCall(NamedTuple):
    """Only the program itself can make the call."""

    why: str
    level: int = logging.INFO


_MISSING = _Missing()


class _Load:
    """One call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        original: Callable[..., Any],
        args: _Args,
        kwargs: dict[str, Any],
        is_patched: bool,
    ) -> None:
        self._fn, self._original, self._args, self._kwargs = fn, original, args, kwargs
        self._is_patched = is_patched

    def _plain(self) -> Any:
        return self._original(*self._args, **self._kwargs)

    def result(self) -> Any:
        """Return the result."""
        with earlier.References(self._again) as known:
            known_call, found = self._looked_up_safely(known)
            # Not in a handler: what the call raises would have another exception as its context.
            if isinstance(found, _PlainCall):
                self._log_plain(found)
            elif known_call is not None:
                return self._computed(known_call, known) if found is _MISSING else found
            return self._plain()

    def _looked_up_safely(self, known: earlier.References) -> tuple[call.Call | None, Any]:
        """Return as :meth:`_looked_up`; a plain call where this fails. A program never fails for the cache."""
        try:
            return self._looked_up(known)
        except (UnsupportedError, OSError) as error:
            return None, _PlainCall(str(error), logging.WARNING)
        except Exception as error:
            if not self._is_patched:
                raise
            _log.debug("%s", traceback.format_exc())
            return None, _PlainCall(str(error), logging.WARNING)

    def _looked_up(self, known: earlier.References) -> tuple[call.Call | None, Any]:
        """Return the call, or None for a nested call of the same key, and the kept result or `_MISSING`."""
        why = state.why_plain() or (self._is_patched and call.why_plain(self._args, self._kwargs))
        if why:
            return None, _PlainCall(why)
        cache = folder.usable()
        if cache is None:
            return None, _PlainCall("there is no folder for results on this machine")
        self._cache = cache
        new_entry.settle()
        known_call = call.encode(self._fn, self._args, self._kwargs, known)
        if known_call.key in _thread.keys:
            return None, _MISSING
        return known_call, self._found(known_call, known)

    def _log_plain(self, plain: _PlainCall) -> None:
        name = call.name_of(self._fn)
        _log.log(plain.level, "%s is called here, and nothing is kept: %s", name, plain.why)

    # ---------------------------------------------------------------------------------- a hit

    def _found(self, known_call: call.Call, known: earlier.References) -> Any:
        """Return the result from an entry whose conditions hold, or `_MISSING`."""
        here, cache = None, self._cache
        for entry in cache.of_key(known_call.key):
            here = here or Here()
            conditions = Conditions(**entry.head["conditions"])
            why = conditions.why_not(here)
            if why:
                _log.debug("%s: %s is not taken: %s", known_call.name, entry.id, why)
                continue
            if conditions.unseen and call_options.current().unseen == "refuse":
                continue
            note = entry.head["note"]
            if self._is_patched and note:
                entry.note_use()
                _tell_outside(conditions)
                return _PlainCall(note)
            if not entry.head["layout"]:  # says that a program has to make the call itself
                continue
            try:
                result = attached(cache, entry, known.arguments)
            except LookupError as error:
                _log.debug("%s: %s is not taken: %s", known_call.name, entry.id, error)
                continue
            self._accept(entry, conditions, known_call.name)
            earlier.note(result, f"{entry.key}/{entry.id}")
            return result
        return _MISSING

    def _accept(self, entry: Entry, conditions: Conditions, name: str) -> None:
        """Repeat the side effects of the call: warnings, log records, states of generators."""
        entry.note_use()
        _log.debug("%s: taken from %s", name, entry.id)
        tally.add_shared(entry.size + sum(part.size for part in entry.parts))
        _tell_outside(conditions)
        say_again(entry.head["warnings"], entry.head["records"])
        left = entry.head["generators"]
        if left is not None:
            generators.set_states(generators.from_body(left))
        elif entry.head["random"]:
            _log.info(
                "%s uses random numbers (%s): its result is the same whatever the seed. "
                "share.options(generators=True) makes the seed part of the call.",
                name,
                ", ".join(entry.head["random"]),
            )

    def _again(self, name: str) -> Any:
        """Return a fresh copy of what an entry has."""
        key, _, wanted = name.partition("/")
        entry = self._cache.by_id(key, wanted)
        if entry is None:
            raise LookupError(name)
        return attached(self._cache, entry, [self._again(each) for each in entry.head["arguments"]])

    # ---------------------------------------------------------------------------------- a miss

    def _computed(self, known_call: call.Call, known: earlier.References) -> Any:
        """Call the function, and keep its result."""
        with contextlib.ExitStack() as stack:
            if not self._is_patched:
                stack.enter_context(self._cache.lock(known_call.key))
                found = self._found(known_call, known)  # of another, meanwhile
                if found is not _MISSING:
                    return found
            try:
                _thread.keys.add(known_call.key)
                computation = Computation(self._cache, known_call, known, self._is_patched)
                return computation.result(self._original, self._args, self._kwargs)
            finally:
                _thread.keys.discard(known_call.key)


def _tell_outside(conditions: Conditions) -> None:
    """Add the dependencies of a kept result to the calls that are being recorded."""
    for recording in hearing.under_way():
        recording.took(conditions)
