"""Hostile files of before PyTorch 1.6: wrong parts, payloads, numbers, and every cut and turned bit of a good one."""

from __future__ import annotations

import collections
import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import assembler
import hostile
import pytest
import test_hostile_cuts as cuts
import torch
from assembler import Code, call, code, name, persistent
from conftest import outcome, stock_load
from equality import assert_same
from legacy_files import MAGIC, SYS_INFO, checkpoint, data, storage, tensor

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])


def refused(tmp_path: Path, content: bytes, kind: Any = zerocopy.FormatError, **options: Any) -> Exception:
    error = hostile.refusal(tmp_path / "hostile.pt", content, **options)
    assert isinstance(error, kind), repr(error)
    return error


def payload(canary: Path) -> Code:
    """A call that leaves a trace."""
    return call(name("builtins", "open"), str(canary), "w")


# ---------------------------------------------------------------------------------- cuts and turned bits


BODY = """
import json, resource, signal
import test_hostile_legacy as tests
torch.set_num_threads(1)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
signal.alarm(100)
tests.main()
"""


def main() -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    content = cuts.small(_use_new_zipfile_serialization=False)
    for what, changed in cuts.mutations(content):
        try:
            judged = cuts.judge(changed)
            assert judged != "loaded" or not what.startswith("cut"), "a cut file loads"
            outcomes[judged] += 1
        except BaseException as error:
            failures.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    print(json.dumps([outcomes, failures, len(content)]))


def test_every_cut_and_every_bit() -> None:
    outcomes, failures, size = json.loads(hostile.in_child(BODY))
    assert not failures, f"{len(failures)}: " + "\n".join(failures[:20])
    assert sum(outcomes.values()) == 10 * size
    assert outcomes["refused"] > size


def test_every_cut_of_a_trusted_file() -> None:
    """The pickle runs, but a file that has lost its end never gives a value."""
    content = cuts.small(_use_new_zipfile_serialization=False)
    for at in range(len(content)):
        with pytest.raises(hostile.CLEAN):
            zerocopy.load(content[:at], weights_only=False)
    assert_same(zerocopy.load(content, weights_only=False), stock_load(io.BytesIO(content)))


# --------------------------------------------------------------------------------------- wrong parts

FAULTS: dict[str, dict[str, Any]] = {
    "another protocol version": {"version": 1002},
    "a version of many bytes": {"version": 2**80},
    "a version that is text": {"version": "1001"},
    "a version in a tuple": {"version": (1001,)},
    "the list of keys is an int": {"keys": 7},
    "the list of keys is a tuple": {"keys": code(("0",))},
    "the list of keys is text": {"keys": "0"},
    "the list of keys has an int": {"keys": (0,)},
    "the list of keys has a persistent id": {"keys": Code(b"]" + storage() + b"a")},
    "a storage that is never filled": {"keys": (), "storages": ()},
    "an unknown key": {"keys": ("0", "1"), "storages": [data(), data()]},
    "only an unknown key": {"keys": ("1",)},
    "a key twice": {"keys": ("0", "0"), "storages": [data(), data()]},
    "8 elements for 16": {"storages": [data(count=8)]},
    "17 elements for 16": {"storages": [data(count=17)]},
    "-1 elements for 16": {"storages": [data(count=-1)]},
    "0 elements for 16": {"storages": [data(count=0)]},
    "2^62 elements for 16": {"storages": [data(count=2**62)]},
    "a number of bytes that wraps": {"storages": [data(count=2**62 + 16)]},
    "no number of elements": {"storages": [b""]},
    "half of a number of elements": {"storages": [b"\x10\0\0\0"]},
    "a byte too few": {"storages": [data()[:-1]]},
    "an object with data it does not have": {"obj": {"weight": 1}},
}


@BOTH
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_parts(tmp_path: Path, fault: str, weights_only: bool) -> None:
    refused(tmp_path, checkpoint(**FAULTS[fault]), weights_only=weights_only)


OBJECTS: dict[str, Any] = {
    "more elements than memory": storage(numel=2**40),
    "-16 elements": storage(numel=-16),
    "elements whose bytes wrap": storage(numel=2**62),
    "more elements than an integer holds": storage(numel=2**63),
    "text for a number of elements": storage(numel="16"),
    "a view beyond its storage": storage(view=("1", 10, 8)),
    "a view that begins beyond": storage(view=("1", 17, 0)),
    "a view before its storage": storage(view=("1", -1, 8)),
    "a view of -1 elements": storage(view=("1", 0, -1)),
    "a view whose end wraps": storage(view=("1", 1, 2**63 - 1)),
    "a view whose bytes wrap": storage(view=("1", 2**62, 16)),
}


@BOTH
@pytest.mark.parametrize("fault", OBJECTS)
def test_wrong_storages(tmp_path: Path, fault: str, weights_only: bool) -> None:
    """Refused before anything of such a size is made."""
    over = tensor(OBJECTS[fault], size=(8,))
    refused(tmp_path, checkpoint({"weight": over}), weights_only=weights_only)


@BOTH
@pytest.mark.parametrize("shape", [{"size": (17,)}, {"offset": 1}, {"stride": (2,)}, {"offset": -1}], ids=str)
def test_tensor_larger_than_its_storage(tmp_path: Path, shape: dict[str, Any], weights_only: bool) -> None:
    refused(tmp_path, checkpoint({"weight": tensor(**shape)}), weights_only=weights_only)
    part = storage(view=("1", 0, 8))  # reaches into the rest of the storage it is a view of
    refused(tmp_path, checkpoint({"weight": tensor(part, size=(9,))}), weights_only=weights_only)


@BOTH
@pytest.mark.parametrize(
    "id",
    [
        assembler.storage(),
        persistent("storage"),
        persistent("strange", 1, 2, 3, 4, 5),
        persistent(),
        Code(code("text") + b"Q"),
        persistent("storage", name("torch", "FloatStorage"), "0", "cpu", 16, None, None),
    ],
    ids=["five items", "one item", "strange", "empty", "text", "seven items"],
)
def test_other_persistent_ids(tmp_path: Path, id: Code, weights_only: bool) -> None:
    kinds = (zerocopy.FormatError, pickle.UnpicklingError)
    refused(tmp_path, checkpoint({"weight": tensor(id)}), kinds, weights_only=weights_only)


@pytest.mark.parametrize("view", [("1",), ("1", 0, 8, 0), ["1", 0, 8], 7, ("1", "0", 8), (1, 0, 8)], ids=str)
def test_strange_view_metadata(tmp_path: Path, view: Any) -> None:
    refused(tmp_path, checkpoint({"weight": tensor(storage(view=view), size=(8,))}))


DISAGREEING = {
    "type": (storage(), storage(kind="IntStorage")),
    "size": (storage(), storage(numel=15)),
    "location": (storage(), storage(location="cuda:0")),
    "part": (storage(view=("1", 0, 8)), storage(view=("1", 8, 8))),
    "root": (storage(view=("0", 0, 8)), storage()),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_uses_of_a_key_that_disagree(tmp_path: Path, what: str) -> None:
    obj = [tensor(over, size=(8,)) for over in DISAGREEING[what]]
    refused(tmp_path, checkpoint(obj))


@BOTH
def test_zip_behind_a_legacy_file(tmp_path: Path, weights_only: bool) -> None:
    """torch looks at the first bytes, zip readers and scanners at the last: two files in one."""
    refused(tmp_path, checkpoint() + assembler.checkpoint(), weights_only=weights_only)


def test_magic_number_of_another_spelling(tmp_path: Path) -> None:
    wrong = (MAGIC + 1, -MAGIC, str(MAGIC), [MAGIC], float(MAGIC))
    for magic in wrong:
        refused(tmp_path, checkpoint(magic=magic), (zerocopy.FormatError, zerocopy.UnsupportedError))


# ------------------------------------------------------------------------------------------- payloads


PLACES = ["magic", "version", "sys_info", "obj", "keys"]


@pytest.mark.parametrize("place", PLACES)
def test_payload_in_any_part(tmp_path: Path, place: str) -> None:
    """Also in the magic number, which tools that look for known bytes do not expect to be made by a call."""
    canary = tmp_path / "canary"
    value = {
        "magic": call(name("builtins", "eval"), f"open({str(canary)!r}, 'w') and {MAGIC}"),
        "obj": {"weight": tensor(), "extra": payload(canary)},
        "sys_info": {**SYS_INFO, "extra": payload(canary)},
        "keys": Code(b"](" + payload(canary) + code("0") + b"e"),
    }.get(place, payload(canary))
    content = checkpoint(**{place: value})
    assert not canary.exists()
    kinds = (pickle.UnpicklingError, *(zerocopy.FormatError,) * (place == "version"))
    error = refused(tmp_path, content, kinds)
    assert place in ("version", "keys") or "open" in str(error) or "eval" in str(error)
    assert not canary.exists()


@pytest.mark.parametrize("place", ["magic", "version", "sys_info", "keys"])
def test_only_the_object_may_run_code(tmp_path: Path, place: str) -> None:
    """With ``weights_only=False`` torch runs every part. The others are data for every writer there ever was."""
    canary = tmp_path / "canary"
    content = checkpoint(**{place: payload(canary)})
    refused(tmp_path, content, hostile.CLEAN, weights_only=False)
    assert not canary.exists()


def test_payload_of_a_damaged_file(tmp_path: Path) -> None:
    """What a file names outranks what is wrong with it behind that."""
    canary = tmp_path / "canary"
    content = checkpoint({"extra": payload(canary)})
    for end in (len(content) - 1, content.index(b"tR") + 2):
        error = refused(tmp_path, content[:end], pickle.UnpicklingError)
        assert "open" in str(error) and not canary.exists()


def test_payload_runs_once_with_the_file_trusted(tmp_path: Path) -> None:
    """The pickle is read twice, for its storages first, and run once."""
    trace = tmp_path / "trace"
    write = call(name("builtins", "eval"), f"open({str(trace)!r}, 'a').write('x')")
    content = checkpoint({"extra": write, "weight": tensor()})
    assert zerocopy.load(content, weights_only=False)["extra"] == 1
    assert trace.read_text() == "x"


def test_bare_pickle(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    error = refused(tmp_path, assembler.pickle(payload(canary)), pickle.UnpicklingError)
    assert "open" in str(error) and not canary.exists()


def test_module_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch opens the source of the class, and may write a patch file that the file chooses the name of."""
    monkeypatch.chdir(tmp_path)
    linear = name("torch.nn.modules.linear", "Linear")
    id = persistent("module", linear, str(tmp_path / "source.py"), "class Linear: pass")
    refused(tmp_path, checkpoint({"class": id, "weight": tensor()}), pickle.UnpicklingError)
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(torch.nn.Linear, "dump_patches", True)
    loaded = zerocopy.load(checkpoint({"class": id, "weight": tensor()}), weights_only=False)
    assert loaded["class"] is torch.nn.Linear
    assert set(tmp_path.iterdir()) == before


@BOTH
def test_many_keys_of_no_elements(tmp_path: Path, weights_only: bool) -> None:
    """Time and memory stay in proportion to the file."""
    keys = [str(i) for i in range(5000)]
    obj = [storage(key, numel=0) for key in keys]
    content = checkpoint(obj, keys=keys, storages=[struct.pack("<q", 0)] * len(keys))
    assert len(zerocopy.load(content, weights_only=weights_only)) == len(keys)
    refused(tmp_path, content[:-1], weights_only=weights_only)


@pytest.mark.parametrize("key", ["\ud800", "\x1b[31m", "a\nb", "\u202e", ""], ids=ascii)
def test_strange_keys(key: str) -> None:
    """A key is any text. What shows it to people escapes it."""
    content = checkpoint({"weight": tensor(storage(key))}, keys=(key,))
    loaded = outcome(lambda: zerocopy.load(content))
    shown = outcome(lambda: str(zerocopy.explain(content)))
    for found in (loaded, shown):
        assert found[0] == "value" or issubclass(found[1], hostile.CLEAN), found
    assert str(shown[-1]).replace("\n", "").isprintable()
    assert "a\nb" not in str(shown[-1])
