"""zerocopy.load gives what torch.load gives, for checkpoints of any make-up."""

from __future__ import annotations

import io
from typing import Any

import pytest
import strategies
import torch
from conftest import Saver, saved_bytes, stock_load
from equality import assert_same, untyped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.slow("a random sweep"))])
def test_random_checkpoints_equal_stock_and_the_original(examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategies.checkpoints(), st.integers(2, 5), st.booleans())
    def equals(checkpoint: Any, protocol: int, weights_only: bool) -> None:
        content = saved_bytes(checkpoint, pickle_protocol=protocol)
        loaded = zerocopy.load(content, weights_only=weights_only)
        assert_same(loaded, stock_load(io.BytesIO(content)))
        assert_same(loaded, checkpoint, attributes=False)

    equals()


@BOTH
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_empty_values(save: Saver, protocol: int, weights_only: bool) -> None:
    empty = [b"", bytearray(), "", (), [], {}, set(), torch.Size([])]
    path = save([*empty, {"again": empty}], pickle_protocol=protocol)
    assert_same(zerocopy.load(path, weights_only=weights_only), stock_load(path))


@BOTH
def test_many_names(save: Saver, weights_only: bool) -> None:
    state = {
        f"layer.{i}.weight": torch.full((3,), float(i)) for i in range(700)
    }  # memo and keys beyond a byte
    path = save(state)
    assert_same(zerocopy.load(path, weights_only=weights_only), state)


@BOTH
def test_ties_are_ties_in_memory(save: Saver, weights_only: bool) -> None:
    base = torch.zeros(10)
    path = save(
        {"whole": base, "slice": base[2:5], "again": base, "overlap": base.as_strided((4, 3), (1, 1))}
    )
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert loaded["whole"] is loaded["again"]
    loaded["slice"].fill_(1)
    assert loaded["whole"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert loaded["overlap"][0].tolist() == [0, 0, 1]
    assert len({untyped(tensor)._cdata for tensor in loaded.values()}) == 1


@BOTH
def test_tensors_take_part_in_autograd(save: Saver, weights_only: bool) -> None:
    path = save({"weight": torch.nn.Parameter(torch.ones(3)), "input": torch.arange(3.0)})
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert type(loaded["weight"]) is torch.nn.Parameter
    (loaded["weight"] * loaded["input"]).sum().backward()
    assert loaded["weight"].grad.tolist() == [0, 1, 2]
    torch.optim.SGD([loaded["weight"]], lr=1.0).step()
    assert loaded["weight"].tolist() == [1, 0, -1]
