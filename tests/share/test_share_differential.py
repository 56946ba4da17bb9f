"""Calls through the model server give what the calls themselves give: a sample of the catalog of tests/share_catalog.

``scripts/share-differential`` runs the whole catalog.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import share_differential
import torch
from descriptions import describe
from share_catalog import CASES, Case
from share_differential import Harness, Report, differences

# One of so many cases, besides those that are always run.
EVERY = 12


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    made = Harness(tmp_path_factory.mktemp("differential"))
    yield made
    made.close()


@pytest.mark.parametrize("case", share_differential.sample(EVERY), ids=lambda case: case.name)
def test_call_through_the_server_is_the_same(harness: Harness, case: Case) -> None:
    why = case.why_skipped()
    if why is not None:
        pytest.skip(why)
    report = harness.check(case)
    assert not report.problems, f"{case.name}:\n" + "\n".join(report.problems)


def test_catalog_has_at_least_120_calls() -> None:
    assert len(CASES) >= 120
    assert sum(case.why_skipped() is None for case in CASES.values()) >= 120


# ------------------------------------------------------------------------------------- the test can fail

# A fault of a wrong server, the case that must detect it, and a part of its message.
KEPT: dict[Any, Any] = {}


def merged(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give equal tensors one storage."""
    first, *others = function(*args, **kwargs)
    return [first, *(other.set_(first) if torch.equal(first, other) else other for other in others)]


def without_gradients(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Lose ``.grad``."""
    found = function(*args, **kwargs)
    for tensor in found.values():
        tensor.grad = None
    return found


def untied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give each tensor a storage of its own."""
    return {name: tensor.clone() for name, tensor in function(*args, **kwargs).items()}


def stale(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the same for ever: a file holds the first answer."""
    path = Path(args[0]).parent / "kept"
    if not path.exists():
        torch.save(function(*args, **kwargs), path)
    return torch.load(path)


def seeded(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw the same numbers for every seed, and leave the generator where it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return function(*args, **kwargs)


def written(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Change one element."""
    found = function(*args, **kwargs)
    found[0].view(-1)[77] += 1
    return found


def aliased_in_memory(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give equal tensors storages of their own over one memory."""
    first, *others = function(*args, **kwargs)
    memory = numpy.array(first.numpy())
    return [torch.from_numpy(memory) if torch.equal(first, other) else other for other in (first, *others)]


def refusing(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise an exception of another type."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(str(error)) from None


WRONG = [
    (merged, "tensors/equal_contents_apart", "result[1], storage\n        expected: of its own"),
    (aliased_in_memory, "tensors/equal_contents_apart", "write to result[0]\n        expected: nothing"),
    (without_gradients, "tensors/gradients_of_leaves", "result['weight'].grad"),
    (untied, "tensors/equal_contents_with_ties", "expected: the same object as result['a']"),
    (stale, "sources/newest_of_a_pattern", "server 2 differs from plain 2"),
    (seeded, "seeds/seed_as_a_part_of_the_call", "generator of torch"),
    (written, "tensors/equal_contents_apart", "result[0], values"),
    (refusing, "objects/exception_of_its_own_class", "found:    raises builtins.RuntimeError"),
]


@pytest.mark.parametrize(("wrong", "name", "said"), WRONG, ids=[wrong.__name__ for wrong, *_ in WRONG])
def test_wrong_server_is_noticed(harness: Harness, wrong: Any, name: str, said: str) -> None:
    report: Report = harness.check(CASES[name], f"test_share_differential:{wrong.__name__}")
    assert said in "\n".join(report.problems), report


def test_end_of_a_child_is_reported(harness: Harness, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        raise AssertionError

    case = CASES["tensors/scalars"]._replace(name="tensors/absent", prepare=prepare)
    (problem,) = harness.check(case).problems
    assert "preparation ended with status 1" in problem and "KeyError" in problem


# ------------------------------------------------------------------------------------- the descriptions


def _views() -> Any:
    base = torch.arange(20.0)
    return [base, base[3:], base.clone()]


def _overlapping(offset: int) -> Any:
    buffer = bytearray(100)
    KEPT[offset] = buffer
    return [
        torch.frombuffer(buffer, dtype=torch.uint8),
        torch.frombuffer(buffer, dtype=torch.uint8, offset=offset),
    ]


def _with_grad(value: float) -> Any:
    tensor = torch.ones(3, requires_grad=True)
    tensor.grad = torch.full((3,), value)
    return tensor


def _one(is_one: bool) -> Any:
    items = [1]
    return [items, items if is_one else [1]]


def _inference(is_one: bool) -> Any:
    with torch.inference_mode(is_one):
        return torch.ones(3)


PAIRS = [
    (lambda: torch.ones(3), lambda: torch.ones(3, dtype=torch.float64)),
    (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2).t()),
    (lambda: _views(), lambda: [tensor.clone() for tensor in _views()]),
    (lambda: _overlapping(1), lambda: _overlapping(2)),
    (lambda: _with_grad(1.0), lambda: _with_grad(2.0)),
    (lambda: _one(True), lambda: _one(False)),
    (lambda: _inference(True), lambda: _inference(False)),
    (lambda: torch.ones(3, requires_grad=True), lambda: torch.ones(3)),
    (lambda: torch.nn.Parameter(torch.ones(3)), lambda: torch.ones(3, requires_grad=True)),
    (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
    (lambda: numpy.arange(3), lambda: numpy.arange(3.0)),
    (lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2)),
    (lambda: torch.nn.Linear(1, 1, device="meta"), lambda: torch.nn.Linear(1, 1, device="meta").eval()),
    (lambda: torch.zeros(10)[:3], lambda: torch.zeros(3)),
]


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_descriptions_of_different_objects_differ(pair: Any) -> None:
    one, other = pair
    gc.collect()
    assert describe(one()) == describe(one()) and describe(other()) == describe(other())
    assert differences(describe(one()), describe(other()))


def test_descriptions_leave_memory_as_it_was() -> None:
    found = _views()
    describe(found)
    assert torch.equal(found[0], torch.arange(20.0)) and torch.equal(found[2], found[0])
