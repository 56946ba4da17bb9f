"""``zerocopy show``: the values and statistics of a tensor, of a part, of a value that is not a tensor."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Capture
from conftest import Saver
from dcp_folders import Writer
from json_schemas import require_valid

import zerocopy
from zerocopy.__main__ import main

WEIGHT = torch.arange(600.0).view(30, 20)
MAX = sys.float_info.max


def show(capsys: Capture, path: Path, name: str, *options: str) -> str:
    assert main(["show", *options, str(path), name]) == 0
    return capsys.readouterr().out


def shown(capsys: Capture, path: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(show(capsys, path, name, "--json"), parse_constant=pytest.fail)
    require_valid("show", found)
    return found


@pytest.mark.parametrize(
    "tensor",
    [
        WEIGHT,
        WEIGHT.half(),
        WEIGHT.bfloat16(),
        WEIGHT.t(),
        torch.arange(-5, 50),
        torch.tensor([True, False, True]),
        torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0, 0.0]),
        torch.tensor(3.5),
        torch.full((7,), 1e9) + torch.arange(7),
    ],
    ids=str,
)
def test_show_gives_the_statistics_of_torch(tensor: torch.Tensor, save: Saver, capsys: Capture) -> None:
    found = shown(capsys, save({"x": tensor}), "x")["statistics"]
    numbers = tensor.double()
    finite = numbers[numbers.isfinite()]
    assert (found["elements"], found["nan"]) == (tensor.numel(), int(numbers.isnan().sum()))
    assert found["positive_infinity"] + found["negative_infinity"] == int(numbers.isinf().sum())
    assert found["zero"] == int((numbers == 0).sum())
    assert (found["minimum"], found["maximum"]) == (float(finite.min()), float(finite.max()))
    assert found["mean"] == pytest.approx(float(finite.mean()))
    assert found["std"] == pytest.approx(float(finite.std(unbiased=False)), abs=1e-6)
    assert sum(found["histogram"]["counts"]) in (0, finite.numel())


def test_show_of_a_large_tensor_joins_its_pieces(save: Saver, capsys: Capture) -> None:
    tensor = torch.randn(3, 1 << 19) + torch.tensor([[0.0], [5.0], [-5.0]])
    for each in (tensor, tensor.t()):
        found = shown(capsys, save({"x": each}), "x")["statistics"]
        assert found["mean"] == pytest.approx(float(tensor.double().mean()))
        assert found["std"] == pytest.approx(float(tensor.double().std(unbiased=False)))
        assert sum(found["histogram"]["counts"]) == tensor.numel()


EXTREMES = [
    ((1e200, 0.0), 5e199, 5e199),
    ((complex(0, 1e200), 0j), 5e199, 5e199),
    ((1e154, -1e154), 0.0, 1e154),
    ((1e-200, -1e-200), 0.0, 1e-200),
    ((MAX, MAX), MAX, 0.0),
    ((MAX, -MAX), 0.0, MAX),
]


@pytest.mark.parametrize(
    "join", [1, pytest.param(1 << 20, marks=pytest.mark.slow("tensors of two pieces, whose sums are joined"))]
)
def test_show_of_extreme_numbers_has_finite_statistics(join: int, save: Saver, capsys: Capture) -> None:
    for ends, mean, std in EXTREMES:
        dtype = torch.complex128 if isinstance(ends[0], complex) else torch.float64
        path = save({"x": torch.tensor(ends, dtype=dtype).repeat_interleave(join)})
        found = shown(capsys, path, "x")["statistics"]
        assert (found["mean"], found["std"]) == (pytest.approx(mean), pytest.approx(std)), ends
        assert sum(found["histogram"]["counts"]) in (0, 2 * join)
        assert "elements: 0 NaN, 0 Inf" in show(capsys, path, "x")


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_show_of_large_integers_is_exact(dtype: str, save: Saver, capsys: Capture) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    ends = (3, 2**64 - 1) if dtype == "uint64" else (-(2**63), 2**63 - 1)
    found = shown(capsys, save({"x": torch.tensor(ends, dtype=getattr(torch, dtype))}), "x")["statistics"]
    assert (found["minimum"], found["maximum"]) == ends


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "bits8", "bits16"])
def test_show_of_dtypes_without_arithmetic_shows_what_the_file_states(
    dtype: str, save: Saver, capsys: Capture
) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    path = save({"x": torch.tensor([1, 0, 2, 0], dtype=torch.uint8).view(getattr(torch, dtype))})
    found = shown(capsys, path, "x")
    assert (found["dtype"], found["bytes"], found["statistics"], found["values"]) == (dtype, 4, None, None)
    assert "tensor([" in show(capsys, path, "x")


def test_show_takes_names_as_ls_prints_them(save: Saver, capsys: Capture) -> None:
    names = ["a\nb", "a\\nb", "é", "a b", "only\\nraw"]
    path = save({name: torch.full((2,), float(number)) for number, name in enumerate(names)})
    assert main(["ls", str(path)]) == 0
    printed = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    for number, name in enumerate(printed):
        assert shown(capsys, path, name)["values"] == [number, number]
        assert shown(capsys, path, f"{name}[0]")["values"] == number
    for name, number in ((r"a\x20b", 3), (r"only\nraw", 4), ("é", 2)):
        assert shown(capsys, path, name)["values"] == [number, number]
    assert main(["show", str(path), "a\\nbb"]) == 2
    assert {"a\\nb", "a\\\\nb"} <= set(capsys.readouterr().err.strip().partition("it: ")[2].split(", "))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", 0),
        ("0, :4", (0, slice(4))),
        ("..., -1", (..., -1)),
        ("::2", slice(None, None, 2)),
        ("None, 3", (None, 3)),
    ],
)
def test_show_of_a_slice_equals_indexing(text: str, index: Any, save: Saver, capsys: Capture) -> None:
    found = shown(capsys, save({"a": {"x": WEIGHT}}), f"a.x[{text}]")
    assert found["values"] == WEIGHT[index].tolist() and found["shown_shape"] == list(WEIGHT[index].shape)


def test_json_lists_a_thousand_values_and_no_more(save: Saver, capsys: Capture) -> None:
    path = save({"a": torch.arange(1001)})
    assert shown(capsys, path, "a[1:]")["values"] == [*range(1, 1001)]
    assert shown(capsys, path, "a")["values"] is None


def test_show_prints_values_and_a_histogram(save: Saver, capsys: Capture) -> None:
    printed = show(capsys, save({"x": WEIGHT}), "x[:2]")
    assert "float32 30 x 20" in printed and "tensor(" in printed
    assert "min 0  max 39  mean 19.5" in printed and "40 elements: 0 NaN, 0 Inf, 1 zero" in printed
    assert printed.count("#") > 16


def edges(text: str) -> list[str]:
    lines = (line.split() for line in text.splitlines() if " .. " in line)
    return [edge for low, _, high, *_ in lines for edge in (low, high)]


def test_show_prints_digits_enough_to_tell_the_bins_apart(save: Saver, capsys: Capture) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        for least in (1e9, -1e9, 1e15):
            step = 1 if dtype != torch.float32 else int(abs(least)) >> 22
            tensor = (torch.arange(0, 64 * step, step, dtype=torch.int64) + int(least)).to(dtype)
            text = show(capsys, save({"x": tensor}), "x")
            found = edges(text)
            assert len(set(found)) == 17, (dtype, least)
            ends = [float(tensor[0]), float(tensor[-1])]
            assert [float(found[0]), float(found[-1])] == pytest.approx(ends, rel=0, abs=step)
            assert text.split("min ")[1].split()[0] != text.split("max ")[1].split()[0]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_show_gives_the_mean_of_integers_exactly(dtype: str, save: Saver, capsys: Capture) -> None:
    kind = getattr(torch, dtype, None) or pytest.skip(f"torch has no {dtype}")
    values = [2**63 - 1 - 3 * number for number in range(1000)] + [7, 0]
    tensor = torch.tensor(values).view(kind)
    assert shown(capsys, save({"x": tensor}), "x")["statistics"]["mean"] == sum(values) / len(values)


def test_show_of_complex_numbers_is_of_absolute_values(save: Saver, capsys: Capture) -> None:
    tensor = torch.tensor([3 + 4j, complex(MAX, MAX), 0j], dtype=torch.complex128)
    found = shown(capsys, save({"x": tensor}), "x")["statistics"]
    assert (found["minimum"], found["maximum"], found["positive_infinity"]) == (0.0, 5.0, 1)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_show_and_diff_of_a_device_that_nobody_has(
    save: Saver, tmp_path: Path, zipped: bool, capsys: Capture
) -> None:
    path = save({"x": torch.ones(3)}, _use_new_zipfile_serialization=zipped)
    other = tmp_path / "other.pt"
    other.write_bytes(path.read_bytes().replace(b"cpu", b"zzz"))
    assert "min 1  max 1" in show(capsys, other, "x")
    assert main(["diff", "--rtol", "0.1", str(path), str(other)]) == 0


def test_show_of_a_name_with_brackets_prefers_the_name(save: Saver, capsys: Capture) -> None:
    path = save({"x[0]": torch.ones(2), "x": torch.zeros(3)})
    assert shown(capsys, path, "x[0]")["shown_shape"] == [2]
    assert shown(capsys, path, "x[1]")["shown_shape"] == []


@pytest.mark.parametrize("legacy", [False, True])
def test_show_inside_an_object_reads_the_tensor_without_its_class(
    legacy: bool, save: Saver, capsys: Capture
) -> None:
    held = argparse.Namespace(weight=WEIGHT[2:].t(), name="x")
    path = save({"args": held}, _use_new_zipfile_serialization=not legacy)
    assert shown(capsys, path, "args.weight[1, 3:5]")["values"] == WEIGHT[2:].t()[1, 3:5].tolist()


def test_show_of_other_values_prints_a_bounded_repr(save: Saver, capsys: Capture) -> None:
    path = save({
        "step": 7, "rate": 0.5, "text": "a\x1b[31m", "none": None, "long": "x" * 5000,
        "set": {1}, "args": argparse.Namespace(a=3, text="\x1b[0m"), "flag": True,
    })  # fmt: skip
    assert show(capsys, path, "step") == "7\n"
    assert show(capsys, path, "rate") == "0.5\n"
    assert show(capsys, path, "none") == "None\n"
    assert show(capsys, path, "set") == "{1}\n"
    assert "argparse.Namespace" in show(capsys, path, "args") and "'a': 3" in show(capsys, path, "args")
    for name in ("text", "long", "args"):
        printed = show(capsys, path, name)
        assert printed.isascii() and printed.rstrip("\n").isprintable() and len(printed) < 4100
    assert shown(capsys, path, "step")["repr"] == "7"


def test_show_of_formats_without_pickles_and_of_folders(tmp_path: Path, capsys: Capture) -> None:
    zerocopy.save({"a": WEIGHT, "b": WEIGHT * 2}, tmp_path / "m.pt")
    (tmp_path / "hub").mkdir()
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "hub" / "model.safetensors")
    zerocopy.convert(tmp_path / "m.pt", tmp_path / "shards", max_shard_size="2500B")
    for path in (tmp_path / "hub", tmp_path / "shards"):
        assert shown(capsys, path, "b[0, :3]")["values"] == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wieght", "close to it: weight"),
        ("block", "below it are block.weight"),
        ("step[0]", "step is not a tensor (int): name it without [0]"),
        ("weight[x]", "expected integers, slices"),
        ("weight[::-1]", "expected integers, slices"),
        (f"weight[::{10**20}]", "expected integers, slices"),
        ("weight[99]", "out of bounds"),
        ("weight[0, 0, 0]", "too many indices"),
    ],
)
def test_show_of_a_wrong_name_or_slice_names_the_close_ones(
    name: str, said: str, save: Saver, capsys: Capture
) -> None:
    path = save({"weight": WEIGHT, "block": {"weight": WEIGHT}, "step": 7})
    assert main(["show", str(path), name]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_show_of_a_branch_of_values_names_some_of_them(save: Saver, capsys: Capture) -> None:
    assert main(["show", str(save({"ids": [1, 2, 3], "w": torch.ones(1)})), "ids"]) == 2
    assert "below it are ids.0, ids.1, ids.2" in capsys.readouterr().err


def test_show_of_a_tensor_that_repeats_its_elements_has_no_statistics(save: Saver, capsys: Capture) -> None:
    path = str(save({"w": torch.ones(1).expand(1 << 40), "few": torch.ones(1).expand(3)}))
    assert main(["show", path, "w"]) == 0
    shown = capsys.readouterr()
    assert "about 1099511627776 times" in shown.err and "tensor([1., 1., 1.," in shown.out
    assert main(["show", path, "few"]) == 0 and "3 elements" in capsys.readouterr().out


def test_show_of_a_tensor_of_a_dcp_folder_says_no_place(tmp_path: Path, capsys: Capture) -> None:
    """Its metadata only say where the archive begins that holds the tensor."""
    writer = Writer(tmp_path)
    writer.add("weight", torch.ones(2, 3))
    folder = writer.write()
    assert show(capsys, folder, "weight").startswith("weight: float32 2 x 3, 24 B\n")
    assert shown(capsys, folder, "weight")["offset"] is None
