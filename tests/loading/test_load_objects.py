"""Values beyond dense tensors and plain containers: sparse, quantized, counters, classes of the user's."""

from __future__ import annotations

import argparse
import array
import io
import pickle
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

import assembler as a
import pytest
import torch
from conftest import Saver, outcome, stock_load
from equality import assert_same
from kinds import layouts

import zerocopy


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("by", ["map_location", "block"])
def test_sparse_on_meta(save: Saver, by: str) -> None:
    """There it has no indices that could be checked."""

    def outline(load: Callable[..., Any], path: Path) -> Any:
        if by == "map_location":
            loaded = load(path, map_location="meta")
        else:
            with torch.device("meta"):
                loaded = load(path)
        return [
            (x.device, x.shape, x.dtype, x.layout, x.is_sparse and x.is_coalesced()) for x in loaded.values()
        ]

    for kind in layouts.SPARSE.kinds:
        if not kind.is_there():
            continue
        saved = outcome(lambda k=kind: save({"dense": torch.ones(2), "sparse": k.make()}))
        stock = outcome(lambda path=saved[1]: outline(stock_load, path))
        if stock[0] == "value":
            assert outline(zerocopy.load, saved[1]) == stock[1], kind.name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(
    not hasattr(torch.nested, "nested_tensor_from_jagged"),
    reason="this release has no jagged tensors, or a prototype",
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_jagged_on_meta(save: Saver, weights_only: bool) -> None:
    path = save(
        {
            "whole": torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged),
            "holes": torch.nested.narrow(
                torch.ones(2, 4), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), torch.jagged
            ),
        }
    )
    try:
        stock = torch.load(path, map_location="meta", weights_only=weights_only)
    except pickle.UnpicklingError:  # 2.15 and later do not allow them
        with pytest.raises(pickle.UnpicklingError):
            zerocopy.load(path, map_location="meta", weights_only=weights_only)
        return
    ours = zerocopy.load(path, map_location="meta", weights_only=weights_only)
    for name, tensor in stock.items():
        found = ours[name]
        assert (type(found), found.device, found.layout, found.dim()) == (
            type(tensor),
            tensor.device,
            tensor.layout,
            tensor.dim(),
        )
        assert found.values().shape == tensor.values().shape and found.offsets().is_meta


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", ["meta", {"cpu": "meta"}], ids=str)
def test_quantized_on_meta(save: Saver, place: Any) -> None:
    """Newer releases of torch have none there. The file is good, so it is the original that says so."""
    path = save({"q": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)})
    stock = outcome(lambda: torch.load(path, map_location=place)["q"].shape)
    with zerocopy.patched():
        patched = outcome(lambda: torch.load(path, map_location=place)["q"].shape)
    assert patched == stock
    if stock[0] == "error":
        with pytest.raises(Exception) as error:
            zerocopy.load(path, map_location=place)
        assert not isinstance(error.value, zerocopy.FormatError)


def test_namespace_through_safe_globals(save: Saver) -> None:
    path = save({"config": argparse.Namespace(layers=2, names=["a"]), "weight": torch.ones(1)})
    with pytest.raises(pickle.UnpicklingError, match=r"argparse\.Namespace"):
        zerocopy.load(path)
    with zerocopy.safe_globals([argparse.Namespace]):
        assert_same(zerocopy.load(path), stock_load(path))
    with pytest.raises(pickle.UnpicklingError):
        zerocopy.load(path)  # over with the block


def test_namespace_through_torch_safe_globals(save: Saver) -> None:
    if not hasattr(torch.serialization, "safe_globals"):
        pytest.skip("this release has no torch.serialization.safe_globals")
    path = save(argparse.Namespace(layers=2))
    with torch.serialization.safe_globals([argparse.Namespace]):
        assert_same(zerocopy.load(path), stock_load(path))
    with pytest.raises(pickle.UnpicklingError):
        zerocopy.load(path)


def test_safe_globals_nest_and_take_names(save: Saver) -> None:
    path = save([argparse.Namespace(a=1), frozenset({1})])
    with (
        zerocopy.safe_globals([(argparse.Namespace, "argparse.Namespace")]),
        zerocopy.safe_globals([frozenset]),
    ):
        assert_same(zerocopy.load(path), stock_load(path))


def test_tensor_of_a_device_that_is_not_here() -> None:
    """torch says so by AssertionError, RuntimeError or ModuleNotFoundError, as the device and the release will."""
    function = a.name("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")
    for kind in ("cuda", "xpu", "mtia", "hpu"):
        if getattr(getattr(torch, kind, None), "is_available", bool)():
            continue
        data = a.checkpoint(a.pickle(a.call(function, a.tensor(), a.name("torch", "float32"), kind, False)))
        with pytest.raises(zerocopy.FormatError):
            zerocopy.load(data)


@pytest.mark.parametrize("size", [(-2, 0), (0, -1), (2**62, 4, 0), (True, 0), (2.0, 0)], ids=str)
def test_sparse_tensor_without_elements_has_a_shape(size: tuple[Any, ...]) -> None:
    """torch looks at it when there are elements only, and takes a negative one."""
    layout = a.call(a.name("torch.serialization", "_get_layout"), "torch.sparse_coo")
    indices = a.tensor(a.storage("1", "LongStorage", numel=0), 0, (len(size), 0), (1, 1))
    values = a.tensor(a.storage("2", numel=0), 0, (0,), (1,))
    function = a.name("torch._utils", "_rebuild_sparse_tensor")
    data = a.checkpoint(a.pickle(a.call(function, layout, (indices, values, size))), {"1": b"", "2": b""})
    with pytest.raises(zerocopy.FormatError, match="shape"):
        zerocopy.load(data)


def test_meta_tensor_with_large_strides() -> None:
    """The stride of one element, or of none, leads nowhere."""
    good = ((1, 0), (2**62, 1)), ((1, 3), (2**62, 1))
    for size, stride in (*good, ((2, 3), (2**62, 1)), ((0,), (2**63,))):
        function = a.name("torch._utils", "_rebuild_meta_tensor_no_storage")
        data = a.checkpoint(a.pickle(a.call(function, a.name("torch", "float32"), size, stride, False)))
        loaded = outcome(lambda d=data: zerocopy.load(d))
        if (size, stride) in good:
            assert loaded[0] == "value" and loaded[1].size() == size and loaded[1].stride() == stride
        else:
            assert loaded[:2] == ("error", zerocopy.FormatError)


def test_refusal_names_five_globals_and_the_ways_on(save: Saver) -> None:
    objects = [argparse.Namespace, PurePath, Fraction, Decimal, uuid.UUID, array.array, io.BytesIO]
    path = save({"objects": objects, "weight": torch.ones(2)})
    with pytest.raises(pickle.UnpicklingError) as caught:
        zerocopy.load(path)
    message = str(caught.value)
    listed = message.partition("of this file: ")[2].partition(". Nothing")[0]
    assert listed.count(",") == 4 and listed.endswith(" and 2 more")
    assert len(caught.value.globals) == 7 and set(listed.removesuffix(" and 2 more").split(", ")) < set(
        caught.value.globals
    )
    for way in ("zerocopy scan FILE", "zerocopy.safe_globals(", "weights_only=False", 'unknown="stub"'):
        assert way in message
    assert torch.equal(zerocopy.load(path, unknown="stub")["weight"], torch.ones(2))


REBUILD_FUNCTIONS = [
    function
    for function in vars(torch._utils).values()
    if getattr(function, "__name__", "").startswith("_rebuild_")
] + [getattr(torch.serialization, "_get_layout", torch._utils._rebuild_tensor)]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_functions_of_torch_as_values_are_those_of_torch(save: Saver, tmp_path: Path, zipped: bool) -> None:
    for function in REBUILD_FUNCTIONS:
        path = save({"f": function, "w": torch.ones(2)}, _use_new_zipfile_serialization=zipped)
        if outcome(lambda p=path: torch.load(p, weights_only=True))[0] == "error":
            continue
        assert zerocopy.load(path)["f"] is function
        assert zerocopy.lazy_load(path)["f"] is function
        assert zerocopy.load(path, unknown="stub")["f"] is function
        zerocopy.convert(path, tmp_path / "again.pt")
        assert torch.load(tmp_path / "again.pt", weights_only=True)["f"] is function
