"""``.safetensors`` files: what the safetensors package reads in them, by every way into a checkpoint."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from conftest import lies_in_mapping, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import zerocopy

WHOLE = torch.arange(60.0).view(3, 4, 5)
TENSORS = {
    "model.weight": WHOLE,
    "model.bias": torch.arange(7, dtype=torch.int64),
    "flags": torch.tensor([True, False, True]),
    "scale": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3, dtype=torch.float16),
    "half": torch.arange(9.0).bfloat16(),
}
METADATA = {"format": "pt", "author": "Ä"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # By size of elements, as the package writes them: so each is aligned.
    tensors = dict(sorted(TENSORS.items(), key=lambda item: -item[1].element_size()))
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_files.saved(tensors, METADATA))
    return path


# --------------------------------------------------------------------------------- loading


def test_load(path: Path) -> None:
    """A dict of ordinary tensors, each with a storage of its own, in the file's mapping."""
    loaded = zerocopy.load(path)
    assert type(loaded) is dict
    assert_same_bits(loaded, TENSORS)
    for tensor in loaded.values():
        assert tensor.numel() == 0 or lies_in_mapping(tensor.data_ptr(), path)
        assert not tensor.requires_grad
    loaded["model.weight"].zero_()
    assert_same_bits(zerocopy.load(path), TENSORS)


def test_ways_to_load(path: Path) -> None:
    """There is nothing to trust in such a file: weights_only makes no difference. Its name makes none either."""
    for backend in ("auto", "mmap", "pread"):
        for weights_only in (True, False, None):
            assert_same_bits(zerocopy.load(path, backend=backend, weights_only=weights_only), TENSORS)
    content = path.read_bytes()
    for f in (content, bytearray(content), memoryview(content), io.BytesIO(content), path.open("rb")):
        assert_same_bits(zerocopy.load(f), TENSORS)
    behind = io.BytesIO(b"before" + content)
    behind.seek(6)
    assert_same_bits(zerocopy.load(behind), TENSORS)
    assert behind.tell() == len(content) + 6
    assert_same_bits(zerocopy.load(path.rename(path.with_name("model"))), TENSORS)


def test_map_location(path: Path) -> None:
    for location in ("meta", torch.device("meta"), {"cpu": "meta"}, lambda storage, location: storage):
        loaded = zerocopy.load(path, map_location=location)
        assert {t.device.type for t in loaded.values()} == {"cpu" if callable(location) else "meta"}
        assert loaded["model.weight"].shape == WHOLE.shape


def test_what_is_not_aligned_is_copied_and_explained(tmp_path: Path) -> None:
    """Old writers put the data anywhere."""
    path = tmp_path / "odd.safetensors"
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": WHOLE}
    path.write_bytes(safetensors_files.saved(tensors))
    assert_same_bits(zerocopy.load(path), tensors)
    storages = {storage.key: storage for storage in zerocopy.explain(path).storages}
    assert storages["a"].how == "mapped"
    assert storages["b"].how == "copied" and "aligned" in storages["b"].why
    assert "safetensors" in str(zerocopy.explain(path))
    with pytest.raises(zerocopy.UnsupportedError, match="r\\+"):
        zerocopy.load(path, mode="r+")


def test_every_dtype() -> None:
    for name, dtype in safetensors_files.DTYPES.items():
        size = torch.empty(0, dtype=dtype).element_size()
        data = bytes(i % 2 for i in range(6 * size))
        header = {"x": safetensors_files.entry(name, [2, 3], [0, len(data)])}
        content = safetensors_files.file(header, data)
        loaded = zerocopy.load(content)["x"]
        assert (loaded.dtype, loaded.shape) == (dtype, (2, 3))
        assert safetensors_files.bytes_of(loaded) == data
        assert zerocopy.open(content).get_slice("x").get_dtype() == name


def test_a_dtype_of_later_releases() -> None:
    if hasattr(torch, "uint16"):
        pytest.skip("this release has it")
    header = {"x": safetensors_files.entry("U16", [1], [0, 2])}
    with pytest.raises(zerocopy.UnsupportedError, match="uint16"):
        zerocopy.load(safetensors_files.file(header, b"ab"))


def test_four_bits() -> None:
    """Of which torch has two in each element."""
    content = safetensors_files.file({"x": safetensors_files.entry("F4", [2, 4], [0, 4])}, b"abcd")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        with pytest.raises(zerocopy.UnsupportedError, match="float4"):
            zerocopy.load(content)
        return
    loaded = zerocopy.load(content)["x"]
    assert (loaded.dtype, loaded.shape) == (torch.float4_e2m1fn_x2, (2, 2))
    assert bytes(loaded.view(torch.uint8).reshape(-1).tolist()) == b"abcd"
    assert zerocopy.open(content).get_slice("x").get_dtype() == "F4"
    ragged = safetensors_files.file({"x": safetensors_files.entry("F4", [2, 1], [0, 1])}, b"a")
    with pytest.raises(zerocopy.UnsupportedError, match="rows"):
        zerocopy.load(ragged)


# --------------------------------------------------------------------------------- lazily, and open


def test_open(path: Path) -> None:
    with zerocopy.open(path) as checkpoint:
        assert sorted(checkpoint) == sorted(TENSORS)
        assert checkpoint.metadata() == METADATA
        for name, tensor in TENSORS.items():
            assert torch.equal(checkpoint.get_tensor(name), tensor)
            info = checkpoint.info(name)
            assert (info.shape, info.dtype, info.stride) == (tensor.shape, tensor.dtype, tensor.stride())
            if tensor.numel():
                expected = safetensors_files.bytes_of(tensor)
                assert path.read_bytes()[info.offset :][: info.nbytes] == expected
        sliced = checkpoint.get_slice("model.weight")
        assert torch.equal(sliced[1:, ::2, 3], WHOLE[1:, ::2, 3])
        assert (sliced.get_shape(), sliced.get_dtype()) == ([3, 4, 5], "F32")


# --------------------------------------------------------------------------------- the package


def theirs(path: Path) -> Any:
    module = pytest.importorskip("safetensors.torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module.load_file(path)


def test_sizes_that_the_package_refuses(tmp_path: Path) -> None:
    refusal = pytest.importorskip("safetensors").SafetensorError
    path = tmp_path / "model.safetensors"
    for shape in ("[-0]", "[1e0]", "[+0]", "[9223372036854775808]", "[-1]"):
        header = f'{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}'.encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(zerocopy.FormatError):
            zerocopy.load(path)
        with pytest.raises(refusal):
            theirs(path)


def test_equal_to_the_package(path: Path) -> None:
    assert_same_bits(zerocopy.load(path), theirs(path))
    assert list(zerocopy.load(path)) == list(theirs(path))


# Its load() knows all but one of them.
DTYPES = [dtype for name, dtype in safetensors_files.DTYPES.items() if name != "F8_E8M0"]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
NAMES = st.text(max_size=8).filter(lambda name: name != "__metadata__")


@st.composite
def models(draw: Any) -> dict[str, torch.Tensor]:
    """Return tensors of any dtype and shape, their bits anything."""
    shapes = draw(st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=8))
    made = {}
    for name, (dtype, shape) in shapes.items():
        nbytes = torch.empty(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        bits = [value % 2 if dtype == torch.bool else value for value in range(nbytes)]
        flat = torch.tensor([value % 256 for value in bits], dtype=torch.uint8)
        made[name] = (flat.view(dtype) if nbytes else torch.empty(0, dtype=dtype)).reshape(shape)
    return made


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.slow("a random sweep"))])
def test_what_the_package_writes(examples: int) -> None:
    package = pytest.importorskip("safetensors.torch")

    @settings(max_examples=examples, deadline=None)
    @given(models(), st.none() | st.dictionaries(st.text(), st.text()))
    def equals(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> None:
        # Of no tensors and no metadata it writes a header that it does not read itself (0.8.0).
        content = package.save(tensors, metadata if tensors else None)
        assert_same_bits(zerocopy.load(content), package.load(content))
        assert zerocopy.open(content).metadata() == (metadata if tensors and metadata else {})

    equals()


@pytest.mark.slow("a random sweep")
@settings(max_examples=300, deadline=None)
@given(models(), st.data())
def test_damage(tensors: dict[str, torch.Tensor], data: Any) -> None:
    """A damaged file that loads gives what the package gives. zerocopy refuses more."""
    load = pytest.importorskip("safetensors.torch").load
    content = bytearray(safetensors_files.saved(tensors))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    ours = outcome(lambda: zerocopy.load(bytes(content)))
    if ours[0] == "error":
        assert issubclass(ours[1], zerocopy.Error)
    else:
        assert_same_bits(ours[1], load(bytes(content)))


def assert_same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Assert that two dicts have the same names, dtypes, shapes and bits."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)
        assert safetensors_files.bytes_of(tensor) == safetensors_files.bytes_of(theirs[name])
