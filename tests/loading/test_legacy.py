"""Files of before PyTorch 1.6, which torch.save still writes when told to: what every one of them loads as."""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import legacy_files
import pytest
import torch
from conftest import Child, Saver, outcome, saved_bytes, stock_load
from equality import assert_same
from kinds import Kind
from legacy_files import tensor
from saved_kinds import KINDS, SAMPLE, allowed

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
LEGACY = {"_use_new_zipfile_serialization": False}
BASE = torch.arange(2000.0)
STATE: dict[str, Any] = {
    "weight": BASE,
    "tied": BASE[10:30],
    "strided": BASE[:12].view(3, 4).t(),
    "expanded": torch.ones(1).expand(7),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(3, 0),
    "ints": torch.arange(7),
    "twice": [torch.ones(3, dtype=torch.int16)] * 2,
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "numbers": (1, 2.5, -(2**70), None, True, "text"),
    "ordered": collections.OrderedDict(a=[1], b={}),
}


def legacy_bytes(obj: Any, **kwargs: Any) -> bytes:
    return saved_bytes(obj, **LEGACY, **kwargs)


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE, **LEGACY)


def check(content: bytes, **kwargs: Any) -> Any:
    """Compare with stock; weights_only takes at least the files that it takes in this release."""
    expected = stock_load(io.BytesIO(content), **kwargs)
    assert_same(zerocopy.load(content, weights_only=False, **kwargs), expected)
    safe = outcome(lambda: zerocopy.load(content, **kwargs))
    if safe[0] == "value":
        assert_same(safe[1], expected)
    else:
        stock = outcome(lambda: torch.load(io.BytesIO(content), weights_only=True, **kwargs))
        assert stock[0] == "error", f"stock weights_only takes what is refused here: {safe}"
    return expected


# ------------------------------------------------------------------------------------------- sources


SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "file": lambda path: path.open("rb"),
    "unbuffered": lambda path: path.open("rb", buffering=0),
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "bytes": lambda path: path.read_bytes(),
    "memoryview": lambda path: memoryview(b"before" + path.read_bytes())[6:],
}


@BOTH
@pytest.mark.parametrize("kind", ["file", "unbuffered", "BytesIO"])
def test_checkpoints_back_to_back(tmp_path: Path, kind: str, weights_only: bool) -> None:
    """Each load leaves the file object right behind what it read, as torch.load does."""
    objects = [STATE, [torch.arange(3)], 7, {"weight": torch.ones(5, dtype=torch.uint8)}]
    parts = [b"bytes before", *map(legacy_bytes, objects), b"bytes behind"]
    whole = tmp_path / "several.bin"
    whole.write_bytes(b"".join(parts))
    with SOURCES[kind](whole) as ours, io.BytesIO(whole.read_bytes()) as stock:
        assert ours.read(12) == stock.read(12) == b"bytes before"
        for _ in objects:
            assert_same(zerocopy.load(ours, weights_only=weights_only), stock_load(stock))
            assert ours.tell() == stock.tell()
        assert ours.read() == b"bytes behind"


@BOTH
def test_pickles_larger_than_a_window(tmp_path: Path, weights_only: bool) -> None:
    """The object and the list of keys are read in growing pieces: neither may end where a piece does."""
    state = {f"layer.{i}.{'x' * 50}": torch.full((2,), i) for i in range(3000)}
    path = tmp_path / "large.pt"
    torch.save([state, "y" * 300_000], path, **LEGACY)
    assert_same(zerocopy.load(path, weights_only=weights_only), stock_load(path))


def test_pickles_about_as_large_as_a_window() -> None:
    for size in (*range(940, 1030, 7), 4096, *range(65_400, 65_600, 7), 262_144):
        content = legacy_bytes(["x" * size, torch.ones(2)])
        assert_same(zerocopy.load(content), stock_load(io.BytesIO(content)))


# -------------------------------------------------------------------------------------------- objects


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("obj", [STATE, ["text", 2**70, True, {}]], ids=["tensors", "plain"])
def test_pickle_protocols(protocol: int, obj: Any) -> None:
    """The text opcodes of protocols 0 and 1 are for trusted files; torch cannot read its own ids in protocol 0."""
    saved = outcome(lambda: legacy_bytes(obj, pickle_protocol=protocol))
    if saved[0] == "error":
        pytest.skip(f"stock torch cannot save it: {saved[2]}")
    stock = outcome(lambda: stock_load(io.BytesIO(saved[1])))
    trusting, safe = (outcome(lambda w=w: zerocopy.load(saved[1], weights_only=w)) for w in (False, True))
    if stock[0] == "value":
        assert_same(trusting[1], stock[1])
    else:
        assert protocol == 0 and trusting[1] is pickle.UnpicklingError, trusting
    if safe[0] == "value":
        assert_same(safe[1], stock[1])
    else:
        assert protocol < 2 and safe[1] is zerocopy.UnsupportedError, safe


@BOTH
def test_strings_of_python_2(weights_only: bool) -> None:
    """Keys, locations and type names may be bytes strings, which `encoding` decodes."""

    def old(content: bytes) -> legacy_files.Code:
        return legacy_files.Code(b"U" + bytes([len(content)]) + content)

    named = legacy_files.name("torch", "FloatStorage")
    over = legacy_files.persistent(old(b"storage"), named, old(b"0"), old(b"cpu"), 16, None)
    opcodes = legacy_files.Code(
        b"}(" + old("näme".encode("latin-1")) + tensor(over) + old(b"u") + old(b"v") + b"u"
    )
    content = legacy_files.checkpoint(opcodes, keys=legacy_files.Code(b"]" + old(b"0") + b"a"))
    for encoding in ("latin-1", "bytes"):
        stock = stock_load(io.BytesIO(content), encoding=encoding)
        loaded = zerocopy.load(content, encoding=encoding, weights_only=weights_only)
        assert_same(loaded, stock)
    with pytest.raises(UnicodeDecodeError if not weights_only else zerocopy.FormatError):
        zerocopy.load(content, weights_only=weights_only)


@BOTH
def test_claim_to_be_big_endian(weights_only: bool) -> None:
    """torch wrote and reads little-endian data whatever sys_info says."""
    content = legacy_files.checkpoint(sys_info={**legacy_files.SYS_INFO, "little_endian": False})
    assert_same(zerocopy.load(content, weights_only=weights_only), stock_load(io.BytesIO(content)))


NEW = """
import sys, torch, zerocopy
from zerocopy import _torch
for path in sys.argv[1:]:
    for weights_only in (True, False):
        tensor = zerocopy.load(path, weights_only=weights_only)["a"]
        assert len(_torch.untyped_of(tensor).new()) == 0
"""


def test_storage_makes_a_new_one(save: Saver, forked: Child) -> None:
    """``UntypedStorage.new`` of a storage without an allocator ends the process."""
    done = forked(NEW, save({"a": torch.ones(3)}), save({"a": torch.ones(3)}, "legacy.pt", **LEGACY))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kinds", [SAMPLE, pytest.param(KINDS, marks=pytest.mark.slow("every kind"))], ids=["sample", "all"]
)
def test_kinds_of_objects(kinds: list[Kind]) -> None:
    offenders = []
    for kind in kinds:
        if kind.write is not torch.save or kind.same or not kind.is_there():
            continue
        with allowed(kind):
            content = outcome(lambda k=kind: legacy_bytes(k.make()))[1]
            if outcome(lambda c=content: stock_load(io.BytesIO(c)))[0] == "value":
                found = outcome(lambda c=content: check(c))
                offenders += [(kind.name, *found)] * (found[0] == "error")
    assert not offenders, offenders
