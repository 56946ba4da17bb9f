"""``Checkpoint.get_slice``: every index as the whole tensor takes it, and no page that it does not need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from archives import big_endian, payload_offset
from conftest import outcome
from containers import CONTAINERS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from page_cache import PAGE, drop, resident

import zerocopy
from benchmarks.data.sparse import write_sparse_checkpoint

_CUBE = torch.arange(4 * 5 * 6, dtype=torch.float64).view(4, 5, 6)
TENSORS: dict[str, torch.Tensor] = {
    "scalar": torch.tensor(3),
    "vector": torch.arange(7, dtype=torch.int16),
    "matrix": torch.arange(20.0).view(4, 5),
    "cube": _CUBE,
    "four": torch.arange(48, dtype=torch.bfloat16).view(2, 3, 2, 4),
    "transposed": _CUBE.transpose(0, 2),
    "strided": _CUBE[1:, ::2, 1::3],
    "late": _CUBE[::2][1:],
    "expanded": torch.arange(3).view(1, 3, 1).expand(4, 3, 2),
    "overlapping": torch.arange(10.0).as_strided((4, 3), (2, 1), 1),
    "empty": torch.ones(3, 0, 2),
    "behind": _CUBE[4:],
    "bool": torch.tensor([True, False, True]),
    "complex": torch.view_as_complex(torch.arange(24.0).view(3, 4, 2)),
    "conjugate": torch.view_as_complex(torch.arange(24.0).view(3, 4, 2)).conj(),
    "parameter": torch.nn.Parameter(torch.arange(12.0).view(3, 4)),
    "leaf": torch.ones(2, 3, requires_grad=True),
}


class Opened(NamedTuple):
    checkpoint: zerocopy.Checkpoint
    eager: dict[str, torch.Tensor]

    def __repr__(self) -> str:  # in hypothesis's reports
        return self.checkpoint.path


@pytest.fixture(scope="module", params=CONTAINERS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Give a checkpoint, and its tensors loaded."""
    path = tmp_path_factory.mktemp("slices") / "x.pt"
    path.write_bytes(CONTAINERS[request.param](TENSORS))
    with zerocopy.open(path) as checkpoint:
        yield Opened(checkpoint, zerocopy.load(path))


def check(checkpoint: zerocopy.Checkpoint, name: str, whole: torch.Tensor, index: Any) -> None:
    """Compare with the whole tensor: values, shape, dtype; or the exception, torch's own."""
    ours = outcome(lambda: checkpoint.get_slice(name)[index])
    eager = outcome(lambda: whole.detach()[index])
    assert ours[0] == eager[0], f"{name}[{index}]: {ours} and {eager}"
    if ours[0] == "error":  # 1.13 words one of them otherwise for tensors without memory
        assert ours[1] == eager[1], f"{name}[{index}]: {ours} and {eager}"
        return
    part, expected = ours[1], eager[1]
    assert type(part) is torch.Tensor and not part.requires_grad
    assert (part.shape, part.dtype, part.device) == (expected.shape, expected.dtype, expected.device)
    assert torch.equal(part.resolve_conj(), expected.resolve_conj())


_BOUNDS = st.none() | st.integers(-8, 8)
_BASIC = (
    st.integers(-7, 7)
    | st.builds(slice, _BOUNDS, _BOUNDS, st.none() | st.integers(1, 4))
    | st.none()
    | st.just(...)
)
_ADVANCED = (
    st.lists(st.integers(-3, 3), max_size=3)
    | st.booleans()
    | st.lists(st.integers(0, 2), min_size=1, max_size=3).map(torch.tensor)
    | st.integers(-2, 2).map(np.int64)
    | st.builds(slice, _BOUNDS, _BOUNDS, st.integers(-2, 0))
    | st.sampled_from(["a", 1.5, {}, torch.tensor(1), torch.tensor([True, False, True])])
)


relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


def indices(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return parts | st.lists(parts, max_size=5).map(tuple)


@pytest.mark.slow("random indices")
@pytest.mark.filterwarnings("ignore:.*sequence.*:UserWarning")
@relaxed
@given(name=st.sampled_from(sorted(TENSORS)), index=indices(_BASIC | _ADVANCED))
@example(name="behind", index=(..., ..., slice(None)))  # torch takes it of tensors with memory only
def test_any_indexing(opened: Opened, name: str, index: Any) -> None:
    checkpoint, eager = opened
    check(checkpoint, name, eager[name], index)


# One of each: integers, slices, steps, new dimensions, masks, lists, too many, and what no tensor takes.
INDICES: list[Any] = [
    *(0, -1, 9, slice(None), slice(1, 3), slice(None, -1, 2), slice(3, 1), None, ..., True, "a", 1.5, {}),
    *((0, 1), (slice(1), 0), (..., slice(None, None, 3)), (None, slice(1, 2), ...), (0, ..., -1), (0,) * 5),
    *(
        [1, 0],
        [],
        torch.tensor([0, 0, 1]),
        np.int64(1),
        (slice(None), [0, 1]),
        torch.tensor(1),
        slice(2, 0, -1),
    ),
    *(torch.tensor([True, False, True]), (..., None), (slice(1, 4), None, slice(0, 9, 4))),
]


@pytest.mark.filterwarnings("ignore:.*sequence.*:UserWarning")
def test_slices_are_those_of_the_whole_tensor(opened: Opened) -> None:
    for name, whole in opened.eager.items():
        for index in INDICES:
            check(opened.checkpoint, name, whole, index)


def test_slice_tells_shape_and_dtype(opened: Opened) -> None:
    names = {"scalar": "I64", "cube": "F64", "four": "BF16", "bool": "BOOL", "complex": "C64"}
    for name, whole in opened.eager.items():
        part = opened.checkpoint.get_slice(name)
        assert part.shape == whole.shape and type(part.shape) is torch.Size
        assert part.get_shape() == list(whole.shape) and type(part.get_shape()) is list
        assert part.dtype == whole.dtype and part.get_dtype() == names.get(name, part.get_dtype())
        assert outcome(lambda part=part: len(part)) == outcome(lambda whole=whole: len(whole))
        assert str(part.dtype) in repr(part)
        if whole.dim():
            rows = list(part)
            assert len(rows) == len(part) and all(map(torch.equal, rows, whole.detach()))


def test_a_slice_is_on_its_own(opened: Opened) -> None:
    """Writes to a slice stay in the slice. Writes to the placeholder do not appear in a slice."""
    checkpoint, eager = opened
    part = checkpoint.get_slice("matrix")[1:]
    part.fill_(7)
    assert torch.equal(checkpoint.get_slice("matrix")[...], eager["matrix"])
    placeholder = checkpoint["matrix"]
    placeholder.fill_(8)
    assert torch.equal(checkpoint.get_slice("matrix")[...], eager["matrix"])
    assert part.tolist() == [[7.0] * 5] * 3


def test_buffers_and_big_endian() -> None:
    state = [torch.arange(20.0).view(4, 5), torch.arange(6, dtype=torch.int16)]
    checkpoint = zerocopy.open(big_endian(state))
    for index in (slice(1, 3), (slice(None), slice(None, None, 2)), -1, [0, 1]):
        check(checkpoint, "0", state[0], index)
    check(checkpoint, "1", state[1], slice(1, None, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "quantized"])
def test_other_tensors(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    dense = torch.eye(3)
    whole = dense.to_sparse() if kind == "sparse" else torch.quantize_per_tensor(dense, 0.5, 3, torch.qint8)
    torch.save([whole], path)
    if outcome(lambda: zerocopy.load(path))[0] == "error":
        pytest.skip("this release has it on no list")
    part = zerocopy.open(path).get_slice("0")
    assert part.shape == (3, 3) and len(part) == 3 and part.dtype == whole.dtype
    for index in (1, slice(1, 3)):
        ours, eager = outcome(lambda index=index: part[index]), outcome(lambda index=index: whole[index])
        assert ours[0] == eager[0]
        if ours[0] == "value":
            plain = torch.Tensor.to_dense if kind == "sparse" else torch.dequantize
            assert torch.equal(plain(ours[1]), plain(eager[1]))
        else:
            assert ours == eager


ROWS, COLUMNS = 4096, 4096


@pytest.fixture
def big(tmp_path: Path) -> tuple[Path, int]:
    """Return a file with one matrix of 64 MiB, cold, and where the matrix begins in it."""
    path = tmp_path / "big.pt"
    torch.save({"weight": torch.zeros(ROWS, COLUMNS), "t": None}, path)
    begin = payload_offset(path, "data/0")
    drop(path)
    return path, begin


def pages(begin: int, nbytes: int) -> set[int]:
    return set(range(begin // PAGE, -(-(begin + nbytes) // PAGE)))


def read_by(path: Path, index: Any) -> set[int]:
    """Return the pages that reading a slice brings into memory, besides those of opening the file."""
    with zerocopy.open(path) as checkpoint:
        part = checkpoint.get_slice("weight")
        before = resident(path)
        part[index].clone()
        return resident(path) - before


def test_a_row_reads_its_own_pages(big: tuple[Path, int]) -> None:
    path, begin = big
    rows = read_by(path, slice(1000, 1016))
    needed = pages(begin + 1000 * COLUMNS * 4, 16 * COLUMNS * 4)
    assert rows <= needed and len(rows) >= len(needed) - 2


def test_columns_read_a_page_of_each_row(big: tuple[Path, int]) -> None:
    path, begin = big
    read = read_by(path, (slice(1000, 1064), slice(2048, 2050)))
    needed = set().union(*(pages(begin + (row * COLUMNS + 2048) * 4, 8) for row in range(1000, 1064)))
    assert needed <= read and len(read) <= len(needed) + 4


def test_steps_read_a_page_of_each(big: tuple[Path, int]) -> None:
    path, begin = big
    read = read_by(path, slice(0, None, 256))
    needed = set().union(*(pages(begin + row * COLUMNS * 4, COLUMNS * 4) for row in range(0, ROWS, 256)))
    assert read <= needed | pages(0, begin + PAGE) and len(read) <= len(needed) + 4


@pytest.mark.slow("a file of 64 GiB")
def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """Of 64 GiB of holes a few elements from all over it are some pages."""
    path = tmp_path / "huge.pt"
    try:
        write_sparse_checkpoint(path, 64 << 30, tensors=32)
    except OSError as error:
        pytest.skip(f"this file system takes no file of 64 GiB: {error}")
    with zerocopy.open(path) as checkpoint:
        part = checkpoint.get_slice("layers.30.weight")
        assert part.shape == (1 << 29,)
        assert part[:4].tolist() == [31, 32, 33, 34] and part[:: 1 << 26].tolist() == [31, *[0] * 7]
        assert part[-1] == 0
