"""Make a call in this process, record what it depends on, and keep what it returns."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import secrets
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from torch.utils.hooks import RemovableHandle

from zerocopy import patching
from zerocopy._native import _C
from zerocopy._torch import programs
from zerocopy.errors import UnsupportedError
from zerocopy.process import replacements
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.share import call, call_options, earlier
from zerocopy.share.cache.entries import Entry
from zerocopy.share.cache.folder import Cache
from zerocopy.share.cache.new_entry import NewEntry
from zerocopy.share.conditions import generators, recorder
from zerocopy.share.conditions.file_identity import boot
from zerocopy.share.conditions.hashes import Hashes
from zerocopy.share.objects import fingerprint, publish, serialized

_log = logging.getLogger("zerocopy")
_Args = tuple[Any, ...]


class Computation:
    """A call that is made here and recorded."""

    def __init__(
        self, cache: Cache, known_call: call.Call, known: earlier.References, is_patched: bool
    ) -> None:
        self._cache, self._call, self._known = cache, known_call, known
        self._name, self._is_patched = known_call.name, is_patched
        self._is_seeded = call_options.current().generators

    def result(self, function: Any, args: _Args, kwargs: dict[str, Any]) -> Any:
        """Call the function, keep the result and return it: a patched function gets its own object, others a copy."""
        arguments = _Arguments(args, kwargs, self._known)
        begun = time.monotonic()
        with (
            _loaders_that_map(function),
            recorder.Recording(self._call.paths, self._call.modules, self._cache.folder) as recording,
            generators.Use() as use,
            Hashes() as noted,
            _hooks_of_their_own_numbers(),
        ):
            result = _mapping(function)(*args, **kwargs)
        self._seconds = time.monotonic() - begun
        note = f"it uses random numbers ({', '.join(use.names)})" if use.names else ""
        try:
            head = self._head(note or arguments.why_plain(result), use.names)
            return self._kept(result, head, recording, arguments, noted)
        except (UnsupportedError, OSError) as error:
            _log.warning("%s: the result is not kept: %s", self._name, error)
        except Exception as error:  # a program never fails for the cache
            if not self._is_patched:
                raise
            _log.warning("%s: the result is not kept: %s", self._name, error)
            _log.debug("%s", traceback.format_exc())
        return result

    def _head(self, note: str, random: list[str]) -> dict[str, Any]:
        """Return an entry's description of the call. The note says why a program has to make the call itself."""
        return {
            "what": self._name,
            "seconds": self._seconds,
            "note": note,
            "random": random,
            "generators": generators.as_body(generators.states()) if self._is_seeded else None,
            "arguments": list(self._known.entries),
            "layout": None,
            "parts": [],
        }

    def _kept(
        self,
        result: Any,
        head: dict[str, Any],
        recording: recorder.Recording,
        arguments: _Arguments,
        noted: Hashes,
    ) -> Any:
        """Write an entry, and return the caller's result."""
        if head["note"] and self._is_patched:  # so that the next program does not try
            _log.info("%s is called here, and nothing is kept: %s", self._name, head["note"])
            if self._is_complete(head, recording, ()):
                with self._cache.writing(self._call.key, head, 0, 0, ()) as new:
                    new.finish()
            return result
        unchanged = arguments.unchanged()
        for is_plain in (True, False):
            with MappedFiles() as mapped:
                plan = publish.plan_of(result, mapped, unchanged, noted, is_plain)
                if plan is None:
                    continue
                if not self._is_complete(head, recording, plan.pickles):
                    return result
                with contextlib.suppress(*[Exception] * is_plain):  # Python's unpickler has another way
                    return self._written(result, head, plan, plan.is_for_a_copy())
        return result

    def _is_complete(
        self, head: dict[str, Any], recording: recorder.Recording, pickles: tuple[bytes, ...]
    ) -> bool:
        """Add to an entry's head what the call depends on. Return whether the result may be kept."""
        conditions, doubt = recording.conditions(pickles)
        if conditions.unseen and call_options.current().unseen == "refuse":
            doubt = f"it may depend on something unseen ({'; '.join(conditions.unseen)})"
        if doubt:
            _log.info("%s: the result is not kept: %s", self._name, doubt)
            return False
        head |= {
            "conditions": vars(conditions),
            "warnings": recording.messages.warnings,
            "records": recording.messages.records,
        }
        return True

    def _written(self, result: Any, head: dict[str, Any], plan: publish.Plan, is_for_a_copy: bool) -> Any:
        """Write an entry, rebuild the result from it, and return the caller's result."""
        head |= {"layout": plan.layout, "parts": [tuple(part.named()) for part in plan.parts]}
        with self._cache.writing(self._call.key, head, plan.covered, plan.size, plan.contents) as new:
            is_begun = self._is_patched and is_for_a_copy and self._is_begun(new, plan)
            if not is_begun:
                new.write(plan.storages())
                kept = attached(self._cache, new.entry, self._known.arguments)
                new.finish()
            given = result if self._is_patched else kept
        _log.debug("%s: kept as %s", self._name, new.entry.id)
        name = f"{self._call.key}/{new.entry.id}"
        earlier.note(given, name, plan.digest() or fingerprint.digest_of(given) if self._is_patched else None)
        return given

    def _is_begun(self, new: NewEntry, plan: publish.Plan) -> bool:
        """Start a copy of this process that writes the storages, if the result can be rebuilt without their bytes."""
        try:
            attached(self._cache, new.entry, self._known.arguments)
            new.finish_in_copy(plan.storages(), self._seconds)
        except Exception as error:  # whatever a class does with its zeros
            _log.debug("%s: written here: %s", self._name, error)
            return False
        return True


class _Arguments:
    """The arguments of a call: whether it leaves them as they are."""

    def __init__(self, args: _Args, kwargs: dict[str, Any], known: earlier.References) -> None:
        self._all = args, list(kwargs.values())
        self._mutable = call.mutable([*args, *kwargs.values()])
        # The caller gets its own object where an earlier result is part of the result.
        self._own = [value for value in self._mutable if not any(value is each for each in known.arguments)]
        self._earlier = known.arguments
        self._before = fingerprint.digest_of(self._all, thoroughly=False) if self._mutable else None
        self._states = [fingerprint.digest_of(value, thoroughly=False) for value in self._earlier]

    def why_plain(self, result: Any) -> str:
        """Return why a program has to make the call itself, or an empty string."""
        if self._before is not None and fingerprint.digest_of(self._all, thoroughly=False) != self._before:
            return "it changes its arguments"
        if self._own and fingerprint.has_any(result, self._own):
            return "its result has an argument in it"
        return ""

    def unchanged(self) -> dict[int, Any]:
        """Return the earlier results that the call has left as they were: the caller has them."""
        return {
            number: value
            for number, (value, before) in enumerate(zip(self._earlier, self._states, strict=True))
            if before is not None and fingerprint.digest_of(value, thoroughly=False) == before
        }


def attached(cache: Cache, entry: Entry, arguments: list[Any]) -> Any:
    """Return the object of an entry, over its file and others. ``LookupError`` if one of these is another file now."""
    layout = entry.head["layout"]
    within_boot = entry.head["boot"] == boot()
    files = [cache.open_part(part, within_boot) for part in entry.parts]
    parts = [
        (entry.descriptor, entry.base, entry.size),
        *((file.fileno(), *part[2:]) for file, part in zip(files, entry.parts, strict=True)),
    ]
    tables = tuple(layout["mappings"]), tuple(layout["storages"]), tuple(layout["pickle"])
    archive = _C.Archive.open_published(parts, *tables)
    where = layout["skeleton"]
    skeleton = None if where is None else os.pread(entry.descriptor, where[1], entry.base + where[0])
    return serialized.build(archive, skeleton, arguments)


@contextlib.contextmanager
def _loaders_that_map(function: Any) -> Iterator[None]:
    """Replace loaders within a block by ones that map files, so that their weights need not be written again."""
    # To import what these take takes longer than most calls.
    of_export = getattr(replacements.original(function), "__module__", None) == "torch.export"
    export = of_export and programs.has_archives()
    with patching.patched(safetensors="safetensors.torch" in sys.modules, export=export):
        yield


@contextlib.contextmanager
def _hooks_of_their_own_numbers() -> Iterator[None]:
    """Start the numbers of hooks at random within a block: modules keep hooks by number, of all processes."""
    before = RemovableHandle.next_id
    RemovableHandle.next_id = secrets.randbits(62)
    try:
        yield
    finally:
        RemovableHandle.next_id = before


def _mapping(function: Any) -> Any:
    """Return the loader that maps in the place of a function, if there is one."""
    plain = replacements.original(function)
    module = sys.modules.get(getattr(plain, "__module__", None) or "")
    try:
        found = operator.attrgetter(plain.__qualname__)(module)
    except (AttributeError, TypeError):
        return function
    return found if found is not function and replacements.original(found) is plain else function
