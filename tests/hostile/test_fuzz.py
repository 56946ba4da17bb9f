"""The Python fuzz targets (tests/fuzz/*_fuzz.py): their seeds, what they have found, and that they find."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

import engine  # noqa: E402
import law_fuzz  # noqa: E402
import load_fuzz  # noqa: E402
import reduce  # noqa: E402

TARGETS = {target.name: target for target in (law_fuzz.TARGET, load_fuzz.TARGET)}

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_seeds_are_good(target: engine.Target) -> None:
    """Most of them load: what no target gets past teaches it nothing."""
    outcomes = [target.check(data) for data in target.seeds().values()]
    assert outcomes.count("loaded") > 0.8 * len(outcomes)


def test_kept_findings_stay_mended() -> None:
    for name, target in TARGETS.items():
        for path in (FUZZ / "crashes" / name).glob("*"):
            failure = engine.alone(target, path.read_bytes())
            assert failure is None, f"{path}: {failure.report}"


@pytest.mark.parametrize("inputs", [60, pytest.param(1500, marks=pytest.mark.slow("1500 inputs a target"))])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_changed_seeds_do_no_harm(target: engine.Target, inputs: int) -> None:
    """Each input is made of the seed of the run and its number: a second run is the same."""
    seeds = list(target.seeds().values())

    def body() -> None:
        for i in range(inputs):
            engine.allow_time()
            print(f"input {i}", file=sys.stderr, flush=True)
            target.check(target.made(3, i, seeds))

    failure = engine.in_child(body)
    assert failure is None, failure.report[-5000:]
    assert target.made(3, 7, seeds) == target.made(3, 7, seeds)


def _broken(data: bytes) -> str:
    """Do what a target must never be seen to do, if the input has a letter for it."""
    if b"C" in data:
        os.abort()
    if b"H" in data:
        all(itertools.repeat(True))  # for ever
    if b"M" in data:
        bytearray(2 * engine.MEMORY)
    if b"X" in data:
        raise KeyError("X")
    return "fine"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[engine.Target]:
    monkeypatch.setattr(engine, "SECONDS", 0.2)
    monkeypatch.setattr(engine, "MOST", 4)

    def mutate(data: bytes, rng: random.Random) -> bytes:
        return data + bytes([rng.randrange(ord("A"), ord("Z") + 1)])

    yield engine.Target("broken", lambda: {"seed": b"a" * 50}, mutate, _broken)


@pytest.mark.slow("reduces inputs for up to a minute")
def test_findings_are_made_small_and_kept(broken: engine.Target, tmp_path: Path) -> None:
    found = engine.fuzz(broken, 60, seed=5, kept=tmp_path)
    kept = {path.read_bytes() for path in tmp_path.iterdir()}
    assert {b"C", b"H", b"M", b"X"} == kept and found == 4
    kinds = {data: engine.alone(broken, data) for data in kept}
    assert {failure.kind.partition(" at ")[0] for failure in kinds.values() if failure} == {
        "SIGABRT", "too much time", "MemoryError", "KeyError",
    }  # fmt: skip


@pytest.mark.slow("reduces an input for five seconds")
def test_archives_are_reduced_as_archives() -> None:
    """Taking bytes out of a zip breaks it; records and opcodes can go."""
    data = load_fuzz.seeds()["zip two_storages"]
    small = reduce.reduced(data, lambda trial: load_fuzz.check(trial) == "loaded", 5)
    assert load_fuzz.check(small) == "loaded"
    assert len(small) < len(data) / 2
