"""Opens a file for its tensors, without torch: over a mapping, or in memory of their own."""

from __future__ import annotations

import contextlib
from typing import Any

from zerocopy import _core
from zerocopy.catalogue.files import OpenFile, open_file
from zerocopy.loading import backends


def open_checkpoint(f: Any, is_writable: bool, takes_all: bool) -> tuple[_core.CheckpointFile, Any]:
    """Open a path, a URL, the rest of a file object, or a buffer. Return the listing of an HDF5 file with it.

    With `takes_all`, every tensor will be asked for.
    """
    with contextlib.closing(open_file(f)) as file:
        listing = None
        container = _core.container(file.descriptor, file.path)
        if container in ("", "hdf5"):
            from zerocopy.catalogue import layout  # They take longer to import than most files to map.
            from zerocopy.loading.formats import hdf5

            layout.require_listed(container or layout.container_of(file))
            if _core.hdf5_listing(file.descriptor, file.path) is None:
                listing = hdf5.listing_of_open(file.descriptor, 0, file.path)
        content, strategy, threads = _content(file, is_writable, takes_all)
        return _core.CheckpointFile(content, file.path, is_writable, file.start, strategy, threads), listing


def _content(file: OpenFile, is_writable: bool, takes_all: bool) -> tuple[Any, str, int]:
    """Return the content of a file, how its tensors come to memory, and by how many threads."""
    if isinstance(file.content, int):
        backend = backends.backend_of("auto", None)
        strategy = backends.strategy_for(file.content, backend, windows=not takes_all)
        backends.note(file.path, None, strategy)
        return file.content, strategy.name, strategy.threads
    if takes_all and file.is_far:
        return file.descriptor.file.rest(), "whole", 1  # memory of its own
    return file.content, "pread" if is_writable else "whole", 1
