"""Results on a device, one copy for all processes, simulated in ordinary memory (`simulated_residence.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import sharing
import simulated_residence
import torch
from equality import assert_same, untyped

from zerocopy import _C, share
from zerocopy._torch import cuda
from zerocopy.cli import main
from zerocopy.errors import UnsupportedError
from zerocopy.share import ServerError
from zerocopy.share.client import load_call, resident
from zerocopy.share.wire import frames


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("resident")) as place:
        yield place


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resident.KINDS, "cpu", simulated_residence.Memfd)


def loaded(*call: Any) -> Any:
    with share.resident("cpu"):
        return share.load(*call)


def residents() -> list[dict[str, Any]]:
    status = share.status()
    assert status is not None
    return [there for entry in status["entries"] for there in entry["resident"].values()]


def addresses(*tensors: torch.Tensor) -> list[int]:
    return [untyped(tensor).data_ptr() for tensor in tensors]


def parts(size: int) -> Any:
    """Return tensors beside what Python reads itself, and tensors that are tied or empty."""
    base = torch.arange(float(size))
    return {
        "box": sharing.Box(base, base[5:], torch.empty(0), storage=untyped(torch.ones(7))),
        "bytes": bytes(range(256)) * 32,
        "array": numpy.arange(2000),
        "half": torch.nn.Parameter(torch.ones(3, 3, dtype=torch.bfloat16).t()),
        "equal": [torch.ones(8000), torch.ones(8000)],
    }


def only_bytes() -> Any:
    return sharing.Box(b"x" * 10_000, numpy.ones(3000))


def only_empty() -> Any:
    return [torch.empty(0), torch.empty(0, 5)]


# ------------------------------------------------------------------------------------- what comes back


@pytest.mark.parametrize("call", [(sharing.Module,), (sharing.counted, b"/dev/null", 5), (parts, 3000)])
def test_resident_results_equal_ordinary_ones(call: tuple[Any, ...]) -> None:
    one, other, plain = loaded(*call), loaded(*call), share.load(*call)
    if call[0] is sharing.Module:
        assert_same(one.state_dict(), plain.state_dict())
        assert one.second.weight is one.first.weight and not one.training
        assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in plain.parameters()]
        assert torch.equal(one(torch.ones(40)), plain(torch.ones(40)))
        tensor, same, apart = one.first.weight, other.first.weight, plain.first.weight
    elif call[0] is parts:
        base, tied, empty = one["box"].things
        assert torch.equal(base, torch.arange(3000.0)) and tied[0] == 5 and empty.shape == (0,)
        assert addresses(base) == addresses(tied) and one["box"].named["storage"].tolist()[-1] == 63
        assert one["bytes"] == plain["bytes"] and numpy.array_equal(one["array"], plain["array"])
        assert_same(one["half"], plain["half"])
        assert len(set(addresses(*one["equal"]))) == 2  # they were no tie
        # Buffers that Python reads stay private.
        one["array"][0] = 9
        assert other["array"][0] == 0
        tensor, same, apart = base, other["box"].things[0], plain["box"].things[0]
    else:
        assert_same(one, plain)
        tensor, same, apart = one["tensor"], other["tensor"], plain["tensor"]
    # One copy, which all see written to; and none of it in what is not resident.
    before = apart.detach().clone()
    with torch.no_grad():
        tensor.view(-1)[1] = 77
    assert same.reshape(-1)[1] == 77 and torch.equal(apart, before)


def test_result_without_tensors_needs_no_device() -> None:
    share.unload("*")
    tokenizer, empty = loaded(only_bytes), loaded(only_empty)
    assert tokenizer.things[0] == b"x" * 10_000 and tokenizer.things[1].sum() == 3000
    assert [tuple(tensor.shape) for tensor in empty] == [(0,), (0, 5)]
    assert [there["memory"] for there in residents()] == [0]  # of the empty ones


def test_concurrent_requests_start_one_device_owner() -> None:
    share.unload("*")
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(loaded(sharing.filled, 100_000))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found[0][7] = 5
    assert [int(tensor.sum()) for tensor in found] == [5] * 6
    assert [there["memory"] for there in residents()] == [100_000]


def test_another_process_has_the_same_copy(capsys: pytest.CaptureFixture[str]) -> None:
    share.unload("*")
    mine = loaded(sharing.filled, 50_000, 1)
    code = """
import simulated_residence, sharing
from zerocopy import share
from zerocopy.share.client import resident
resident.KINDS["cpu"] = simulated_residence.Memfd
with share.resident("cpu"):
    tensor = share.load(sharing.filled, 50_000, 1)
assert int(tensor.sum()) == 50_000
tensor[3] = 200
"""
    done = sharing.client(code)
    assert done.communicate(timeout=180)[1] == "" and mine[3] == 200
    (there,) = residents()
    assert main(["ps"]) == 0
    said = capsys.readouterr().out
    assert "on cpu: sharing.filled, 48.8 KiB" in said and f"held by process {there['pid']}" in said


def test_a_resident_result_as_an_argument_goes_by_value() -> None:
    box = share.load(sharing.box, loaded(sharing.filled, 5000, 2))
    assert int(box.things[0].sum()) == 10_000
    there = loaded(sharing.box, loaded(sharing.filled, 5000, 2))
    assert int(there.things[0].sum()) == 10_000


# ------------------------------------------------------------------------------------------------ life


def test_resident_copy_lives_as_long_as_its_last_user(server: Path) -> None:
    share.unload("*")
    shared_memory = set(Path("/dev/shm").iterdir())
    before = sharing.descriptors_of()
    first, second = loaded(sharing.Module), loaded(sharing.Module)
    (there,) = residents()
    share.unload("*")
    assert residents() == [] and not sharing.is_gone(there["pid"])
    weight = first.frozen
    del first, second
    assert not sharing.is_gone(there["pid"]) and torch.equal(weight, torch.ones(3))
    del weight
    sharing.wait_until(lambda: sharing.is_gone(there["pid"]))
    # One that nobody has but the server goes with it: unloaded, shut down.
    for end in (lambda: share.unload("*"), share.shutdown):
        loaded(sharing.filled, 3000)
        (there,) = residents()
        end()
        sharing.wait_until(lambda there=there: sharing.is_gone(there["pid"]))
    sharing.leaves_no_shared_memory(shared_memory)
    assert sharing.descriptors_of() <= before + 1  # a connection


@pytest.mark.parametrize("ended", ["server", "holder"])
def test_result_is_remade_after_its_process_is_killed(server: Path, ended: str) -> None:
    mine = loaded(sharing.filled, 4000, 3)
    status, (there,) = share.status(), residents()
    assert status is not None
    if ended == "server":
        os.kill(status["pid"], signal.SIGKILL)
        sharing.wait_until(lambda: sharing.is_gone(status["pid"]))
        assert not sharing.is_gone(there["pid"])
    else:
        os.kill(there["pid"], signal.SIGKILL)
        sharing.wait_until(lambda: sharing.is_gone(there["pid"]))
        assert residents() == []
    mine[0] = 9  # the old copy: others get a new one
    again = loaded(sharing.filled, 4000, 3)
    assert int(again.sum()) == 12_000 and residents()[0]["pid"] != there["pid"]
    assert int(mine.sum()) == 12_006
    del mine
    sharing.wait_until(lambda: sharing.is_gone(there["pid"]))


def test_resident_copy_in_use_is_not_evicted(tmp_path: Path) -> None:
    with sharing.served(tmp_path, ZEROCOPY_MAX_BYTES="1M", ZEROCOPY_SHARE_IDLE="1") as place:
        mine = loaded(sharing.filled, 700_000, 1)
        with pytest.raises(ServerError, match="do not fit"):
            share.load(sharing.filled, 700_000, 2)
        (there,) = residents()
        del mine
        assert int(share.load(sharing.filled, 700_000, 2)[0]) == 2
        sharing.wait_until(lambda: sharing.is_gone(there["pid"]))
        sharing.wait_until(lambda: not place.exists())  # nobody has asked for long


# --------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        (
            simulated_residence.Full,
            torch.cuda.OutOfMemoryError,
            "^6000 bytes .* are needed on cpu, in one piece",
        ),
        (
            simulated_residence.Deadly,
            ServerError,
            "the loader of sharing.filled on cpu was killed by signal 9",
        ),
        (simulated_residence.Broken, RuntimeError, "invalid device context"),
    ],
)
def test_a_holder_that_fails(monkeypatch: pytest.MonkeyPatch, kind: Any, error: Any, match: str) -> None:
    monkeypatch.setitem(resident.KINDS, "cpu", kind)
    share.unload("*")
    for _ in range(2):
        with pytest.raises(error, match=match) as caught:
            loaded(sharing.filled, 6000, 4)
    assert error is ServerError or isinstance(caught.value.__cause__, load_call.LoaderTraceback)
    assert residents() == [] and int(share.load(sharing.filled, 6000, 4).sum()) == 24_000
    monkeypatch.setitem(resident.KINDS, "cpu", simulated_residence.Memfd)
    assert int(loaded(sharing.filled, 6000, 4).sum()) == 24_000


def test_requests_about_results_that_are_not_there(server: Path) -> None:
    sharing.start_server(server)
    with sharing.connected(server) as connection:
        asked = {"id": "0" * 16, "device": "cpu", "key": "0 cpu"}
        assert sharing.asked(connection, "resident", **asked) == {"state": "lost"}
    for body in ({}, {"id": 5, "device": [], "key": None}, {"id": [], "device": {}}):
        with sharing.connected(server) as connection, contextlib.suppress(frames.FrameError, OSError):
            connection.settimeout(20)
            assert sharing.asked(connection, "resident", **body) == {"state": "lost"}
    assert share.load(int, "6") == 6


def test_a_lease_lasts_as_long_as_any_part_of_its_storage() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    whole = untyped(torch.arange(4.0))
    leased = _C.leased_storage(whole, [writing, writing])
    os.close(writing)
    part = _C.storage_within(leased, 4, 8)
    assert leased.tolist() == whole.tolist()
    del leased, whole
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    assert part.tolist() == untyped(torch.tensor([1.0, 2.0])).tolist()
    with pytest.raises(OSError, match="lease"):
        _C.leased_storage(part, [writing])
    del part
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(resident.KINDS, "cpu")
    for device in ("cpu", "meta", torch.device("cpu")):
        with pytest.raises(UnsupportedError, match="memory of that kind is not shared"):
            share.resident(device)
    wrong = "cuda:99" if torch.cuda.is_available() else "cuda"
    with pytest.raises(UnsupportedError, match="CUDA device"):
        share.resident(wrong)
    with pytest.raises(RuntimeError):
        share.resident("no device")
    assert resident.wanted() is None


def test_cudas_memory_is_taken_apart_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported segment does not grow. CUDA's files in /dev/shm are removed with the device owner, and no
    others."""
    said: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", said.append, raising=False)
    monkeypatch.setattr(cuda, "_SHARED_MEMORY", tmp_path)
    kind = resident.Cuda(torch.device("cpu"))
    assert kind.allocate(8).numel() == 8 and said == ["expandable_segments:False"]
    ours = [f"cuda.shm.0.{os.getpid():x}.{i}" for i in (1, 2)]
    others = [f"cuda.shm.0.{os.getpid() + 1:x}.1", f"torch_{os.getpid()}_1"]
    for name in (*ours, *others):
        (tmp_path / name).touch()
    kind.forget()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
