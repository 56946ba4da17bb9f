"""``zerocopy ls``: each tensor with its place, in every format; tables, lines in pipes, JSON by a schema."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Capture, run_without_torch
from conftest import Saver
from dcp_folders import Writer
from json_schemas import require_valid
from terminals import run_on_terminal

import zerocopy
from zerocopy import display
from zerocopy.__main__ import main
from zerocopy.catalogue.contents import Entry
from zerocopy.cli.folding import folded


def layers() -> dict[str, Any]:
    """Return a state dict of twelve equal layers and a tie."""
    state: dict[str, Any] = {f"layers.{i}.wq.weight": torch.full((4, 2), float(i)) for i in range(12)}
    state["embedding.weight"] = torch.arange(6.0).view(3, 2)
    state["head.weight"] = state["embedding.weight"]
    state["view"] = state["embedding.weight"][1]
    state["half"] = torch.ones(3, dtype=torch.bfloat16)
    return state


def ls(capsys: Capture, *arguments: object) -> str:
    assert main(["ls", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def listed(capsys: Capture, path: Path) -> dict[str, Any]:
    printed = ls(capsys, "--json", path)
    assert printed.isascii()
    found: dict[str, Any] = json.loads(printed)
    require_valid("ls", found)
    return found


def in_format(kind: str, folder: Path) -> Path:
    """Write the tensors of :func:`layers` in a format."""
    state = layers()
    path = folder / "model.pt"
    torch.save(state, path, _use_new_zipfile_serialization=kind != "legacy")
    if kind in ("zip", "legacy"):
        return path
    if kind == "hdf5":
        pytest.importorskip("h5py")
        zerocopy.convert(path, folder / "model.h5")
        return folder / "model.h5"
    plain = folder / "plain.pt"
    torch.save({name: tensor.clone() for name, tensor in state.items()}, plain)
    if kind == "safetensors":
        zerocopy.convert(plain, folder / "model.safetensors")
        return folder / "model.safetensors"
    zerocopy.convert(plain, folder / "shards", max_shard_size="100B")
    return folder / "shards"


@pytest.mark.parametrize("kind", ["zip", "legacy", "hdf5", "safetensors", "shards"])
def test_ls_of_each_format_says_where_tensors_lie(kind: str, tmp_path: Path, capsys: Capture) -> None:
    found = listed(capsys, in_format(kind, tmp_path))
    by_name = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert by_name.keys() == layers().keys()
    for name, tensor in layers().items():
        said = by_name[name]
        assert (said["dtype"], said["shape"]) == (
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
        )
        content = tensor.contiguous().view(torch.uint8 if tensor.dim() else tensor.dtype)
        with Path(said["file"]).open("rb") as file:
            file.seek(said["offset"])
            assert file.read(said["bytes"]) == bytes(content.reshape(-1).tolist())
    if kind in ("zip", "legacy", "hdf5"):
        assert by_name["head.weight"]["same_as"] == "embedding.weight"
        assert by_name["view"]["same_as"] is None and by_name["view"]["shares_with"] == "embedding.weight"


def test_ls_without_torch_imports_no_torch(tmp_path: Path) -> None:
    kinds = ("zip", "legacy", "safetensors", "shards")
    for kind in kinds:
        (tmp_path / kind).mkdir()
    paths = [in_format(kind, tmp_path / kind) for kind in kinds]
    commands = [["ls", path, "--table"] for path in paths]
    for done in run_without_torch(*commands, absent=("torch", "h5py", "numpy")):
        assert done.code == 0 and "layers.{0..11}.wq.weight" in done.out, done.err


def test_ls_of_a_dcp_folder_lists_its_tensors(tmp_path: Path, capsys: Capture) -> None:
    writer = Writer(tmp_path)
    writer.add("weight", torch.ones(2, 3))
    writer.add("step", 7)
    halves = [((0, 0), torch.ones(1, 4)), ((1, 0), torch.ones(1, 4))]
    writer.add_chunks("halves", (2, 4), torch.float32, halves)
    found = listed(capsys, writer.write())
    said = {each["name"]: (each["shape"], each["bytes"]) for each in found["tensors"]}
    assert said == {"weight": ([2, 3], 24), "halves": ([2, 4], 32)}
    assert [value["name"] for value in found["values"]] == ["step"]


def test_ls_of_a_whole_module_finds_the_tensors_inside(save: Saver, capsys: Capture) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    path = save({"net": module, "args": argparse.Namespace(start=torch.ones(5))})
    found = {tensor["name"]: tensor for tensor in listed(capsys, path)["tensors"]}
    wanted = {f"net.{name}": list(tensor.shape) for name, tensor in module.state_dict().items()}
    assert {name: tensor["shape"] for name, tensor in found.items()} == wanted | {"args.start": [5]}
    assert found["args.start"]["inside"] == "argparse.Namespace"


class Subclass(torch.Tensor):
    """Saved as a call of torch's rebuild function."""


def tensors_of_calls() -> dict[str, Any]:
    """Return tensors that torch saves as calls of its rebuild functions."""
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, 2, 3])
    made = {
        "subclass": torch.ones(5, 7).as_subclass(Subclass),
        "transposed": torch.ones(5, 7).half().t().as_subclass(Subclass),
        "attribute": torch.ones(4, 3, dtype=torch.int64),
        "channels": torch.quantize_per_channel(torch.ones(4, 5), scales, zeros, 0, torch.quint8),
        "quantized": torch.quantize_per_tensor(torch.ones(4, 5), 0.1, 0, torch.qint32),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).double().to_sparse_csr(),
        "meta": torch.empty(2, 3, device="meta"),
    }
    made["attribute"].tag = 1
    if hasattr(torch.nn.parameter, "Buffer"):
        made["buffer"] = torch.nn.parameter.Buffer(torch.ones(3, 4))
    return made


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ls_of_tensors_that_a_call_makes_has_their_dtypes_and_shapes(save: Saver, capsys: Capture) -> None:
    tensors = tensors_of_calls()
    path = save(tensors)
    listed = {entry["name"]: entry for entry in json.loads(ls(capsys, path, "--json"))["tensors"]}
    for name, tensor in tensors.items():
        assert f"torch.{listed[name]['dtype']}" == str(tensor.dtype), name
        assert tuple(listed[name]["shape"]) == tuple(tensor.shape), name
    for name in ("subclass", "transposed", "attribute"):
        assert listed[name]["bytes"] == tensors[name].numel() * tensors[name].element_size(), name


def test_ls_of_tensors_of_several_parts_names_their_function(save: Saver, capsys: Capture) -> None:
    path = save({"sparse": torch.eye(3).to_sparse(), "plain": torch.ones(1)})
    sparse, plain = listed(capsys, path)["tensors"]
    assert sparse["shape"] == [3, 3] and sparse["offset"] is None and sparse["dtype"] == "float32"
    assert sparse["made_by"].startswith("torch._utils._rebuild_") and plain["made_by"] is None


def test_ls_in_a_pipe_prints_a_line_a_tensor(save: Saver, capsys: Capture) -> None:
    path = save(
        {"weight": torch.ones(2, 3), "tied": (one := torch.ones(1)), "also": one, "scalar": torch.tensor(1)}
    )
    rows = [line.split("\t") for line in ls(capsys, path).splitlines()]
    assert [row[:4] for row in rows] == [
        ["weight", "float32", "2x3", "24"],
        ["tied", "float32", "1", "4"],
        ["also", "float32", "1", "4"],
        ["scalar", "int64", "scalar", "8"],
    ]
    assert {row[4] for row in rows} == {str(path)} and [row[6] for row in rows] == ["-", "-", "=tied", "-"]
    assert all(row[5].isdecimal() for row in rows)


def test_ls_table_folds_layers_and_says_totals(save: Saver, capsys: Capture) -> None:
    path = save({"model": layers(), "step": 7, "rate": 0.5, "args": argparse.Namespace()})
    printed = ls(capsys, path, "--table")
    assert "model.layers.{0..11}.wq.weight" in printed and "12 of 4 x 2" in printed
    assert "step: 7" in printed and "rate: 0.5" in printed and "args: object argparse.Namespace" in printed
    assert "16 tensors" in printed and "1 tied" in printed and "bfloat16" in printed
    assert "layers.3.wq.weight" in ls(capsys, path, "--table", "--all")
    outline = ls(capsys, path, "--tree")
    assert "{0-11}" in outline and re.search(r"^ +layers +12 tensors ", outline, re.MULTILINE)


def test_ls_sort_orders_the_lines(save: Saver, capsys: Capture) -> None:
    path = save({f"l.{i}": torch.ones(i + 1) for i in (10, 2, 9, 1)})

    def names(order: str) -> list[str]:
        return [line.split("\t")[0] for line in ls(capsys, path, "--sort", order).splitlines()]

    assert names("name") == ["l.1", "l.2", "l.9", "l.10"]
    assert names("size") == ["l.10", "l.9", "l.2", "l.1"]
    offsets = [int(line.split("\t")[5]) for line in ls(capsys, path, "--sort", "offset").splitlines()]
    assert offsets == sorted(offsets)


def test_ls_globs_choose_names_and_branches(save: Saver, capsys: Capture) -> None:
    path = save({"a": {"x": torch.ones(1), "y": torch.ones(1)}, "b": torch.ones(1), "n": 1})
    assert [line.split("\t")[0] for line in ls(capsys, path, "a").splitlines()] == ["a.x", "a.y"]
    assert [line.split("\t")[0] for line in ls(capsys, path, "*.y", "b").splitlines()] == ["a.y", "b"]
    assert main(["ls", str(path), "nothing*"]) == 1
    assert capsys.readouterr().err.endswith("no name matches\n")


def test_ls_finds_a_name_with_brackets_and_its_branch(save: Saver, capsys: Capture) -> None:
    path = save({"w[0]": {"x": torch.ones(1)}, "v[1]": torch.ones(1), "w0.x": torch.ones(1)})
    assert [line.split("\t")[0] for line in ls(capsys, path, "v[1]").splitlines()] == ["v[1]"]
    assert [line.split("\t")[0] for line in ls(capsys, path, "w[0]").splitlines()] == ["w[0].x"]
    assert [line.split("\t")[0] for line in ls(capsys, path, "w[[]0].*").splitlines()] == ["w[0].x"]


def test_ls_on_a_terminal_never_cuts_a_name(save: Saver) -> None:
    names = ["a" * 70 + f".{i}.{'b' * 100}.weight" for i in range(5)]
    path = save({name: torch.ones(2, i + 1) for i, name in enumerate(names)} | layers())
    for form in ([], ["--tree", "--all"]):
        for columns in (40, 80, 200):
            code, printed = run_on_terminal(["ls", *form, str(path)], columns)
            lines = printed.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()[1:]
            rows = [line for line in lines if not re.search("aaa|bbb|tied| %", line)]
            assert code == 0 and max(map(len, rows)) <= columns
            shown = {line.split()[0] for line in lines}
            assert shown.issuperset(
                [names[0], "layers.{0..11}.wq.weight"] if not form else ["a" * 70, "b" * 100]
            )


def test_letters_of_any_language_keep_their_columns_on_a_terminal(save: Saver) -> None:
    path = save({"\u5c42.\u6743\u91cd": torch.ones(2), "\U0001f525": torch.ones(3), "plain": torch.ones(4)})
    _, printed = run_on_terminal(["ls", str(path)], 80)
    rows = printed.splitlines()[2:5]
    assert [row.split()[0] for row in rows] == ["\u5c42.\u6743\u91cd", "\U0001f525", "plain"]
    assert {display.columns(row[: row.index("float32")]) for row in rows} == {9}
    for name in ("\u5c42.\u6743\u91cd", "\U0001f525"):
        assert main(["show", str(path), name]) == 0


def test_shards_are_named_once_a_group(save: Saver, tmp_path: Path) -> None:
    state = {f"layers.{i:02}.weight": torch.ones(100) for i in range(12)}
    zerocopy.convert(save(state), tmp_path / "shards", max_shard_size="2kB")
    _, printed = run_on_terminal(["ls", "--all", str(tmp_path / "shards")], 120)
    files = [word for word in printed.split() if word.startswith("model-0")]
    assert len(files) == len(set(files)) > 1


def test_several_files_are_one_line_each(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    path = save({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.int64)})
    other = tmp_path / "other.safetensors"
    zerocopy.convert(path, other)
    (tmp_path / "text").write_text("no checkpoint")
    assert main(["ls", str(path), str(other), str(tmp_path / "text")]) == 2
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == [str(path), "zip", "2", "24", "int64,float32", "-"]
    assert [row[1] for row in rows] == ["zip", "safetensors"] and f"zerocopy ls: {tmp_path / 'text'}: " in err
    assert main(["ls", "--json", str(path), str(other)]) == 0
    assert [each["tensors"] for each in json.loads(capsys.readouterr().out)["files"]] == [2, 2]
    assert main(["ls", "--table", str(path), str(other)]) == 0
    assert "2 files, 4 tensors, 48 B" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["ls", str(path), str(other), "a*"])


def test_pipeline_lists_its_components(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    pipe = tmp_path / "pipe"
    for name in ("unet", "vae", "scheduler"):
        (pipe / name).mkdir(parents=True)
    (pipe / "model_index.json").write_text("{}")
    for name in ("unet", "vae"):
        zerocopy.convert(save({name: torch.ones(3)}), pipe / name / "diffusion_pytorch_model.safetensors")
    assert main(["ls", str(pipe)]) == 0
    assert [Path(line.split("\t")[0]).name for line in capsys.readouterr().out.splitlines()] == [
        "unet",
        "vae",
    ]


def test_lists_of_values_are_folded(save: Saver, capsys: Capture) -> None:
    path = save(
        {"params": list(range(199)), "loss": [0.5] * 9, "beta": [1, 2], "tags": list("abcdef"), "step": 3}
    )
    assert main(["ls", "--table", str(path)]) == 0
    out = capsys.readouterr().out
    for line in (
        "  params: 199 integers 0..198",
        "  loss: 9 floats from 0.5 to 0.5",
        "  beta: [1, 2]",
        "  tags: 6 strings: 'a', 'b', ...",
        "  step: 3",
    ):
        assert line in out.splitlines()
    assert main(["ls", "--table", "--all", str(path)]) == 0
    assert "  params.198: 198" in capsys.readouterr().out.splitlines()


def entries(*names: str) -> list[Entry]:
    return [Entry(name, "float32", (1,), 4, "file", i) for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["a.0.w", "a.1.w", "a.2.w"], ["a.{0..2}.w"]),
        (["a.0.w", "a.0.b", "a.1.w", "a.1.b"], ["a.{0..1}.w", "a.{0..1}.b"]),
        (["a.0.e.0", "a.0.e.1", "a.1.e.0", "a.1.e.1"], ["a.{0..1}.e.{0..1}"]),
        (["a.0.e.0", "a.0.e.1", "a.1.e.0"], ["a.0.e.{0..1}", "a.1.e.0"]),
        (["a.0", "a.2", "a.3", "a.9"], ["a.{0,2..3,9}"]),
        (["a.00", "a.01"], ["a.00", "a.01"]),
        (["a1", "a2", "0", "1"], ["a1", "a2", "{0..1}"]),
        (["a.1", "a.1.w"], ["a.1", "a.1.w"]),
    ],
)
def test_folded_names_stand_for_exactly_their_tensors(names: list[str], rows: list[str]) -> None:
    found = folded(entries(*names))
    assert [row.name for row in found] == rows
    assert sorted(entry.name for row in found for entry in row.entries) == sorted(names)


def test_ls_does_not_tie_a_tensor_to_its_conjugate(save: Saver, capsys: Capture) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    path = save({"x": x, "conjugate": x.conj(), "negative": torch._neg_view(x), "same": x})
    loaded = torch.load(path)  # PyTorch 1.13 does not save these flags
    ties = [
        None,
        "x" if not loaded["conjugate"].is_conj() else None,
        "x" if not loaded["negative"].is_neg() else None,
    ]
    found = listed(capsys, path)
    assert [tensor["same_as"] for tensor in found["tensors"]] == [*ties, "x"]
    assert [tensor["shares_with"] for tensor in found["tensors"]] == [None, "x", "x", "x"]


def test_ls_of_a_name_with_spaces_cannot_look_like_a_tie(save: Saver, capsys: Capture) -> None:
    out = ls(capsys, "--table", save({"head = embedding": torch.ones(2), "a  float64": torch.ones(1)}))
    assert "head\\x20=\\x20embedding" in out and "a\\x20\\x20float64" in out
