"""``zerocopy diff``: what it finds, across formats, and its exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import archives
import pytest
import torch
from commands import Capture, run_without_torch
from conftest import Saver, stock_load
from json_schemas import require_valid

import zerocopy
from zerocopy import cli
from zerocopy.cli import sides

STATE = {"model": {"w": torch.arange(12.0).view(3, 4), "n": torch.arange(5)}, "step": 7}


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["diff", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def changed(**entries: Any) -> dict[str, Any]:
    return {**STATE, **entries}


def test_diff_of_equal_files_prints_nothing(save: Saver, capsys: Capture) -> None:
    nan = {"x": torch.tensor([float("nan"), 1.0])}
    assert run(capsys, save({**STATE, **nan}, "a.pt"), save({**STATE, **nan}, "b.pt")) == (0, "", "")


def test_diff_of_equal_bytes_needs_no_torch(save: Saver) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(3, 2)).state_dict()
    commands = []
    for form in ("zip", "legacy", "safetensors"):
        is_zip = form != "legacy"
        paths = [save(state, f"{form}-{name}.pt", _use_new_zipfile_serialization=is_zip) for name in "ab"]
        if form == "safetensors":
            for path in paths:
                zerocopy.convert(path, path.with_suffix(".safetensors"))
            paths = [path.with_suffix(".safetensors") for path in paths]
        commands.append(["diff", "--json", *paths])
    for done in run_without_torch(*commands):
        assert done.code == 0, done.err
        found = json.loads(done.out)
        require_valid("diff", found)
        assert (found["tensors_in_both"], found["tensors_equal"], found["differences"]) == (2, 2, [])


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_diff_after_equal_bytes_finds_the_difference(
    save: Saver, capsys: Capture, tmp_path: Path, suffix: str
) -> None:
    state = {name: torch.arange(50000.0) for name in "abcd"}
    other = {**state, "c": torch.arange(50000.0)}
    other["c"][150] = -1
    paths = []
    for name, each in (("a", state), ("b", other)):
        view = each["c"][100:200]
        each["view of c"] = view if suffix == ".pt" else view.clone()
        paths.append(save(each, f"{name}.pt"))
        if suffix != ".pt":
            zerocopy.convert(paths[-1], tmp_path / f"{name}{suffix}")
            paths[-1] = tmp_path / f"{name}{suffix}"
    code, out, err = run(capsys, *paths)
    assert (code, err) == (1, "")
    assert [line.partition(":")[0] for line in out.splitlines()[:-1]] == ["! c", "! view of c"]
    assert "1 of 50000 values differ" in out and "1 of 100 values differ" in out


def test_diff_of_equal_unsafe_files_is_trouble(save: Saver, capsys: Capture) -> None:
    paths = [save({"w": torch.ones(3), "path": Path("x")}, f"{name}.pt") for name in "ab"]
    code, out, err = run(capsys, *paths)
    assert (code, out) == (2, "") and "pathlib" in err


def test_diff_of_unknown_classes_compares_all_else_as_stubs(save: Saver, capsys: Capture) -> None:
    args = argparse.Namespace(lr=1)
    a, b = save({"w": torch.ones(3), "args": args}), save({"w": torch.zeros(3), "args": args}, "b.pt")
    assert cli.main(["diff", str(a), str(b)]) == 2
    err = capsys.readouterr().err
    assert (
        "argparse.Namespace" in err
        and err.endswith("--unknown stub takes all else.\n")
        and "zerocopy." not in err
    )
    for option in (["--unknown", "stub"], ["--tensors-only"]):
        assert cli.main(["diff", *option, str(a), str(b)]) == 1
        assert capsys.readouterr().out.startswith("! w: values: 3 of 3 values differ")


def test_diff_of_equal_truncated_files_is_trouble(save: Saver, capsys: Capture) -> None:
    paths = [save(STATE, f"{name}.pt") for name in "ab"]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-100])
    code, out, _ = run(capsys, *paths)
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ({"new": torch.ones(2)}, "+ new  float32 [2]"),
        ({"model": {"w": STATE["model"]["w"]}}, "- model.n  int64 [5]"),
        ({"step": 8}, "! step: value: 7 and 8"),
        ({"step": None}, "! step: value: a int and a NoneType"),
        ({"model": {"w": torch.zeros(4, 3), "n": torch.arange(5)}}, "! model.w: shape: [3, 4] | [4, 3]"),
        ({"model": {"w": STATE["model"]["w"].double(), "n": torch.arange(5)}}, "! model.w: dtype: float32 | float64"),
        (
            {"model": {"w": STATE["model"]["w"] + torch.eye(3, 4) / 2, "n": torch.arange(5)}},
            "! model.w: values: 3 of 12 values differ by up to 0.5, first [0, 0]: 0.0 | 0.5",
        ),
    ],
)  # fmt: skip
def test_diff_names_each_difference(save: Saver, capsys: Capture, entries: dict[str, Any], line: str) -> None:
    code, out, err = run(capsys, save(STATE, "a.pt"), save(changed(**entries), "b.pt"))
    assert code == 1 and err == ""
    assert out.splitlines()[0] == line and len(out.splitlines()) == 2


def test_diff_across_formats_finds_same_tensors(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("h5py")
    state = {"w": torch.arange(12.0).view(3, 4).t(), "n": torch.arange(5), "s": torch.tensor(3.0)}
    source = save(state, "a.pt")
    other = save({**state, "n": torch.arange(5) + 1}, "c.pt")
    for name in ("b.safetensors", "b.h5", "shards", "b.pt"):
        zerocopy.convert(source, tmp_path / name, max_shard_size="40B" if name == "shards" else None)
        assert run(capsys, source, tmp_path / name) == (0, "", ""), name
        assert run(capsys, tmp_path / name, other)[0] == 1, name


def test_diff_compares_bits_without_tolerance(save: Saver, capsys: Capture) -> None:
    a, b = save({"x": torch.tensor([0.0])}, "a.pt"), save({"x": torch.tensor([-0.0])}, "b.pt")
    assert run(capsys, a, b)[0] == 1
    assert run(capsys, "--atol", "0", a, b)[0] == 0


def test_diff_with_tolerance_accepts_close_values(save: Saver, capsys: Capture) -> None:
    nan = float("nan")
    a = save({"x": torch.tensor([1.0, nan]), "lr": 0.5, "z": 1 + 1j}, "a.pt")
    b = save({"x": torch.tensor([1.01, -nan]), "lr": 0.51, "z": 1 + 1.01j}, "b.pt")
    for atol, differing in (("0.1", set()), ("0.001", {"x", "lr", "z"})):
        found = json.loads(run(capsys, "--json", "--atol", atol, a, b)[1])
        assert {each["name"] for each in found["differences"]} == differing


def test_diff_of_other_dtypes_with_ignore_dtype_compares_values(save: Saver, capsys: Capture) -> None:
    a = save({"x": torch.tensor([1.0, 2.5, float("nan")])}, "a.pt")
    b = save({"x": torch.tensor([1.0, 2.5, float("nan")], dtype=torch.bfloat16)}, "b.pt")
    assert run(capsys, a, b)[0] == 1
    assert run(capsys, "--ignore-dtype", a, b)[0] == 0


def test_diff_finds_one_element_of_many_blocks(save: Saver, capsys: Capture) -> None:
    weight = torch.zeros(1500, 1001)
    a = save({"row": weight, "column": weight.t().clone().t(), "half": weight.half()}, "a.pt")
    weight[1400, 7] = 2
    b = save({"row": weight, "column": weight.t().clone().t(), "half": weight.half()}, "b.pt")
    code, out, _ = run(capsys, a, b)
    assert code == 1 and out.count("1 of 1501500 values differ by up to 2, first [1400, 7]: 0.0 | 2.0") == 3


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_diff_finds_elements_that_threads_compare(suffix: str, save: Saver, capsys: Capture) -> None:
    """In any of the blocks that threads compare: the first, the last, which is a short one, and between them."""
    size = (40 << 20) // 4 + 3
    state = {"w": torch.arange(size, dtype=torch.int32)}
    a = save(state, "a.pt")
    state["w"][[70_000, size // 2, size - 1]] += 5
    b = save(state, "b.pt")
    if suffix == ".safetensors":
        for path in (a, b):
            zerocopy.convert(path, path.with_suffix(suffix))
        a, b = a.with_suffix(suffix), b.with_suffix(suffix)
    code, out, _ = run(capsys, a, b)
    assert (
        code == 1
        and f"w: values: 3 of {size} values differ by up to 5, first [70000]: 70000 | 70005\n" in out
    )
    assert run(capsys, "--brief", a, b)[0] == 1


def test_diff_of_unusual_tensors_finds_them_equal(save: Saver, capsys: Capture) -> None:
    state = {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(5),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "strided": torch.ones(3, 4)[:, ::2],
        "expanded": torch.ones(1).expand(3, 3),
    }
    assert run(capsys, save(state, "a.pt"), save(state, "b.pt")) == (0, "", "")


def test_diff_brief_prints_one_sentence(save: Saver, capsys: Capture) -> None:
    a, b = save(STATE, "a.pt"), save(changed(step=8), "b.pt")
    assert run(capsys, "-q", a, b) == (1, f"{a} and {b} differ\n", "")


def test_diff_max_limits_lines(save: Saver, capsys: Capture) -> None:
    a, b = save({f"a{i}": torch.ones(1) for i in range(9)}, "a.pt"), save({"x": torch.ones(1)}, "b.pt")
    _, out, _ = run(capsys, "--max", 3, a, b)
    assert len(out.splitlines()) == 5 and "... and 7 more" in out
    assert len(run(capsys, "--max", 0, a, b)[1].splitlines()) == 11


def test_diff_json_has_every_difference(save: Saver, capsys: Capture) -> None:
    a, b = (
        save(STATE, "a.pt"),
        save({"model": {"w": torch.ones(3, 4), "n": torch.ones(2)}, "step": 8}, "b.pt"),
    )
    code, out, _ = run(capsys, "--json", a, b)
    found = json.loads(out)
    require_valid("diff", found)
    assert code == 1 and found["command"] == "diff" and found["verdict"] == "different"
    assert (found["tensors_in_both"], found["tensors_equal"]) == (2, 0)
    assert [(one["name"], one["kind"]) for one in found["differences"]] == [
        ("step", "value"),
        ("model.n", "dtype"),
        ("model.n", "shape"),
        ("model.w", "values"),
    ]
    for options, verdict in (
        ((a, a), "same"),
        (("--brief", a, b), "different"),
        (("--rtol", 9, a, a), "same"),
    ):
        found = json.loads(run(capsys, "--json", *options)[1])
        require_valid("diff", found)
        assert found["verdict"] == verdict


def test_diff_of_a_tie_and_an_equal_copy_is_a_difference_of_ties(save: Saver, capsys: Capture) -> None:
    w = torch.arange(6.0)
    tied = save({"a": w, "b": w, "view": w[1:], "c": torch.ones(2)}, "tied.pt")
    apart = save({"a": w, "b": w.clone(), "view": w[1:].clone(), "c": torch.ones(2)}, "apart.pt")
    code, out, _ = run(capsys, tied, apart)
    assert code == 1 and out.splitlines()[0] == "! b: ties: = a | not tied" and len(out.splitlines()) == 2
    assert run(capsys, apart, tied)[1].splitlines()[0] == "! b: ties: not tied | = a"
    assert run(capsys, "--brief", tied, apart)[0] == 1
    assert "3 of 4 common tensors equal" in out
    again = save({"view": w[1:], "b": w, "c": torch.ones(2), "a": w}, "again.pt")
    assert run(capsys, tied, again) == (0, "", "")
    found = json.loads(run(capsys, "--json", tied, apart)[1])
    require_valid("diff", found)
    assert [one["kind"] for one in found["differences"]] == ["ties"]


@pytest.mark.parametrize(
    "arguments", [["a"], ["--rtol", "-1", "a", "b"], ["--atol", "nan", "a", "b"], ["--max", "x", "a", "b"]]
)
def test_diff_with_bad_arguments_shows_its_usage(capsys: Capture, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["diff", *arguments])
    assert caught.value.code == 2 and "usage: zerocopy diff" in capsys.readouterr().err


def states(changed: bool) -> dict[str, Any]:
    """Return tensors of each kind that is compared without torch; perhaps with changes at the borders of pieces."""
    torch.manual_seed(0)
    state: dict[str, Any] = {
        "nothing": torch.tensor([1.0, 2.0]),
        "step": 8 if changed else 7,
        "name": "a\nb",
        "none": None,
        "empty": [],
    }
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool):  # fmt: skip
        state[str(dtype)] = torch.randn(300, 333).mul(20).to(dtype)
        state[f"scalar {dtype}"] = torch.tensor(3).to(dtype)
        state[f"none {dtype}"] = torch.empty(0, 3).to(dtype)
        if changed:
            flat = state[str(dtype)].view(-1)
            for place in (5, 32767, 32768, -1):
                flat[place] = not flat[place] if dtype is torch.bool else flat[place] + 3
    if changed:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            flat = state[str(dtype)].view(-1)
            flat[7:12] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
        state["torch.int64"][0, :2] = torch.tensor([2**63 - 1, -(2**63)])
        state["nothing"] = torch.tensor([float("nan"), 2.0])
        state["only here"] = torch.ones(2)
    return state


@pytest.mark.parametrize(
    "suffix", [".pt", pytest.param(".safetensors", marks=pytest.mark.slow("the same in another format"))]
)
def test_diff_without_torch_prints_what_it_prints_with_torch(
    save: Saver, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    a, b = save(states(False), "a.pt"), save(states(True), "b.pt")
    if suffix != ".pt":
        zerocopy.convert(b, tmp_path / f"b{suffix}")
        b = tmp_path / f"b{suffix}"
    choices: list[list[str]] = [[], ["--json"], ["--brief"], ["--tensors-only"], ["--max", "3"]]
    plain = [run(capsys, *options, a, b) for options in choices]
    assert {code for code, *_ in plain} == {1}
    used = []

    def both(one: str, other: str) -> Any:
        used.append((one, other))
        raise sides.NeedsTorch

    monkeypatch.setattr(sides, "both", both)
    assert [run(capsys, *options, a, b) for options in choices] == plain and len(used) >= len(choices)


def test_diff_of_files_in_both_byte_orders_compares_values(tmp_path: Path, capsys: Capture) -> None:
    tensors = [torch.arange(5.0), torch.arange(4)]
    torch.save(tensors, tmp_path / "little.pt")
    (tmp_path / "big.pt").write_bytes(archives.big_endian(tensors))
    assert run(capsys, tmp_path / "big.pt", tmp_path / "little.pt") == (0, "", "")
    (tmp_path / "other.pt").write_bytes(archives.big_endian([tensors[0], tensors[1] + 1]))
    code, out, _ = run(capsys, tmp_path / "other.pt", tmp_path / "little.pt")
    assert code == 1 and out.startswith("! 1: values: 4 of 4 values differ by up to 1, first [0]: 1 | 0")


def test_diff_of_tensors_that_repeat_their_elements_is_trouble(save: Saver, capsys: Capture) -> None:
    paths = [save({"w": torch.full((1,), value).expand(1 << 40)}, f"{value}.pt") for value in (1.0, 2.0)]
    code, out, err = run(capsys, *paths)
    assert (code, out) == (2, "") and "shows each of its 4 B about" in err


INTEGERS = [
    (("uint64", 0), ("uint64", 2**64 - 1), ["--atol", "2"], 1),
    (("uint64", 2**64 - 1), ("uint64", 2**64 - 3), ["--atol", "2"], 0),
    (("uint64", 2**64 - 1), ("int64", -1), ["--ignore-dtype"], 1),
    (("int64", 2**53 + 1), ("int64", 2**53), ["--atol", "0.5"], 1),
    (("int64", 0), ("int64", 2**53 + 1), ["--rtol", "1"], 0),
    (("int64", 2**53 + 2), ("int64", 2**52 + 1), ["--rtol", "1"], 0),
    (("int64", 2**53 + 3), ("int64", 2**52 + 1), ["--rtol", "1"], 1),
    (("int64", 7), ("int64", 10), ["--rtol", "0.3"], 0),
    (("int64", 2**63 - 1), ("int64", -(2**63)), ["--atol", "5"], 1),
]


def test_diff_of_integers_is_exact(save: Saver, capsys: Capture) -> None:
    for one, other, options, code in INTEGERS:
        if not (hasattr(torch, one[0]) and hasattr(torch, other[0])):
            continue
        a, b = (
            save({"x": torch.tensor([value], dtype=getattr(torch, dtype))}, f"{name}.pt")
            for name, (dtype, value) in (("a", one), ("b", other))
        )
        found = json.loads(run(capsys, "--json", *options, a, b)[1])
        gap = float(abs(one[1] - other[1]))
        assert found["verdict"] == ("same", "different")[code], (one, other)
        assert [each["largest"] for each in found["differences"]] == [gap] * code
        numbers = save({"x": one[1]}, "c.pt"), save({"x": other[1]}, "d.pt")
        assert run(capsys, *options, *numbers)[0] == code, (one, other)


def test_diff_says_how_many_differ_by_no_finite_number(save: Saver, capsys: Capture) -> None:
    nan, infinity = float("nan"), float("inf")
    one, other = [1.0, 2.0, nan, 4.0, -infinity, 6.0], [1.5, nan, nan, infinity, infinity, 6.0]
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        a, b = (save({"x": torch.tensor(x).to(dtype)}, f"{i}.pt") for i, x in enumerate((one, other)))
        for options in ([], ["--atol", "0.1"]):
            (found,) = json.loads(run(capsys, "--json", *options, a, b)[1])["differences"]
            assert (found["count"], found["largest"], found["not_finite"]) == (4, 0.5, 3), dtype
            wanted = "4 of 6 values differ by up to 0.5 (3 of them by no finite number), first [0]:"
            assert wanted in found["text"]
    a, b = (save({"x": torch.tensor([value])}, f"{value}.pt") for value in (1.0, nan))
    (found,) = json.loads(run(capsys, "--json", a, b)[1])["differences"]
    assert (found["count"], found["largest"], found["not_finite"]) == (1, None, 1)


def test_diff_with_tolerance_holds_no_number_close_to_infinity(save: Saver, capsys: Capture) -> None:
    infinity = float("inf")
    for ends in ((1.0, infinity), (infinity, 1.0), (infinity, -infinity)):
        paths = [save({"loss": value}, f"{value}.pt") for value in ends]
        assert run(capsys, "--rtol", "1e-5", *paths)[0] == 1
        assert run(capsys, "--rtol", "1e-5", paths[0], paths[0])[0] == 0


def with_note(tensor: torch.Tensor, note: int) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.note = note  # type: ignore[attr-defined]
    return tensor


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "kind",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.quantize_per_tensor(x * 8, 0.01, 0, torch.qint32),
        lambda x: with_note(x, 1),
    ],
    ids=["coo", "csr", "quantized", "attribute"],
)
def test_diff_with_tolerance_of_tensors_that_calls_make(save: Saver, capsys: Capture, kind: Any) -> None:
    a, b = (save({"x": kind(torch.eye(3) * factor)}, f"{factor}.pt") for factor in (1.0, 1.01))
    code, _, err = run(capsys, "--atol", "0.1", a, b)
    if "refuses" in err:
        pytest.skip("this release of torch allows no quantized tensors")
    assert code == 0
    (found,) = json.loads(run(capsys, "--json", "--atol", "0.001", a, b)[1])["differences"]
    assert found["count"] == 3 and 0 < found["largest"] < 0.1
    assert run(capsys, a, b)[0] == 1


def test_diff_with_tolerance_sees_other_attributes_and_places(save: Saver, capsys: Capture) -> None:
    one = torch.ones(3)
    pairs = {
        "note": (with_note(one, 1), with_note(one, 2)),
        "places": (torch.tensor([1.0, 0.0]).to_sparse(), torch.tensor([0.0, 1.0]).to_sparse()),
    }
    for name, pair in pairs.items():
        a, b = (save({"x": tensor}, f"{name}{i}.pt") for i, tensor in enumerate(pair))
        if name == "note" and not hasattr(stock_load(a)["x"], "note"):
            continue  # this release does not save attributes
        code, out, _ = run(capsys, "--atol", "5", a, b)
        assert code == 1 and " at 0x" not in out, name


def test_diff_of_other_tuples_as_keys_is_a_difference(save: Saver, capsys: Capture) -> None:
    one, two = torch.ones(1), torch.ones(2)
    a = save({(0, 1): one, ("x", 2): two}, "a.pt")
    assert run(capsys, a, save({("x", 2): two, (0, 1): one}, "b.pt"))[0] == 0
    assert run(capsys, a, save({(0, 7): one, ("x", 2): two}, "c.pt"))[0] == 1


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "bits8"])
def test_diff_of_elements_without_numbers_compares_their_bytes(
    save: Saver, capsys: Capture, dtype: str
) -> None:
    packed = getattr(torch, dtype, None) or pytest.skip(f"torch has no {dtype}")
    a, b = (
        save({"x": torch.tensor(content, dtype=torch.uint8).view(packed)}, f"{content}.pt")
        for content in ([1, 2], [1, 3])
    )
    for options in ([], ["--atol", "5"]):
        code, out, err = run(capsys, *options, a, b)
        assert (code, err) == (1, "") and "! x: values: 1 of 2 values differ, first [1]: 2 | 3" in out
    out = run(capsys, "--ignore-dtype", a, save({"x": torch.ones(2)}, "c.pt"))[1]
    assert f"! x: values: torch.{dtype} and torch.float32 cannot be compared by value" in out
