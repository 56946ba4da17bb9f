"""Every kind of the catalog of `kinds`, written once a module, and allowed to be read. `SAMPLE` has some of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from conftest import outcome
from kinds import CATALOG, Group, Kind

import zerocopy

KINDS = [kind for group in CATALOG for kind in group.kinds]

#: How many kinds the sample has.
SIZE = 40
# Features of a kind, by the words of its name.
_WORDS = {
    "grad": "grad|parameter|hook",
    "attributes": "attribute|slot|state__|defaults|_with_state|extra state",
    "tie": r"several places|\bti(ed|es)|views|again|same|overlapping",
    "cycle": "itself|is its own",
    "container": r"list|dict|tuple|\bset\b|deque|Counter|container|record",
    "storage": r"storage|data\b",
    "view": "transposed|permuted|row|column|stride|conj|negative|imaginary|channels|expanded|one element",
    "empty": "empty|nothing|0-dim|no bytes|without",
    "dtype": "bool|int|float|complex|bits|bfloat|dtype|half",
    "layout": "COO|CS[RC]|BS[RC]|sparse|nested|jagged|meta|quantized|per (tensor|channel)|fake|masked",
    "class": r"Tensor$|module|optimizer|scheduler|namedtuple|Namespace|wrapper|class",
    "reduce": "__|pickle|enum|partial|pattern|[dD]ecimal|generator|Generator|_rebuild",
}


def _features(group: Group, kind: Kind) -> set[str]:
    found = {name for name, words in _WORDS.items() if re.search(words, kind.name)}
    found |= {name for name in ("allow", "expected", "needs", "placed", "same") if getattr(kind, name)}
    return {group.title, f"written by torch.save: {kind.write is torch.save}", *found}


def _pairwise(size: int) -> list[Kind]:
    """Return kinds that show as many pairs of features as `size` kinds can, and at least one of each group.

    The features are the group, the writer (torch.save or another), the options of an entry, and words of its name.
    Each step takes the kind with the most pairs that no kind before it shows. The choice depends on the catalog
    alone, not on the release.
    """
    pairs = {
        kind: {*combinations(sorted(_features(group, kind)), 2)} for group in CATALOG for kind in group.kinds
    }
    chosen: list[Kind] = []
    seen: set[tuple[str, str]] = set()
    for candidates in [group.kinds for group in CATALOG] + [tuple(KINDS)] * (size - len(CATALOG)):
        # A release may lack what a kind needs.
        best = max(candidates, key=lambda kind: (len(pairs[kind] - seen), not kind.needs, kind not in chosen))
        chosen.append(best)
        seen |= pairs[best]
    return [kind for kind in KINDS if kind in chosen]


#: Kinds for tests that cannot afford all.
SAMPLE = _pairwise(SIZE)


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
