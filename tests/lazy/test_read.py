"""Checkpoint.read and Checkpoint.plan: parts of many tensors in one planned read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import deflated
from conftest import outcome
from dcp_folders import Writer
from safetensors_files import saved as written

import zerocopy
from zerocopy.lazy.reading.segments import MAX_REQUEST, PAGE

INDICES: list[Any] = [
    *(..., slice(None), slice(1, 5), slice(2, None, 3), 3, -1, (None, slice(0, 2)), (slice(3, 3),)),
    *((slice(None), slice(1, 3)), (slice(None), 2), (..., 1), (slice(1, 6, 2), slice(0, 5, 2))),
    *(torch.tensor([0, 3, 3]), [1, 0]),
]


def page_cache_reads() -> int:
    """Return the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.arange(7 * 5 * 3, dtype=torch.float32).view(7, 5, 3)


def test_read_of_a_part_of_a_number_raises_what_torch_raises(tmp_path: Path) -> None:
    torch.save({"s": torch.tensor(1.0)}, tmp_path / "model.pt")
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        assert checkpoint.read({"s": ...})["s"].tolist() == checkpoint.read({"s": ()})["s"].tolist() == 1
        for index in (slice(None), slice(0, 1), 0):
            with pytest.raises(IndexError):
                checkpoint.read({"s": index})


@pytest.mark.parametrize("form", ["plain", "transposed", "expanded", "deflated", "folder", "memory"])
def test_read_any_index_of_any_layout_equals_indexing(
    weight: torch.Tensor, form: str, tmp_path: Path
) -> None:
    path: Any = tmp_path / "model.pt"
    saved = weight
    if form == "transposed":
        saved = weight.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        assert not saved.is_contiguous()
    if form == "expanded":
        saved = weight[:, :, :1].expand(7, 5, 3)
    if form == "folder":
        writer = Writer(tmp_path)
        parts = [((0, 0, 0), weight[:3]), ((3, 0, 0), weight[3:, :2]), ((3, 2, 0), weight[3:, 2:])]
        writer.add_chunks("w", weight.shape, weight.dtype, [(at, part.clone()) for at, part in parts])
        path = writer.write()
    elif form == "memory":
        path = {"w": weight}
    else:
        torch.save({"w": saved}, path)
        path = deflated(path) if form == "deflated" else path
    with zerocopy.overlay(path) as checkpoint:
        for index in INDICES:
            found = checkpoint.read({"w": index})["w"]
            assert found.dtype == saved.dtype and torch.equal(found, saved[index]), index
            found.zero_()  # its memory is its own
            assert torch.equal(checkpoint.read({"w": ...})["w"], saved)


def test_read_columns_of_any_dtype_equals_indexing(tmp_path: Path) -> None:
    wide = torch.arange(4 * 2 * PAGE).view(4, 2 * PAGE) % 3
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64, torch.complex128):
        weight = wide.to(dtype)
        torch.save({"w": weight}, tmp_path / "model.pt")
        with zerocopy.open(tmp_path / "model.pt") as checkpoint:
            for index in ((slice(None), slice(7, 40)), (slice(None), slice(1, None, 2)), (2, 5)):
                assert torch.equal(checkpoint.read({"w": index})["w"], weight[index]), (dtype, index)


def test_read_into_strided_and_other_dtypes_casts_and_keeps_the_rest(tmp_path: Path) -> None:
    weight = torch.randn(6, 8)
    torch.save({"a": weight, "b": weight * 2}, tmp_path / "model.pt")
    whole = torch.full((6, 16), 9.0)
    half = torch.zeros(6, 4, dtype=torch.float16)
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        into = {"a": whole[:, ::2], "b": half}
        read = checkpoint.read({"a": ..., "b": (slice(None), slice(0, 4))}, into=into)
    assert read["a"] is into["a"]
    assert torch.equal(whole[:, ::2], weight)
    assert bool((whole[:, 1::2] == 9).all())
    assert torch.equal(half, (weight * 2)[:, :4].half())


def test_read_into_a_tensor_that_autograd_saved_is_noticed(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "model.pt")
    x, factor = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    product = (x * factor).sum()
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        checkpoint.read({"w": ...}, into={"w": factor})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_read_across_shards_reads_each_file(tmp_path: Path) -> None:
    homes = {}
    for number in range(3):
        name = f"model-{number}.safetensors"
        (tmp_path / name).write_bytes(written({f"w{number}": torch.full((4, 4), float(number))}))
        homes[f"w{number}"] = name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    (tmp_path / "stray.safetensors").write_bytes(written({"w1": torch.full((4, 4), 77.0)}))
    with zerocopy.open(tmp_path) as checkpoint:
        parts = {"w2": slice(0, 1), "w0": (slice(None), 1), "w1": ...}
        plan = checkpoint.plan(parts)
        read = checkpoint.read(parts)
    assert {Path(file.path).name for file in plan.files} == set(homes.values())
    assert list(read) == ["w2", "w0", "w1"]
    assert all(bool((tensor == int(name[1])).all()) for name, tensor in read.items())


def test_read_counts_the_bytes_that_the_plan_says(tmp_path: Path) -> None:
    state = {f"layer{i}.weight": torch.randn(64, 4096) for i in range(12)}
    torch.save(state, tmp_path / "model.pt")
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        for index in (slice(0, 16), (slice(None), slice(0, 1024)), ...):
            parts = dict.fromkeys(state, index)
            plan = checkpoint.plan(parts)
            before = page_cache_reads()
            read = checkpoint.read(parts)
            taken = page_cache_reads() - before
            assert plan.nbytes == sum(tensor.numel() * 4 for tensor in read.values())
            assert plan.nbytes <= plan.bytes_read <= 1.01 * plan.nbytes
            assert taken == pytest.approx(plan.bytes_read, rel=0.01)
            assert f"{plan.requests} request" in plan.describe()
            if isinstance(index, tuple):  # rows that are far from each other
                assert plan.requests == 12 * 64
            assert all(torch.equal(read[name], state[name][index]) for name in state)


def test_large_tensors_are_read_in_requests_that_several_threads_share(tmp_path: Path) -> None:
    weight = torch.arange(3 * MAX_REQUEST, dtype=torch.uint8)
    torch.save({"w": weight}, tmp_path / "model.pt")
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        plan = checkpoint.plan({"w": ...})
        assert plan.requests >= 3
        assert torch.equal(checkpoint.read({"w": ...})["w"], weight)


def test_read_with_wrong_arguments_says_what_was_expected(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3, 4)}, tmp_path / "model.pt")
    with zerocopy.open(tmp_path / "model.pt") as checkpoint:
        with pytest.raises(KeyError, match="no tensor is named v"):
            checkpoint.read({"v": ...})
        with pytest.raises(IndexError):
            checkpoint.read({"w": 3})
        with pytest.raises(TypeError, match="expected a dict of names to indices, got list"):
            checkpoint.read(["w"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"expected a tensor of shape \(3, 4\) for w, got \(3,\)"):
            checkpoint.read({"w": ...}, into={"w": torch.ones(3)})
        with pytest.raises(ValueError, match="not read; name it in the first argument"):
            checkpoint.read({"w": ...}, into={"v": torch.ones(3)})


def test_plan_refuses_what_read_refuses(tmp_path: Path) -> None:
    torch.save({"square": torch.zeros(4, 4)}, tmp_path / "f.pt")
    checkpoint = zerocopy.open(tmp_path / "f.pt")
    tensors = (torch.tensor(1.0), torch.tensor([9]), torch.eye(4) > 0)
    for index in ("a", 1.5, {0}, b"x", [True, False, True], (0, 9), [0, 1], *tensors):
        read, planned = (
            outcome(lambda call=call, index=index: call({"square": index}))
            for call in (checkpoint.read, checkpoint.plan)
        )
        assert read[:2] == planned[:2] if read[0] == "error" else planned[0] == "value", index


def test_read_of_a_file_that_was_replaced_or_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(100_000)}, path)
    with zerocopy.open(path) as checkpoint:
        os.truncate(path, 1000)
        with pytest.raises(OSError, match="cut since it was opened"):
            checkpoint.read({"w": ...})
    torch.save({"w": torch.ones(100_000)}, path)
    with zerocopy.open(path) as checkpoint:
        torch.save({"w": torch.zeros(100_000)}, tmp_path / "other.pt")
        (tmp_path / "other.pt").replace(path)
        with pytest.raises(OSError, match="another file has taken its place"):
            checkpoint.read({"w": ...})


def test_read_converts_as_the_checkpoint_was_opened(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3, 4), "n": torch.arange(3)}, tmp_path / "model.pt")
    with zerocopy.open(tmp_path / "model.pt", dtype=torch.bfloat16) as checkpoint:
        read = checkpoint.read({"w": slice(1, 2), "n": ...})
    assert (read["w"].dtype, read["n"].dtype) == (torch.bfloat16, torch.int64)
    assert torch.equal(read["w"], torch.ones(1, 4, dtype=torch.bfloat16))
