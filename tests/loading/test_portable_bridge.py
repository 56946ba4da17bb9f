"""Loads without a compiled bridge to torch: the same objects, over the same memory, for as long.

``ZEROCOPY_BRIDGE=portable scripts/test`` runs every other test so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from conftest import Saver
from fork_server import ForkServer

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
DTYPES += ["complex64", "complex128"]
SUPPORT = Path(__file__).parents[1]

HEAD = f"""
import sys
sys.path[:0] = [{str(SUPPORT)!r}, {str(SUPPORT / "support")!r}]
import gc, weakref
from pathlib import Path
import torch, zerocopy
from conftest import lies_in_mapping, maps_of, stock_load
from equality import assert_same, untyped
from zerocopy._native import bridge_info

assert bridge_info().kind == "portable"
path = Path(sys.argv[1])
"""


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    made = ForkServer(tmp_path_factory.mktemp("portable"), ZEROCOPY_BRIDGE="portable")
    yield made
    made.close()


@pytest.fixture
def run(portable: ForkServer) -> Callable[..., None]:
    def run(code: str, *arguments: object) -> None:
        done: CompletedProcess[str] = portable.run(HEAD + code, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    return run


@pytest.fixture
def path(save: Saver) -> Path:
    base = torch.arange(3000.0)
    complex_numbers = torch.randn(4, dtype=torch.complex64)
    return save(
        {
            "base": base,
            "tied": base[10:],
            "transposed": base.reshape(30, 100).t(),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(4),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "requires grad": torch.ones(2, requires_grad=True),
            "conjugate": complex_numbers.conj(),
            "negative": torch._neg_view(torch.ones(3)),
            **{name: torch.arange(32, dtype=torch.uint8).view(getattr(torch, name)) for name in DTYPES},
        }
    )


def test_values_ties_flags_and_memory_are_those_of_stock_torch(run: Callable[..., None], path: Path) -> None:
    run(
        """
loaded, stock = zerocopy.load(path), stock_load(path)
assert_same(loaded, stock)
assert untyped(loaded["base"])._cdata == untyped(loaded["tied"])._cdata
flags = [[(t.is_conj(), t.is_neg()) for t in tensors.values()] for tensors in (loaded, stock)]
assert flags[0] == flags[1]
assert not any(tensor._is_view() for tensor in loaded.values())
for name in ("base", "empty"):
    try:
        untyped(loaded[name]).resize_(1 << 20)
    except RuntimeError:
        continue
    raise AssertionError(name)
loaded["base"].fill_(7)
assert loaded["tied"][0] == 7 and stock_load(path)["base"][0] == 0
zerocopy.load(path, mode="r+")["scalar"].fill_(5)
assert stock_load(path)["scalar"] == 5
""",
        path,
    )


def test_memory_lives_as_long_as_its_last_storage(run: Callable[..., None], path: Path) -> None:
    run(
        """
import threading

for weights_only in (True, False):
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert len(maps_of(path)) == 1
    assert all(lies_in_mapping(t.data_ptr(), path) for t in loaded.values() if t.numel())
    view = loaded["tied"][5:9].detach()
    del loaded
    gc.collect()
    assert len(maps_of(path)) == 1 and view.tolist() == [15.0, 16.0, 17.0, 18.0]
    storage = untyped(view)
    del view
    assert len(maps_of(path)) == 1
    last = [storage]
    del storage
    thread = threading.Thread(target=last.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert maps_of(path) == []

class Buffer(bytearray):
    'Bytes that take weak references.'

buffer = Buffer(b"abcdefgh")
gone = weakref.ref(buffer)
storage = zerocopy.untyped_storage(buffer)
tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
storage[0] = 90
assert buffer[0] == 90 and tensor[0] == 90
del storage, buffer
gc.collect()
assert gone() is not None
del tensor
gc.collect()
assert gone() is None
kept = zerocopy.load(path), zerocopy.untyped_storage(bytearray(5))
""",
        path,
    )


def test_lazy_tensors_tie_and_are_loaded_once(run: Callable[..., None], path: Path) -> None:
    run(
        """
lazy = zerocopy.lazy_load(path)
assert lazy["transposed"].shape == (100, 30) and not lazy["base"].is_loaded
base, tied = lazy["base"].materialize(), lazy["tied"].materialize()
assert untyped(base).data_ptr() == untyped(tied).data_ptr()
assert (lazy["transposed"] + 0).tolist() == base.reshape(30, 100).t().tolist()
with zerocopy.open(path) as checkpoint:
    assert checkpoint.get_tensor("base").data_ptr() == checkpoint.get_tensor("base").data_ptr()
    assert checkpoint.get_slice("tied")[3:5].tolist() == [13.0, 14.0]
zerocopy.prefetch(zerocopy.load(path), block=True)
""",
        path,
    )
