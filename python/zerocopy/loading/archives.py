"""From an open archive to the object that was saved."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from typing import Any

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import context
from zerocopy.errors import Error
from zerocopy.loading.device import staging
from zerocopy.loading.objects import allowlist, builder, stubs
from zerocopy.loading.objects.global_names import Name
from zerocopy.loading.options import LoadOptions
from zerocopy.loading.readers import unpickler

Allow = Callable[[list[Name]], dict[Name, Any]]


@context.outside_dispatch_modes
def load(archive: _C.Archive, options: LoadOptions) -> Any:
    """Return the object that is in an open archive, with real tensors also where fake ones are made."""
    if options.unknown == "stub" or options.weights_only or not archive.is_pickled:
        return _load_safely(archive, options, *policy_of(options))
    return _load_trusting(archive, options)


def policy_of(options: LoadOptions) -> tuple[Allow, Any]:
    """Return the function that the safe machine asks about globals, and the builder of its objects."""
    return (stubs.allow, stubs.BUILDER) if options.unknown == "stub" else (allowlist.resolve, builder)


def _load_safely(archive: _C.Archive, options: LoadOptions, allow: Allow, objects: Any) -> Any:
    destination = staging.destination_of(options.map_location, is_legacy=archive.container == "legacy")
    return archive.load(allow, destination, options.encoding, objects, options.by_name)


def refuse_all(names: list[Name]) -> dict[Name, Any]:
    """Raise ``pickle.UnpicklingError`` for any global that the machine does not build itself."""
    if names:
        raise pickle.UnpicklingError(f"expected only globals that the machine builds, found {names[0]!r}")
    return {}


def _load_trusting(archive: _C.Archive, options: LoadOptions) -> Any:
    map_location, pickle_args = options.map_location, options.pickle_args
    pickle_module = options.pickle_module or pickle
    base = pickle_module.Unpickler
    if base is unpickler.PickleUnpickler and list(pickle_args) == ["encoding"] and not callable(map_location):
        # Most checkpoints name nothing that could run code. The safe machine then gives the same result, many
        # times faster. A failed attempt is repeated by pickle, so no callable may have been called.
        with contextlib.suppress(Error, pickle.UnpicklingError):
            return _load_safely(archive, options, refuse_all, builder)
    unpickler_class = unpickler.unpickler_of(base)
    file = io.BytesIO(archive.pickle())
    with _torch.loading_to(map_location):
        unpickling = unpickler_class(file, archive, map_location=map_location, **pickle_args)
        try:
            result = unpickling.load()
        except Exception:
            archive.require_whole_pickle()  # A damaged or cut pickle is a FormatError.
            raise
        unpickling.read_storages()
    return result
