"""zerocopy.load gives what torch.load gives, for checkpoints of any make-up."""

from __future__ import annotations

import io
from typing import Any

import pytest
import strategies
from conftest import saved_bytes, stock_load
from equality import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zerocopy


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
