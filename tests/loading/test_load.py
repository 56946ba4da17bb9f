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

relaxed = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
BOTH = pytest.mark.parametrize("weights_only", [True, False])


@BOTH
@relaxed
@given(checkpoint=strategies.checkpoints(), protocol=st.integers(2, 5))
def test_equals_stock_and_the_original(weights_only: bool, checkpoint: Any, protocol: int) -> None:
    content = saved_bytes(checkpoint, pickle_protocol=protocol)
    loaded = zerocopy.load(content, weights_only=weights_only)
    assert_same(loaded, stock_load(io.BytesIO(content)))
    assert_same(loaded, checkpoint, attributes=False)


@BOTH
@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_every_dtype_of_the_release(save: Saver, dtype: torch.dtype, weights_only: bool) -> None:
    vector = strategies.filled(dtype, 24, seed=1)
    path = save(
        {"whole": vector, "scalar": vector[3], "part": vector[4:20].view(4, 4).t(), "empty": vector[:0]}
    )
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))
    assert loaded["part"].stride() == (1, 4)


@BOTH
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(save: Saver, protocol: int, weights_only: bool) -> None:
    tensor = torch.arange(6.0)
    tied = [tensor, tensor[2:], b"\x00\xff" * 300, "\N{SNOWMAN}" * 300, 2**70, -1, {1, "x"}, (1, 2, 3, 4)]
    path = save({"a": tied, "b": tied}, pickle_protocol=protocol, _use_new_zipfile_serialization=True)
    assert_same(zerocopy.load(path, weights_only=weights_only), stock_load(path))


@BOTH
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("empty", [b"", bytearray(), "", (), [], {}, set(), torch.Size([])], ids=repr)
def test_empty_values(save: Saver, empty: Any, protocol: int, weights_only: bool) -> None:
    path = save([empty, {"again": empty}], pickle_protocol=protocol)
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
def test_containers_that_hold_themselves(save: Saver, weights_only: bool) -> None:
    circle: dict[str, Any] = {"weight": torch.ones(2), "list": []}
    circle["list"] += [circle, circle["list"], (circle["list"],)]
    path = save(circle)
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert loaded["list"][0] is loaded and loaded["list"][1] is loaded["list"]
    assert loaded["list"][2][0] is loaded["list"]
    assert_same(loaded, circle)


@BOTH
def test_conjugate_and_negative_views(save: Saver, weights_only: bool) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for view in (tensor.conj(), tensor.conj().imag, torch._neg_view(tensor.conj())):
        path = save({"view": view, "again": view})
        loaded = zerocopy.load(path, weights_only=weights_only)
        assert_same(loaded, stock_load(path))
        if strategies.keeps_conj():
            assert_same(loaded["view"], view)
            assert torch.equal(loaded["view"], view)


@BOTH
def test_the_root_need_not_be_a_dict(save: Saver, weights_only: bool) -> None:
    for obj in (torch.ones(3), [torch.ones(1)], None, 5, "text", (), torch.float16):
        assert_same(zerocopy.load(save(obj), weights_only=weights_only), obj)


@BOTH
def test_tensors_take_part_in_autograd(save: Saver, weights_only: bool) -> None:
    path = save({"weight": torch.nn.Parameter(torch.ones(3)), "input": torch.arange(3.0)})
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert type(loaded["weight"]) is torch.nn.Parameter
    (loaded["weight"] * loaded["input"]).sum().backward()
    assert loaded["weight"].grad.tolist() == [0, 1, 2]
    torch.optim.SGD([loaded["weight"]], lr=1.0).step()
    assert loaded["weight"].tolist() == [1, 0, -1]


@BOTH
def test_a_bare_storage(save: Saver, weights_only: bool) -> None:
    tensor = torch.arange(4.0)
    path = save({"storage": tensor.storage(), "tensor": tensor})
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert list(loaded["storage"]) == [0, 1, 2, 3]
    assert loaded["storage"].data_ptr() == loaded["tensor"].data_ptr()
