"""``zerocopy.Writer``: tensors written before the object that holds them, one at a time in memory."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, stock_load
from equality import assert_same, untyped

import zerocopy
from zerocopy.saving.archive import CheckpointPlan


def written(path: Path, make: Any, **options: Any) -> Any:
    """Return what stock torch.load reads of what `make`, given a Writer, has saved."""
    with zerocopy.Writer(path, **options) as writer:
        writer.save(make(writer))
    return stock_load(path)


def test_stored_tensor_repr_describes_the_tensor(tmp_path: Path) -> None:
    with zerocopy.Writer(tmp_path / "model.pt") as writer:
        stored = writer.store_early(torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64)))
        assert stored.shape == (2, 3) and stored.dtype is torch.float64 and stored.requires_grad
        assert stored.device == torch.device("cpu")
        assert repr(stored) == "StoredTensor(shape=(2, 3), dtype=torch.float64)"
        assert isinstance(stored, zerocopy.StoredTensor)
        writer.save(stored)
    assert type(stock_load(tmp_path / "model.pt")) is torch.nn.Parameter


@pytest.mark.parametrize("alignment", [64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.pt"
    state = {"a": torch.arange(5.0), "b": torch.ones(3), "c": torch.zeros(1)}
    loaded = written(path, lambda writer: {"a": writer.store_early(state["a"]), **state}, alignment=alignment)
    assert_same(loaded, {"a": state["a"], "b": state["b"], "c": state["c"]})
    assert all(extent.offset % alignment == 0 for extent in zerocopy.storage_offsets(path).values())


def test_torch_is_not_misled_about_offsets(tmp_path: Path, forked: Child) -> None:
    """The object may speak of storages in another order than that in which they were written."""
    path = tmp_path / "model.pt"

    def make(writer: zerocopy.Writer) -> Any:
        first, second = (writer.store_early(torch.full((i,), float(i))) for i in (100, 2))
        return [second, torch.ones(5), first]

    written(path, make)
    done = forked("import sys, torch; torch.load(sys.argv[1])", path, TORCH_SERIALIZATION_DEBUG="1")
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------- ties


def test_ties_between_calls_and_with_the_object(tmp_path: Path) -> None:
    base = torch.arange(1000.0)

    def make(writer: zerocopy.Writer) -> Any:
        whole, part = writer.store_early(base), writer.store_early([base[10:]])
        return {"whole": whole, "part": part, "late": base[20:], "again": writer.store_early(base)}

    loaded = written(tmp_path / "model.pt", make)
    assert (tmp_path / "model.pt").stat().st_size < 6000
    address = loaded["whole"].data_ptr()
    assert [loaded["part"][0].data_ptr(), loaded["late"].data_ptr()] == [address + 40, address + 80]
    assert loaded["again"].data_ptr() == address


@pytest.mark.parametrize("how", ["together", "one by one", "opened"])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_views_that_are_lazy_stay_views(tmp_path: Path, save: Saver, how: str, dtype: Any) -> None:
    base = torch.arange(1000.0)
    state = {"base": base, "same": base[:], "parameter": torch.nn.Parameter(base)}
    if dtype is None:
        state["part"] = base[10::2]
    path = save(state)

    def make(writer: zerocopy.Writer) -> Any:
        lazy = zerocopy.lazy_load(path, dtype=dtype)
        if how == "together":
            return writer.store_early(lazy)
        if how == "one by one":
            return {name: writer.store_early(tensor) for name, tensor in lazy.items()}
        with zerocopy.open(path, dtype=dtype) as opened:
            return {name: writer.store_early(opened[name]) for name in opened}

    loaded = written(tmp_path / "early.pt", make)
    assert len({untyped(tensor).data_ptr() for tensor in loaded.values()}) == 1
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor.to(dtype or tensor.dtype)), name


def test_lazy_tensor_that_is_written_to_in_between_is_stored_again(tmp_path: Path, save: Saver) -> None:
    path = save({"a": torch.zeros(1000), "b": torch.zeros(1000)})

    def make(writer: zerocopy.Writer) -> Any:
        lazy = zerocopy.lazy_load(path)
        before = writer.store_early(lazy["a"])
        lazy["a"].add_(1)
        return {"before": before, "after": writer.store_early(lazy["a"]), "b": writer.store_early(lazy["b"])}

    loaded = written(tmp_path / "early.pt", make)
    assert {name: tensor[0].item() for name, tensor in loaded.items()} == {"before": 0, "after": 1, "b": 0}
    assert len({untyped(tensor).data_ptr() for tensor in loaded.values()}) == 3


def test_one_buffer_for_all_layers(tmp_path: Path) -> None:
    buffer = torch.empty(1000)

    def make(writer: zerocopy.Writer) -> Any:
        return [writer.store_early(buffer.fill_(float(i))) for i in range(3)] + [buffer]

    loaded = written(tmp_path / "model.pt", make)
    assert [layer[0] for layer in loaded] == [0, 1, 2, 2]
    assert loaded[2].data_ptr() == loaded[3].data_ptr()


def test_memory_that_is_used_again(tmp_path: Path) -> None:
    """Another tensor may get the memory of a freed one. The two are not tied."""
    loaded = written(
        tmp_path / "model.pt",
        lambda writer: [writer.store_early(torch.full((64,), float(i))) for i in range(200)],
    )
    assert [layer[0] for layer in loaded] == list(range(200))
    assert len({layer.data_ptr() for layer in loaded}) == 200


def test_the_same_tensor_twice_is_one(tmp_path: Path) -> None:
    tensor = torch.ones(3)
    loaded = written(tmp_path / "model.pt", lambda writer: writer.store_early([tensor, {"b": tensor}]))
    assert loaded[0] is loaded[1]["b"]


# ----------------------------------------------------------------------------- structures


def test_placeholders(save: Saver, tmp_path: Path) -> None:
    path = save({f"layer{i}": torch.full((10,), float(i)) for i in range(3)})
    lazy = zerocopy.lazy_load(path, dtype=torch.float16)
    loaded = written(
        tmp_path / "half.pt", lambda writer: {**writer.store_early(dict(list(lazy.items())[:2])), **lazy}
    )
    assert_same(loaded, {name: tensor.half() for name, tensor in stock_load(path).items()})
    assert not lazy["layer2"].is_loaded


# ----------------------------------------------------------------------------- whole or not at all


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("fault", ["raised", "not saved", "cannot be pickled"])
def test_failed_save_keeps_the_old_file(tmp_path: Path, there: bool, fault: str) -> None:
    path = tmp_path / "model.pt"
    if there:
        path.write_bytes(b"as it was")
    errors: dict[str, Any] = {
        "raised": KeyboardInterrupt,
        "not saved": RuntimeError,
        "cannot be pickled": (AttributeError, pickle.PicklingError),
    }
    with pytest.raises(errors[fault]), zerocopy.Writer(path) as writer:
        stored = writer.store_early(torch.ones(1000))
        if fault == "raised":
            raise KeyboardInterrupt
        if fault == "cannot be pickled":
            writer.save([stored, lambda: None])
    assert list(tmp_path.iterdir()) == [path] * there
    assert not there or path.read_bytes() == b"as it was"


@pytest.mark.slow("a small disk")
def test_the_disk_is_full(small_disk: Path) -> None:
    path = small_disk / "model.pt"
    with pytest.raises(OSError, match="No space left") as caught, zerocopy.Writer(path) as writer:
        writer.store_early(torch.ones(1 << 20))
    assert caught.value.filename == str(path) and not any(small_disk.iterdir())


def test_used_in_another_way(tmp_path: Path) -> None:
    writer = zerocopy.Writer(tmp_path / "model.pt")
    with pytest.raises(RuntimeError, match="inside its with block"):
        writer.store_early(torch.ones(1))
    with writer:
        stored = writer.store_early(torch.ones(1))
        with pytest.raises(pickle.PicklingError, match="by the Writer that stored it"):
            zerocopy.save(stored, tmp_path / "other.pt")
        writer.save(stored)
        for call in (writer.save, writer.store_early):
            with pytest.raises(RuntimeError, match="save once"):
                call(torch.ones(1))
    with pytest.raises(RuntimeError, match="in one with block"):
        writer.__enter__()
    with pytest.raises(ValueError, match="power of two"):
        zerocopy.Writer(tmp_path / "model.pt", alignment=65)
    assert stock_load(tmp_path / "model.pt").item() == 1


@pytest.mark.slow("it writes 320 MB")
@pytest.mark.plain_memory("it measures memory")
def test_one_tensor_in_memory(tmp_path: Path, forked: Child) -> None:
    code = """
        import resource, sys, torch, zerocopy
        torch.ones(1 << 20).add_(1)
        with zerocopy.Writer(sys.argv[1]) as writer:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            layers = [writer.store_early(torch.full((10 << 20,), float(i))) for i in range(8)]
            writer.save({"layers": layers})
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
    """
    done = forked(code, tmp_path / "model.pt")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 + 20  # megabytes: a tensor, of 320
    assert [layer[-1] for layer in zerocopy.load(tmp_path / "model.pt")["layers"]] == list(range(8))


@pytest.mark.slow("it writes 240 MB")
@pytest.mark.plain_memory("it measures memory")
def test_new_tensor_for_each_layer_takes_the_memory_of_a_few(tmp_path: Path, forked: Child) -> None:
    # Of a size that malloc keeps when it is freed, after the first one.
    code = """
        import sys, torch, zerocopy
        def private():
            status = open("/proc/self/status").read()
            return int(status.split("RssAnon:")[1].split()[0])
        most = before = private()
        with zerocopy.Writer(sys.argv[1]) as writer:
            state = {}
            for layer in range(24):
                total = torch.full((2560, 1024), float(layer))
                state[f"layer{layer}"] = writer.store_early(total / 3)
                most = max(most, private())
            writer.save(state)
        print((most - before) >> 10)
    """
    done = forked(code, tmp_path / "model.pt")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80  # megabytes, of 252


def test_after_a_tensor_that_was_not_written_whole_nothing_can_be_saved(
    tmp_path: Path, forked: Child
) -> None:
    path = tmp_path / "model.pt"
    torch.save({"old": 1}, path)
    code = """
        import resource, signal, sys, torch, zerocopy
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with zerocopy.Writer(sys.argv[1]) as writer:
            first = writer.store_early(torch.ones(1000))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))
            try:
                writer.store_early(torch.ones(1_000_000))
            except OSError as error:
                print(error.strerror)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            try:
                writer.store_early(torch.ones(5))
            except RuntimeError as error:
                print(error)
            writer.save({"first": first})
    """
    done = forked(code, path)
    assert (
        done.stdout == "File too large\nthis file cannot be finished: a tensor was not written to its end\n"
    )
    assert "RuntimeError: this file cannot be finished" in done.stderr
    assert stock_load(path) == {"old": 1} and list(tmp_path.iterdir()) == [path]


def test_threads_that_use_one_writer(tmp_path: Path) -> None:
    stored: dict[int, Any] = {}
    path = tmp_path / "model.pt"
    with zerocopy.Writer(path) as writer:

        def store(thread: int) -> None:
            for number in range(thread * 100, thread * 100 + 20):
                stored[number] = writer.store_early(torch.full((1000,), float(number)))

        threads = [threading.Thread(target=store, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.save(stored)
    assert all(torch.equal(tensor, torch.full((1000,), float(n))) for n, tensor in stock_load(path).items())
    assert len(zerocopy.load(path)) == 80


def test_handler_that_stores_while_a_tensor_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "model.pt", CheckpointPlan.carry_out
    with pytest.raises(RuntimeError, match="not written to its end"), zerocopy.Writer(path) as writer:

        def interrupted(_: CheckpointPlan) -> None:
            monkeypatch.setattr(CheckpointPlan, "carry_out", real)
            writer.store_early(torch.ones(3))

        monkeypatch.setattr(CheckpointPlan, "carry_out", interrupted)
        writer.store_early(torch.ones(1000))
    assert not path.exists()
