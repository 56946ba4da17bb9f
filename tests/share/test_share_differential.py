"""Calls by ``share`` give what the calls themselves give: the whole catalog of tests/share_catalog.

``scripts/share-differential`` runs it as a program. test_share.py runs a sample in its own process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import wrong_shares
from descriptions import describe
from share_catalog import CASES
from share_differential import Harness, Report, differences

pytestmark = pytest.mark.slow("each of 344 calls runs in four processes")

#: Objects that outlive a test.
KEPT: dict[Any, Any] = {}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    made = Harness(tmp_path_factory.mktemp("differential"))
    yield made
    made.close()


@pytest.mark.parametrize("theme", sorted({name.partition("/")[0] for name in CASES}))
def test_calls_by_share_are_the_same(harness: Harness, theme: str) -> None:
    cases = [case for name, case in CASES.items() if name.startswith(f"{theme}/")]
    reports = [harness.check(case) for case in cases if case.why_skipped() is None]
    assert not any(report.problems for report in reports), "\n".join(
        "\n".join([report.name, *report.problems]) for report in reports if report.problems
    )


def test_catalog_has_at_least_300_calls() -> None:
    assert len(CASES) >= 300
    assert sum(case.why_skipped() is None for case in CASES.values()) >= 120


# ------------------------------------------------------------------------------------- the test can fail


@pytest.mark.parametrize(
    ("wrong", "name", "said"), wrong_shares.ALL, ids=[wrong.__name__ for wrong, *_ in wrong_shares.ALL]
)
def test_wrong_share_is_noticed(harness: Harness, wrong: Any, name: str, said: str) -> None:
    report: Report = harness.check(CASES[name], f"wrong_shares:{wrong.__name__}")
    assert said in "\n".join(report.problems), report


def test_end_of_a_child_is_reported(harness: Harness) -> None:
    def prepare(folder: Any) -> None:
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


def test_descriptions_of_different_objects_differ() -> None:
    for number, (one, other) in enumerate(PAIRS):
        gc.collect()
        assert describe(one()) == describe(one()) and describe(other()) == describe(other()), number
        assert differences(describe(one()), describe(other())), number


def test_descriptions_leave_memory_as_it_was() -> None:
    found = _views()
    describe(found)
    assert torch.equal(found[0], torch.arange(20.0)) and torch.equal(found[2], found[0])
