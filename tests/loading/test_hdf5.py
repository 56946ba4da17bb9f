"""HDF5 files against h5py: what torch.save wrote record by record, and groups of datasets, of every kind."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, stock_load
from equality import assert_same

import zerocopy
from zerocopy import _core
from zerocopy.cli import main
from zerocopy.loading.formats import hdf5, hdf5_dataset

h5py = pytest.importorskip("h5py")
numpy = pytest.importorskip("numpy")

STATE = {"weight": torch.arange(12.0).view(3, 4), "tied": None, "steps": [1, 2], "empty": torch.empty(0, 3)}
STATE["tied"] = STATE["weight"][1:]


def notebook(source: Path, target: Path, *, table: bool = True) -> None:
    """Write what the HDF5 notebook writes of a .pt file."""
    import zipfile

    rows = []
    with zipfile.ZipFile(source) as archive, h5py.File(target, "w") as file:
        for info in archive.infolist():
            name = "archive/" + info.filename.partition("/")[2]
            data = file.create_dataset(name, data=numpy.frombuffer(archive.read(info), numpy.int8))
            if name.startswith("archive/data/"):
                rows.append((int(name[13:]), data.id.get_offset() or 0, data.shape[0]))
        if table:
            file["offsets_table"] = numpy.array(rows)


@pytest.fixture
def converted(save: Saver, tmp_path: Path) -> Path:
    zerocopy.convert(save(STATE), tmp_path / "m.h5")
    return tmp_path / "m.h5"


def made(path: Path, **datasets: Any) -> Path:
    """Write datasets, as libhdf5 of today likes to: the core leaves such files to h5py."""
    with h5py.File(path, "w", libver="latest") as file:
        for name, data in datasets.items():
            file[name] = data
    return path


def how(path: Path) -> dict[str, tuple[str, str]]:
    return {one.key: (one.how, one.why) for one in zerocopy.explain(path).storages}


# ----------------------------------------------------------------------- what torch.save wrote


@pytest.mark.parametrize("table", [True, False])
def test_the_notebooks_layout(save: Saver, tmp_path: Path, table: bool) -> None:
    path = save({"w": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.float64)})
    notebook(path, tmp_path / "m.h5", table=table)
    assert_same(zerocopy.load(tmp_path / "m.h5"), stock_load(path))


def test_writes_reach_the_file_where_they_are_wanted(converted: Path) -> None:
    zerocopy.load(converted)["weight"][0, 0] = 100
    assert zerocopy.load(converted)["weight"][0, 0] == 0
    zerocopy.load(converted, mode="r+")["weight"][0, 0] = 100
    with h5py.File(converted) as file:
        assert file["archive/data/0"][:4].view(numpy.float32)[0] == 100


def test_lazily(converted: Path) -> None:
    lazy = zerocopy.lazy_load(converted)
    assert isinstance(lazy["weight"], zerocopy.NotYetLoadedTensor)
    assert torch.equal(lazy["weight"] + 0, STATE["weight"])
    with zerocopy.open(converted) as checkpoint:
        assert list(checkpoint) == ["weight", "tied", "empty"]
        assert checkpoint.get_slice("weight")[1, 2:].tolist() == [6, 7]
        assert checkpoint.info("weight").tied == ("tied",)


@pytest.mark.parametrize("chunks", [None, (8,)])
def test_storages_that_are_packed(save: Saver, tmp_path: Path, chunks: Any) -> None:
    path = save({"w": torch.arange(100.0)})
    notebook(path, tmp_path / "m.h5", table=False)
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        for name in ("archive/data/0", "archive/data.pkl"):
            data = file[name][...]
            del file[name]
            file.create_dataset(name, data=data, compression="gzip", chunks=chunks)
    assert_same(zerocopy.load(tmp_path / "m.h5"), stock_load(path))
    assert how(tmp_path / "m.h5") == {"0": ("copied", "the dataset is chunked (deflate)")}


# ----------------------------------------------------------------------- groups of datasets

KINDS = ["?", "i1", "u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]
if hasattr(torch, "uint16"):
    KINDS += ["<u2", "<u4", "<u8"]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_each_type_is_mapped(tmp_path: Path, libver: str) -> None:
    arrays = {kind: numpy.arange(6).reshape(2, 3).astype(kind) for kind in KINDS}
    with h5py.File(tmp_path / "f.h5", "w", libver=libver) as file:
        for kind, values in arrays.items():
            file[f"a/{kind}"] = values
    loaded, placed = zerocopy.load(tmp_path / "f.h5")["a"], how(tmp_path / "f.h5")
    for kind, values in arrays.items():
        wanted = torch.from_numpy(values)
        assert torch.equal(loaded[kind], wanted) and loaded[kind].dtype == wanted.dtype
        assert placed[f"a/{kind}"][1] in ("", "the record is not aligned for its elements")


def test_groups_are_nested_dicts(tmp_path: Path) -> None:
    path = made(tmp_path / "f.h5", **{"model/layer/weight": numpy.ones((2, 2)), "step": numpy.int64(7)})
    with h5py.File(path, "r+") as file:
        file.create_group("model/nothing")
    loaded = zerocopy.load(path)
    assert loaded["model"]["nothing"] == {} and loaded["step"].item() == 7
    with zerocopy.open(path) as checkpoint:
        assert list(checkpoint) == ["model.layer.weight", "step"]


def odd_dataset(file: Any, kind: str) -> tuple[Any, str]:
    """Make a dataset that a tensor cannot lie over; return its values, and a part of why not."""
    values = numpy.arange(3000, dtype="i4").reshape(30, 100)
    if kind == "big-endian":
        file.create_dataset("x", data=values.astype(">i4"))
    elif kind == "never written":
        file.create_dataset("x", values.shape, "i4", fillvalue=7)
        values = numpy.full(values.shape, 7, "i4")
    elif kind == "compact":
        values = values[:2]
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, layout)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    elif kind == "not torch's":
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(20)
        made = h5py.h5d.create(file.id, b"x", narrow, h5py.h5s.create_simple(values.shape))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    else:
        packing = {
            "chunked": {"chunks": (7, 9)},
            "deflate": {"compression": "gzip"},
            "lzf": {"compression": "lzf"},
        }
        file.create_dataset("x", data=values, **packing[kind])
    return values, kind


@pytest.mark.parametrize("user_block", [0, 512])
@pytest.mark.parametrize(
    "kind", ["chunked", "deflate", "lzf", "big-endian", "never written", "compact", "not torch's"]
)
def test_what_cannot_be_mapped_is_read(tmp_path: Path, kind: str, user_block: int) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w", userblock_size=user_block) as file:
        values, why = odd_dataset(file, kind)
    assert torch.equal(zerocopy.load(path)["x"], torch.from_numpy(values))
    explained = how(path)["x"]
    assert explained[0] == "copied" and why in explained[1]
    assert torch.equal(zerocopy.lazy_load(path)["x"] * 2, torch.from_numpy(values * 2))
    with zerocopy.open(path) as checkpoint:
        assert torch.equal(checkpoint.get_slice("x")[1, 3:50], torch.from_numpy(values[1, 3:50]))
        assert checkpoint.info("x").offset is None
    with pytest.raises(zerocopy.UnsupportedError, match=r"r\+"):
        zerocopy.load(path, mode="r+")


ARRAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "mapped": ("<f4", {}),
    "deflate": ("<f4", {"compression": "gzip"}),
    "big-endian": (">i2", {}),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_elements_that_are_arrays(tmp_path: Path, kind: str) -> None:
    """Their shape follows that of the dataset, as in h5py."""
    (base, options), path = ARRAYS[kind], tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        values = numpy.arange(3 * 5 * 2 * 4).reshape(3, 5, 2, 4).astype(base)
        file.create_dataset("x", (3, 5), numpy.dtype((base, (2, 4))), **options)[...] = values
        file.create_dataset("scalar", (), numpy.dtype((base, (2,))))
        file.create_dataset("texts", (2,), numpy.dtype(("S3", (2,))))
    wanted = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
    loaded = zerocopy.load(path)
    assert list(loaded) == ["scalar", "x"] and loaded["scalar"].tolist() == [0, 0]
    assert torch.equal(loaded["x"], wanted) and loaded["x"].dtype == wanted.dtype
    with zerocopy.open(path) as checkpoint:
        assert torch.equal(checkpoint.get_slice("x")[1:, 2, 1], wanted[1:, 2, 1])
    assert kind == "mapped" or kind in how(path)["x"][1]


def test_nothing_in_a_dataset(tmp_path: Path) -> None:
    path = made(
        tmp_path / "f.h5", null=h5py.Empty("f4"), none=numpy.empty((0, 5), "i8"), scalar=numpy.float32(3)
    )
    loaded = zerocopy.load(path)
    assert loaded["null"].shape == (0,) and loaded["none"].shape == (0, 5)
    assert loaded["scalar"].shape == () and loaded["scalar"] == 3


def test_texts_are_left_out_and_numbers_that_no_tensor_holds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["x"] = numpy.ones(3)
        file["text"], file["texts"] = "text", numpy.array([b"a", b"b"])
        file["type"] = numpy.dtype("f4")
        file.attrs["author"] = "nobody"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(zerocopy.load(path)) == ["x"]
    with h5py.File(path, "r+") as file:
        file["group/pairs"] = numpy.zeros(3, [("a", "i4"), ("b", "f4")])
        file["reference"] = numpy.array([file["x"].ref], h5py.ref_dtype)
        file["colours"] = numpy.zeros(3, h5py.enum_dtype({"RED": 0, "BLUE": 1}, "i4"))
        file["wide"] = numpy.zeros(3, numpy.longdouble)
        file["bytes"] = numpy.zeros(3, "V2")
        file.create_dataset("ragged", (2,), h5py.vlen_dtype("i4"))
    for call in (zerocopy.load, zerocopy.lazy_load, lambda path: dict(zerocopy.open(path))):
        with pytest.warns(UserWarning, match="left out 6 datasets") as warned:
            found = call(path)
        assert [name for name in found if name != "group"] == ["x"] and len(warned) == 1
        assert call is zerocopy.lazy_load or Path(warned[0].filename).name == Path(__file__).name
        said = str(warned[0].message)
        for name in ("group.pairs (compound: a, b)", "reference (references)", "colours (an enumeration)",
                     "wide (of type ", "bytes (of type ", "ragged (lists of any length)"):  # fmt: skip
            assert name in said, said


OPAQUE = ["bfloat16", *(name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))]


@pytest.mark.parametrize("named", [str.encode, str, numpy.bytes_])
def test_opaque_numbers_are_what_an_attribute_says(tmp_path: Path, named: Callable[[str], Any]) -> None:
    path = tmp_path / "f.h5"
    wanted = {}
    with h5py.File(path, "w") as file:
        for dtype in OPAQUE:
            wanted[dtype] = torch.arange(12.0).view(3, 4).to(getattr(torch, dtype))
            raw = wanted[dtype].view(torch.uint8).numpy().view(f"V{wanted[dtype].element_size()}")
            for how, options in {"mapped": {}, "packed": {"compression": "gzip", "chunks": (2, 2)}}.items():
                file.create_dataset(f"{dtype}/{how}", data=raw, **options).attrs["dtype"] = named(dtype)
        file.create_dataset("wrong", data=numpy.zeros(3, "V3")).attrs["dtype"] = "bfloat16"
        file.create_dataset("unknown", data=numpy.zeros(3, "V2")).attrs["dtype"] = numpy.arange(70)
    with pytest.warns(UserWarning, match=r"wrong \(of type \|V3\)"):
        loaded = zerocopy.load(path)
    with pytest.warns(UserWarning), zerocopy.open(path) as checkpoint:
        for dtype, tensor in wanted.items():
            for kind in ("mapped", "packed"):
                assert loaded[dtype][kind].dtype == tensor.dtype
                assert torch.equal(loaded[dtype][kind].float(), tensor.float())
                assert torch.equal(
                    checkpoint.get_slice(f"{dtype}.{kind}")[1:, 2].float(), tensor[1:, 2].float()
                )
        assert checkpoint.info("bfloat16.mapped").offset is not None
    assert main(["verify", str(path)]) == 0


def test_two_names_of_one_dataset_are_tied(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["x"] = numpy.zeros(3)
        file["group/hard"] = file["x"]
        file["group/soft"] = h5py.SoftLink("/x")
        file["absolute"] = h5py.SoftLink("/group/hard")
        file.create_dataset("packed", data=numpy.zeros(3), chunks=(2,))
        file["again"] = file["packed"]
    loaded = zerocopy.load(path)
    loaded["x"][1] = 5
    loaded["packed"][1] = 6
    assert loaded["group"]["hard"][1] == loaded["group"]["soft"][1] == loaded["absolute"][1] == 5
    assert loaded["again"][1] == 6


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_many_datasets(tmp_path: Path, libver: str) -> None:
    for count in (1, 9, 300):
        with h5py.File(tmp_path / "f.h5", "w", libver=libver) as file:
            for i in range(count):
                file[f"group/{i}"] = numpy.int32(i)
        loaded = zerocopy.load(tmp_path / "f.h5")["group"]
        assert {name: value.item() for name, value in loaded.items()} == {str(i): i for i in range(count)}


def test_a_user_block_is_stepped_over(tmp_path: Path) -> None:
    for name, block in (("f.h5", 512), ("f.hdf5", 4096)):
        path = tmp_path / name
        with h5py.File(path, "w", userblock_size=block) as file:
            file["x"] = numpy.arange(1000.0)
        with path.open("r+b") as raw:
            raw.write(b"#!/bin/sh\n")
        assert torch.equal(zerocopy.load(path)["x"], torch.arange(1000.0, dtype=torch.float64))
        assert how(path)["x"][0] == "mapped"
        with pytest.raises(zerocopy.FormatError):  # what comes first is what it is, elsewhere
            zerocopy.load(path.rename(tmp_path / "f.pt"))


def test_soft_links_behind_each_other(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["group/x"], file["text"] = numpy.zeros(3), "text"
        file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("group/./x")
        file["group/c"], file["no numbers"] = h5py.SoftLink("/a"), h5py.SoftLink("text")
    loaded = zerocopy.load(path)
    loaded["a"][1] = 5
    assert loaded["b"][1] == loaded["group"]["x"][1] == loaded["group"]["c"][1] == 5
    assert sorted(loaded) == ["a", "b", "group"]
    with h5py.File(path, "r+") as file:
        file["d"] = h5py.SoftLink("/group")
    with pytest.raises(zerocopy.UnsupportedError, match="soft link 'd' leads to a group"):
        zerocopy.load(path)


def test_soft_link_that_leads_to_no_numbers_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    targets = "/nothing", "/dangling 1", "group/nothing", "/text", "../group/x", "group/../group/x"
    with h5py.File(path, "w") as file:
        file["group/x"], file["text"] = numpy.arange(3.0), "text"
        for number, target in enumerate(targets):
            file[f"dangling {number}"] = h5py.SoftLink(target)
    for loaded in (zerocopy.load(path), zerocopy.lazy_load(path)):
        assert loaded["group"]["x"].tolist() == [0, 1, 2] and list(loaded) == ["group"]
    with zerocopy.open(path) as opened:
        assert list(opened) == ["group.x"]


@pytest.mark.slow("changes thousands of files")
@pytest.mark.parametrize("seed", ["table", "shapes", "types", "many"])
def test_what_the_core_lists_h5py_lists(seed: str, tmp_path: Path) -> None:
    """Files with a field changed: the core may leave one to h5py, and may not list it otherwise."""
    good = (Path(__file__).parent.parent / "fuzz/corpus/hdf5" / seed).read_bytes()
    chance = random.Random(seed)
    path, listed = tmp_path / "f.h5", 0
    for _ in range(1000):
        changed = bytearray(good)
        for _ in range(chance.choice((1, 1, 2))):
            at, width = chance.randrange(8, len(good) - 8), chance.choice((1, 2, 4, 8))
            value = chance.choice((0, 1, 8, 96, len(good), 1 << 62, (1 << 64) - 1, chance.getrandbits(64)))
            changed[at : at + width] = value.to_bytes(8, "little")[:width]
        path.write_bytes(changed)
        with path.open("rb") as file:
            by_core = _core.hdf5_listing(file.fileno(), "f.h5")
            if by_core is not None:
                assert sorted(by_core) == sorted(hdf5.listing_of_open(file.fileno(), 0, "f.h5")), bytes(
                    changed
                )
                listed += 1
    assert listed > 100


# ----------------------------------------------------------------------- beside others


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A file that takes h5py."""
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("x", data=numpy.arange(300_000), chunks=(1000,))
    return tmp_path / "packed.h5"


def test_addresses_that_no_file_has(packed: Path) -> None:
    """In the superblock of version 0: more than a signed number of 64 bits can be."""
    for place in (39, 55):
        content = bytearray(packed.read_bytes())
        content[place] = 0x80
        for source in (bytes(content), Path(f"{packed}.{place}")):
            if isinstance(source, Path):
                source.write_bytes(content)
            with pytest.raises(zerocopy.FormatError):
                zerocopy.load(source)


def test_a_process_ends_with_placeholders_that_nobody_frees(packed: Path, forked: Child) -> None:
    """libhdf5 closes open files after Python has ended."""
    done = forked(
        """
        import ctypes, pathlib, sys, zerocopy
        path = pathlib.Path(sys.argv[1])
        for source in (path, path.read_bytes()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(zerocopy.lazy_load(source)["x"]))
        """,
        packed,
    )
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------- without h5py


WITHOUT = """
    import sys
    sys.modules["h5py"] = None  # import h5py raises ImportError
    import zerocopy
    print(zerocopy.load(sys.argv[1])["weight"].sum().item())
    for call in (lambda: zerocopy.load(sys.argv[2]), lambda: zerocopy.convert(sys.argv[3], sys.argv[1])):
        try:
            call()
        except zerocopy.UnsupportedError as error:
            named = sys.argv[2] in str(error) or sys.argv[1] + " needs h5py" in str(error)
            assert named and "not installed" in str(error), error
            print("refused")
"""


def test_without_h5py(converted: Path, save: Saver, tmp_path: Path, forked: Child) -> None:
    """Plain files load without h5py, and nothing else imports it."""
    packed = tmp_path / "packed.h5"
    with h5py.File(packed, "w") as file:
        file.create_dataset("x", data=numpy.zeros(3), chunks=(2,))
    done = forked(WITHOUT, converted, packed, save(STATE))
    assert done.stdout.split() == ["66.0", "refused", "refused"], done.stderr


# ----------------------------------------------------------------------- datasets that h5py reads


def loaded_as_by_h5py(path: Path, folder: Path) -> None:
    """Assert that loading, slicing and converting a file's dataset "x" give what h5py gives."""
    with h5py.File(path) as file:
        wanted = torch.from_numpy(file["x"][()].astype(file["x"].dtype.newbyteorder("=")))
    assert torch.equal(zerocopy.load(path)["x"], wanted)
    with zerocopy.open(path) as checkpoint:
        assert torch.equal(checkpoint.get_slice("x")[...], wanted)
    zerocopy.convert(path, folder / "new.safetensors")
    assert torch.equal(zerocopy.load(folder / "new.safetensors")["x"], wanted)


@pytest.mark.parametrize(
    ("dtype", "fill", "written"),
    [("u1", None, 0), (">i2", 1, 1), ("<f4", 1, 5), ("<c8", None, 5), ("?", 1, 0)],
)
def test_dataset_that_was_written_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, fill: int | None, written: int
) -> None:
    monkeypatch.setattr(hdf5_dataset, "_SPARSE", 2)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset(
            "x", (11, 7, 5), dtype, chunks=(2, 3, 4), fillvalue=fill and numpy.ones((), dtype)[()]
        )
        for i in range(written):
            data[2 * i, i, :4] = numpy.arange(i, i + 4).astype(dtype)
        data[10, 6, 4:] = written > 3
    loaded_as_by_h5py(tmp_path / "f.h5", tmp_path)


@pytest.mark.parametrize("shape", [(300,), (20, 15), (1, 300), (300, 1), (4, 1, 80)])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_more_chunks_than_one_read_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], options: Any
) -> None:
    monkeypatch.setattr(hdf5_dataset, "_MOST_CHUNKS", 32)
    values = numpy.arange(numpy.prod(shape), dtype="i4").reshape(shape)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=tuple(min(2, size) for size in shape), **options)
    loaded_as_by_h5py(tmp_path / "f.h5", tmp_path)
    assert main(["verify", str(tmp_path / "f.h5")]) == 0


def test_dataset_of_millions_of_chunks_that_was_never_written(tmp_path: Path, forked: Child) -> None:
    """libhdf5 takes some hundred bytes for each chunk, whether it is there or not."""
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 24,), "u1", chunks=(1,), fillvalue=7)
        file["y"] = 1.5
    code = """
        import resource, sys, zerocopy
        zerocopy.load(sys.argv[2])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x = zerocopy.load(sys.argv[1])["x"]
        print(bool((x == 7).all()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    with h5py.File(tmp_path / "small.h5", "w") as file:
        file.create_dataset("x", (3,), "u1", chunks=(1,))
    done = forked(code, path, tmp_path / "small.h5")
    assert done.returncode == 0, done.stderr
    is_filled, kilobytes = done.stdout.split()
    assert is_filled == "True" and int(kilobytes) < 80_000


@pytest.mark.parametrize("written", [False, True])
def test_verify_reads_what_is_in_the_file_alone(tmp_path: Path, written: bool) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset("x", (1 << 42,), "f4", chunks=(1 << 10,))
        if written:
            data[1 << 41] = 5
    assert main(["verify", str(tmp_path / "f.h5")]) == 0


def over_one_place(path: Path, count: int) -> None:
    """Write big-endian datasets that all lie over the same bytes."""
    size = 1 << 16
    with h5py.File(path, "w") as file:
        first = file.create_dataset("0", data=numpy.ones(size // 4, ">f4"))
        place = first.id.get_offset()
        for i in range(1, count):
            file.create_dataset(str(i), (size // 4,), ">f4")
    nowhere, length = b"\xff" * 8, size.to_bytes(8, "little")
    content = path.read_bytes()
    assert content.count(nowhere + length) == count - 1
    path.write_bytes(content.replace(nowhere + length, place.to_bytes(8, "little") + length))


@pytest.mark.parametrize("entry", [zerocopy.load, zerocopy.lazy_load, zerocopy.open])
def test_datasets_that_share_bytes_are_refused(tmp_path: Path, entry: Any) -> None:
    over_one_place(tmp_path / "f.h5", 20)
    with pytest.raises(zerocopy.FormatError, match="share bytes"):
        entry(tmp_path / "f.h5")


def test_dataset_in_another_file_is_refused_when_its_data_are_used(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["here"] = numpy.arange(3, dtype="f4")
        file.create_dataset("elsewhere", (4,), "f4", external=[(str(tmp_path / "other"), 0, 16)])
    (tmp_path / "other").write_bytes(bytes(16))
    with zerocopy.open(path) as checkpoint:
        assert checkpoint["here"].tolist() == [0, 1, 2]
        assert checkpoint.info("elsewhere").shape == (4,)
        with pytest.raises(
            zerocopy.UnsupportedError, match=r"m\.h5.*'elsewhere' has its data in other files"
        ):
            checkpoint["elsewhere"].sum()
    assert zerocopy.lazy_load(path)["here"].sum() == 3
    with pytest.raises(zerocopy.UnsupportedError, match=r"m\.h5.*'elsewhere' has its data in other files"):
        zerocopy.load(path)
