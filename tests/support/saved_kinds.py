"""Every kind of the catalog of `kinds`, written once a module, and allowed to be read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import outcome
from kinds import CATALOG, Kind

import zerocopy

KINDS = [kind for group in CATALOG for kind in group.kinds]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Any]]:
    """Return a function that writes each kind once: its path, or the error of torch.save."""
    folder = tmp_path_factory.mktemp("objects")
    known: dict[str, Any] = {}

    def saved(kind: Kind) -> Any:
        if kind.name not in known:
            # Always one file name: torch writes it into the file, where it moves what follows.
            path = folder / str(len(known)) / "checkpoint.pt"
            path.parent.mkdir()
            torch.manual_seed(0)
            made = kind.make()
            known[kind.name] = outcome(lambda: [kind.write(made, path), path][1])
        return known[kind.name]

    yield saved
    if torch.distributed.is_initialized():  # by the entry of DTensor
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def allowed(kind: Kind) -> Iterator[None]:
    """Allow what an entry wants to have allowed, to both readers."""
    names = kind.allow() if kind.allow else []
    torchs = getattr(torch.serialization, "safe_globals", None)
    with zerocopy.safe_globals(names), torchs(names) if torchs else contextlib.nullcontext():
        yield
