"""Results that are resident on a real GPU. `scripts/gpu-check` runs these; without a CUDA device they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch
from equality import untyped

from zerocopy import share
from zerocopy.errors import UnsupportedError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("resident")) as place:
        yield place


def loaded(*call: Any) -> Any:
    with share.resident("cuda"):
        return share.load(*call)


def holder() -> dict[str, Any]:
    status = share.status()
    assert status is not None
    (there,) = (there for entry in status["entries"] for there in entry["resident"].values())
    return dict(there)


def test_resident_module_equals_the_module_on_the_cpu() -> None:
    there, other, here = loaded(sharing.Module), loaded(sharing.Module), share.load(sharing.Module)
    assert there.second.weight is there.first.weight
    for (name, tensor), expected in zip(there.state_dict().items(), here.state_dict().values(), strict=True):
        assert tensor.device == torch.device("cuda", torch.cuda.current_device()), name
        assert (tensor.dtype, tensor.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(tensor.cpu(), expected), name
    assert torch.allclose(there(torch.ones(40, device="cuda")).cpu(), here(torch.ones(40)), atol=1e-5)
    with torch.no_grad():
        there.frozen.fill_(6)
    assert other.frozen.tolist() == [6.0] * 3 and here.frozen.tolist() == [1.0] * 3


def test_two_processes_have_one_copy_and_leave_nothing(tmp_path: Path) -> None:
    share.unload("*")
    size = 1 << 30
    before = set(Path("/dev/shm").iterdir())
    mine = loaded(sharing.filled, size, 1)
    free = torch.cuda.mem_get_info()[0]
    code = """
import sys, torch, sharing
from zerocopy import share
torch.zeros(1, device="cuda")
before = torch.cuda.mem_get_info()[0]
with share.resident("cuda"):
    tensor = share.load(sharing.filled, int(sys.argv[1]), 1)
assert int(tensor[::4096].sum()) == len(tensor[::4096])
tensor[5] = 200
torch.cuda.synchronize()
print(before - torch.cuda.mem_get_info()[0] < len(tensor) // 4)
"""
    out, complaints = sharing.client(code, size).communicate(timeout=300)
    assert (out, int(mine[5])) == ("True\n", 200), complaints
    pid = holder()["pid"]
    share.unload("*")
    assert not sharing.is_gone(pid) and int(mine[::4096].sum()) == len(mine[::4096])
    assert untyped(mine).nbytes() == size
    del mine
    sharing.wait_until(lambda: sharing.is_gone(pid), 60)
    sharing.wait_until(lambda: torch.cuda.mem_get_info()[0] > free + size // 2, 60)
    # CUDA's own of this process are there until it ends.
    left = {path.name for path in set(Path("/dev/shm").iterdir()) - before}
    assert not {name for name in left if not name.startswith("cuda.shm.") or f".{pid:x}." in name}


def test_tensors_outlive_the_server() -> None:
    mine = loaded(sharing.filled, 1 << 24, 3)
    pid = holder()["pid"]
    share.shutdown()
    assert int(mine[::4096].sum()) == 3 * 4096 and not sharing.is_gone(pid)
    del mine
    sharing.wait_until(lambda: sharing.is_gone(pid), 60)


def test_no_room() -> None:
    size = 2 << 30
    share.load(sharing.filled, size, 4)
    torch.cuda.empty_cache()
    hog = torch.empty(torch.cuda.mem_get_info()[0] - size, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError, match=f"^{size} bytes"):
        loaded(sharing.filled, size, 4)
    del hog
    torch.cuda.empty_cache()
    assert int(loaded(sharing.filled, size, 4)[-1]) == 4


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="CUDA devices"):
        share.resident(f"cuda:{torch.cuda.device_count()}")
