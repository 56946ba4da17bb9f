"""``zerocopy.numpy``: arrays over mapped files, held against ``tensor.numpy()``; and without torch."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import archives
import numpy
import pytest
import safetensors_files
import torch
from attacks import geometry, safetensors, tensors
from attacks.attack import Expected, Family
from conftest import lies_in_mapping
from containers import CONTAINERS
from dcp_folders import Writer

import zerocopy
import zerocopy.numpy

BASE = torch.arange(24.0).view(4, 6)
PLAIN = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
NEWER = ("uint16", "uint32", "uint64")
BITS = {2: "uint16", 1: "uint8"}
LACKING = {
    name: getattr(torch, name)
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}
STATE = {
    "model": {"weight": BASE, "turned": BASE.t(), "column": BASE[1:, 2], "again": BASE},
    "wide": BASE[:, :1].expand(4, 5),
    "scalar": torch.tensor(3.5),
    "empty": torch.ones(0, 5),
    "complex": torch.tensor([1 + 2j, 3 - 1j]),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "step": 7,
}
TENSORS = {
    **{f"model.{name}": each for name, each in STATE["model"].items()},  # type: ignore[attr-defined]
    **{name: each for name, each in STATE.items() if isinstance(each, torch.Tensor)},
}


def require_equal(arrays: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Require the arrays that torch makes of tensors: dtype, shape, strides and values."""
    assert list(arrays) == list(tensors)
    for name, tensor in tensors.items():
        expected, found = tensor.detach().resolve_conj().resolve_neg().numpy(), arrays[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert numpy.array_equal(found, expected), name
        assert found.strides == expected.strides or not found.size, name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "state.pt")
    return tmp_path / "state.pt"


@pytest.mark.parametrize("container", CONTAINERS)
def test_load_gives_views_and_ties_as_torch(container: str, tmp_path: Path) -> None:
    content = CONTAINERS[container](STATE)
    (tmp_path / "state.pt").write_bytes(content)
    arrays = zerocopy.numpy.load(tmp_path / "state.pt")
    require_equal(arrays, TENSORS)
    (tmp_path / "behind.bin").write_bytes(b"12345" + content)
    with (tmp_path / "behind.bin").open("rb") as plain, io.BytesIO(b"12345" + content) as in_memory:
        for file in (plain, in_memory):
            file.seek(5)
        for given in (content, memoryview(content), plain, in_memory):
            require_equal(zerocopy.numpy.load(given), TENSORS)
        assert plain.tell() == in_memory.tell() == 5 + len(content)
    weight = arrays["model.weight"]
    for name in ("turned", "column", "again"):
        assert numpy.shares_memory(weight, arrays[f"model.{name}"]), name
    assert not numpy.shares_memory(weight, arrays["parameter"])
    weight[1, 2] = -1
    assert arrays["model.column"][0] == -1
    assert numpy.array_equal(zerocopy.numpy.load(tmp_path / "state.pt")["model.weight"], BASE.numpy())


def test_arrays_lie_in_one_mapping_which_outlives_the_mapping_of_names(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zerocopy.numpy.open(path) as arrays:
        assert (len(arrays), "scalar" in arrays, "step" in arrays) == (len(TENSORS), True, False)
        weight, parameter = arrays["model.weight"], arrays["parameter"]
        assert weight is not arrays["model.weight"]
        assert numpy.shares_memory(weight, arrays["model.weight"])
    assert lies_in_mapping(weight.ctypes.data, path) and lies_in_mapping(parameter.ctypes.data, path)
    assert numpy.array_equal(weight, BASE.numpy())
    with pytest.raises(zerocopy.ClosedError, match=r"state\.pt is closed"):
        arrays["scalar"]
    for backend in ("pread", "direct"):
        monkeypatch.setenv("ZEROCOPY_BACKEND", backend)
        arrays_read = zerocopy.numpy.load(path)
        require_equal(arrays_read, TENSORS)
        assert not lies_in_mapping(arrays_read["model.weight"].ctypes.data, path)
    monkeypatch.setenv("ZEROCOPY_BACKEND", "fast")
    with pytest.raises(ValueError, match="ZEROCOPY_BACKEND must be one of"):
        zerocopy.numpy.open(path)


@pytest.mark.parametrize("content", ["zip", "deflated"])
def test_mode_r_gives_arrays_that_are_read_only(content: str, tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(CONTAINERS[content](STATE))
    arrays = zerocopy.numpy.load(tmp_path / "state.pt", mode="r")
    require_equal(arrays, TENSORS)
    assert not any(array.flags.writeable for array in arrays.values())
    with pytest.raises(ValueError, match="read-only"):
        arrays["scalar"][...] = 1


def every_dtype(names: tuple[str, ...] = PLAIN) -> list[torch.Tensor]:
    names += tuple(name for name in NEWER if hasattr(torch, name))
    return [torch.tensor([0, 1, 100, 3]).to(getattr(torch, name)) for name in names]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_load_gives_every_dtype_in_both_byte_orders(compression: int, tmp_path: Path) -> None:
    tensors = every_dtype()
    named = {str(number): tensor for number, tensor in enumerate(tensors)}
    torch.save(tensors, tmp_path / "little.pt")
    require_equal(zerocopy.numpy.load(tmp_path / "little.pt"), named)
    (tmp_path / "big.pt").write_bytes(archives.big_endian(tensors, compression))
    require_equal(zerocopy.numpy.load(tmp_path / "big.pt"), named)


def test_load_reads_conjugate_and_negative_views(tmp_path: Path) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    tensors = {"conjugate": tensor.conj(), "negative": tensor.clone().conj().imag}
    torch.save(tensors, tmp_path / "state.pt")
    # torch 1.13 does not write that they are such views.
    require_equal(zerocopy.numpy.load(tmp_path / "state.pt"), torch.load(tmp_path / "state.pt"))


@pytest.mark.parametrize("name", LACKING)
def test_dtypes_that_numpy_lacks_come_by_ml_dtypes_or_as_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.tensor([0.5, 1, 2, 4]).to(LACKING[name])
    bits = BITS[tensor.element_size()]
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_files.saved({"w": tensor, "x": torch.ones(2)}))
    as_bits = zerocopy.numpy.load(path, view=["uint16", "uint8"])["w"]
    expected = tensor.view(getattr(torch, bits.replace("uint16", "int16"))).numpy().view(bits)
    assert as_bits.dtype == bits and numpy.array_equal(as_bits, expected)
    with monkeypatch.context() as patch, zerocopy.numpy.open(path) as arrays:
        patch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(
            zerocopy.UnsupportedError, match=rf'w is of {name}.*install ml_dtypes.*view="{bits}"'
        ):
            arrays["w"]
        assert arrays["x"].tolist() == [1, 1]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found = zerocopy.numpy.load(path)["w"]
    assert found.dtype == getattr(ml_dtypes, name)
    assert found.astype("float32").tolist() == tensor.float().tolist()


def test_tensors_without_arrays_are_unsupported_by_name(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = {
            "sparse": torch.eye(3).to_sparse(),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        }
        torch.save({"plain": torch.ones(2), **odd}, tmp_path / "state.pt")
    with zerocopy.numpy.open(tmp_path / "state.pt") as arrays:
        for name in odd:
            with pytest.raises(zerocopy.UnsupportedError, match=f"state.pt: {name} is made by"):
                arrays[name]
        assert arrays["plain"].tolist() == [1, 1]
    with pytest.raises(zerocopy.UnsupportedError, match="sparse is made by"):
        zerocopy.numpy.load(tmp_path / "state.pt")


def test_load_takes_hdf5_as_it_lies_and_as_h5py_reads_it(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["plain/weight"] = BASE.numpy()
        file["plain/again"] = file["plain/weight"]
        file.create_dataset("packed", data=BASE.numpy(), chunks=(2, 3), compression="gzip")
        file["swapped"] = BASE.numpy().astype(">f8")
        file["pairs"] = numpy.zeros(3, [("a", "i4"), ("b", "f4")])
    with pytest.warns(UserWarning, match="pairs"):
        arrays = zerocopy.numpy.load(tmp_path / "x.h5")
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "packed": "float32", "plain.again": "float32", "plain.weight": "float32", "swapped": "float64",
    }  # fmt: skip
    assert all(numpy.array_equal(array, BASE.numpy()) for array in arrays.values())
    assert numpy.shares_memory(arrays["plain.weight"], arrays["plain.again"])
    assert lies_in_mapping(arrays["plain.weight"].ctypes.data, tmp_path / "x.h5")


def test_load_takes_shards(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": torch.full((20,), float(number)) for number in range(4)}
    torch.save(tensors, tmp_path / "state.pt")
    zerocopy.convert(tmp_path / "state.pt", tmp_path / "shards", max_shard_size=200)
    index = tmp_path / "shards" / "model.safetensors.index.json"
    for source in (tmp_path / "shards", index):
        require_equal(zerocopy.numpy.load(source), tensors)
    next((tmp_path / "shards").glob("*-00002-of-*")).unlink()
    with pytest.raises(FileNotFoundError):
        zerocopy.numpy.open(index)
    with pytest.warns(UserWarning, match="no shard has"):
        require_equal(zerocopy.numpy.load(index, strict=False), dict(list(tensors.items())[:2]))


def dcp_folder(folder: Path) -> Writer:
    folder.mkdir()
    writer = Writer(folder)
    writer.add("whole", BASE)
    writer.add("scalar", torch.tensor(2.5))
    writer.add_chunks("chunked", BASE.shape, BASE.dtype, [((0, 0), BASE[:1]), ((1, 0), BASE[1:].clone())])
    writer.add("step", 7)
    return writer


def test_load_takes_folders_of_distributed_checkpoints(tmp_path: Path) -> None:
    folder = dcp_folder(tmp_path / "dcp").write()
    with zerocopy.numpy.open(folder) as arrays:
        require_equal(arrays, {"whole": BASE, "scalar": torch.tensor(2.5), "chunked": BASE})
        assert lies_in_mapping(arrays["whole"].ctypes.data, folder / "__0_0.distcp")


def test_load_refuses_folders_whose_chunks_are_wrong(tmp_path: Path) -> None:
    writer = dcp_folder(tmp_path / "dcp")
    whole = writer.entries["whole"]
    whole.chunks[0].sizes = whole.size = torch.Size([6, 4])
    with pytest.raises(zerocopy.FormatError, match="not a chunk of whole"):
        zerocopy.numpy.load(writer.write())
    writer.add_chunks(
        "chunked", (1 << 40,), BASE.dtype, [((0,), BASE[0]), ((6,), torch.ones(1).expand((1 << 40) - 6))]
    )
    with pytest.raises(zerocopy.FormatError, match="chunked is larger than its chunks"):
        zerocopy.numpy.open(writer.write())["chunked"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", zerocopy.FormatError, "file is empty"),
        (b"hello, I am a text", zerocopy.FormatError, "state.pt: "),
        (archives.rezip(CONTAINERS["zip"](STATE))[:-70], zerocopy.FormatError, "state.pt: "),
        (safetensors_files.saved({"w": BASE})[:-4], zerocopy.FormatError, "state.pt: "),
    ],
)
def test_open_names_the_file_that_is_damaged(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(error, match=message) as raised:
        zerocopy.numpy.open(tmp_path / "state.pt")
    assert str(raised.value).count("state.pt") == 1


@pytest.mark.parametrize(
    "family",
    [geometry.GEOMETRY, tensors.STORAGES, safetensors.SAFETENSORS],
    ids=lambda family: family.title,
)
def test_load_refuses_what_contradicts_the_format(family: Family, tmp_path: Path) -> None:
    for number, attack in enumerate(family.attacks):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(attack.make())
        try:
            zerocopy.numpy.load(path, view=("uint8", "uint16", "uint32"))
        except (zerocopy.Error, pickle.UnpicklingError) as error:
            assert str(error).startswith(f"{path}: "), attack.name
        else:
            assert attack.here().expected is not Expected.FORMAT, attack.name


def test_load_refuses_a_compressed_record_that_does_not_inflate(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(CONTAINERS["deflated"]({"w": torch.arange(1000.0)}))
    begin = archives.payload_offset(path, "data/0")
    content = bytearray(path.read_bytes())
    content[begin : begin + 16] = b"\xff" * 16
    path.write_bytes(content)
    with (
        zerocopy.numpy.open(path) as arrays,
        pytest.raises(zerocopy.FormatError, match=r"state\.pt: deflated"),
    ):
        arrays["w"]


def test_open_checks_arguments_and_names(path: Path) -> None:
    with pytest.raises(ValueError, match="expected mode 'c' or 'r', found 'w'"):
        zerocopy.numpy.open(path, mode="w")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected view among .*, found 'float16'"):
        zerocopy.numpy.load(path, view="float16")
    with pytest.raises(KeyError, match=r"no tensor is named model\.wieght; close to it: model\.weight"):
        zerocopy.numpy.open(path)["model.wieght"]
    with pytest.raises(FileNotFoundError):
        zerocopy.numpy.open(path.with_name("none.pt"))


@pytest.mark.slow("a process start")
def test_numpy_works_where_torch_cannot_be_imported(path: Path) -> None:
    program = f"""
import sys
class WithoutTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)
sys.meta_path.insert(0, WithoutTorch())
import zerocopy
arrays = zerocopy.numpy.load({str(path)!r})
print(arrays["scalar"], len(arrays), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"3.5 {len(TENSORS)} False\n", done.stderr
