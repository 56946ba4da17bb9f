"""``zerocopy.patch``: what is swapped, for whom, and that everything comes back."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import logging
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import Child, Saver, goes_to_stock, lies_in_mapping
from equality import assert_same

import zerocopy

PLACES = ((torch, "load"), (torch.serialization, "load"), (torch, "save"), (torch.serialization, "save"))
ORIGINALS = [getattr(module, name) for module, name in PLACES]
STATE = {"weight": torch.arange(6.0).view(2, 3), "step": 7}


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    yield
    zerocopy.unpatch()
    assert untouched()


def untouched() -> bool:
    current = [getattr(module, name) for module, name in PLACES]
    return all(a is b for a, b in zip(current, ORIGINALS, strict=True))


def is_served(path: Path) -> bool:
    """Return whether torch.load maps."""
    return maps(torch.load, path)


def maps(load: Any, path: Path) -> bool:
    state = load(path)
    return lies_in_mapping(state["weight"].data_ptr(), path)


def in_thread(call: Any) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    thread.join()
    return result[0]


# ------------------------------------------------------------------------------ on and off


def test_patch_and_unpatch(save: Saver) -> None:
    path = save(STATE)
    assert not zerocopy.is_patched() and not is_served(path)
    zerocopy.patch()
    assert zerocopy.is_patched() and is_served(path)
    assert torch.load is torch.serialization.load is not ORIGINALS[0]
    zerocopy.unpatch()
    assert not zerocopy.is_patched() and untouched() and not is_served(path)


def test_patches_and_blocks_nest() -> None:
    zerocopy.patch()
    once = [getattr(module, name) for module, name in PLACES]
    zerocopy.patch()
    assert all(getattr(module, name) is known for (module, name), known in zip(PLACES, once, strict=True))
    for _ in range(2):
        zerocopy.unpatch()
        assert untouched()
    with zerocopy.patched():
        with zerocopy.patched():
            assert zerocopy.is_patched()
        assert zerocopy.is_patched()
        zerocopy.patch()
        zerocopy.unpatch()
        assert zerocopy.is_patched()
        zerocopy.patch()
    assert zerocopy.is_patched()
    zerocopy.unpatch()
    with pytest.raises(KeyError), zerocopy.patched():
        raise KeyError
    assert untouched()


def test_for_one_thread(save: Saver) -> None:
    path = save(STATE)
    with zerocopy.patched(thread_local=True):
        assert zerocopy.is_patched() and is_served(path)
        assert not in_thread(zerocopy.is_patched)
        assert not in_thread(lambda: is_served(path))
        with zerocopy.patched():
            assert in_thread(zerocopy.is_patched)
    assert untouched()


def test_threads_come_and_go_in_any_order(save: Saver) -> None:
    path, both_in, first_out = save(STATE), threading.Barrier(2), threading.Event()

    def other() -> bool:
        with zerocopy.patched(thread_local=True):
            both_in.wait(180)
            first_out.wait(180)
            return zerocopy.is_patched() and is_served(path)

    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(other()))
    thread.start()
    with zerocopy.patched(thread_local=True):
        both_in.wait(180)
    assert not zerocopy.is_patched()
    first_out.set()
    thread.join()
    assert result == [True]
    assert untouched()


def test_many_threads_patch_and_load(save: Saver) -> None:
    path, served = save(STATE), []

    def work() -> None:
        for _ in range(50):
            with zerocopy.patched(thread_local=True):
                served.append(is_served(path))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served == [True] * 200
    assert untouched()


def test_later_patch_of_another_library_is_kept(save: Saver, caplog: pytest.LogCaptureFixture) -> None:
    path = save(STATE)
    zerocopy.patch()
    ours = torch.load
    theirs = torch.load = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        zerocopy.patch()
        assert not caplog.records, "it calls zerocopy's"
        zerocopy.unpatch()
        assert torch.load is theirs
        assert not is_served(path)
    finally:
        torch.load = ORIGINALS[0]


def test_mock_of_another_library_is_put_back(save: Saver) -> None:
    path, before = save(STATE), (torch.load, torch.save)
    for name, options in itertools.product(("load", "save"), ({}, {"autospec": True})):
        with mock.patch(f"torch.{name}", **options) as theirs:
            with zerocopy.patched():
                assert getattr(torch, name) is not theirs
            assert getattr(torch, name) is theirs
        assert (torch.load, torch.save) == before
        with zerocopy.patched():
            assert is_served(path)
        assert (torch.load, torch.save) == before and untouched()


def test_earlier_patch_of_another_library_is_called(save: Saver) -> None:
    calls: list[Any] = []

    def theirs(f: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(f)
        return ORIGINALS[0](f, *args, **kwargs)

    torch.load = theirs
    try:
        with zerocopy.patched():
            with pytest.raises(AttributeError):
                torch.load(3)
            assert calls == [3]
        assert torch.load is theirs
    finally:
        torch.load = ORIGINALS[0]


def test_earlier_wrapper_is_called_as_before(
    save: Saver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, stock = save(STATE), torch.load
    with monkeypatch.context() as program:
        program.setattr(torch, "load", lambda *args, **kwargs: [stock(*args, **kwargs)])
        wrapper = torch.load
        with zerocopy.patched():
            assert_same(torch.load(path), [STATE])
        assert torch.load is wrapper
        program.setattr(torch, "load", functools.partial(stock, map_location="meta"))
        with zerocopy.patched():
            assert torch.load(path)["weight"].is_meta
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
        assert "patch first" in caplog.text


def test_disabled(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "true", "yes", "on", "ON", "True"):
        monkeypatch.setenv("ZEROCOPY_DISABLE", value)
        zerocopy.patch()
        assert not zerocopy.is_patched() and untouched(), value
        with zerocopy.patched():
            assert not zerocopy.is_patched() and untouched(), value
    monkeypatch.delenv("ZEROCOPY_DISABLE")
    path = save(STATE)
    with zerocopy.patched():
        monkeypatch.setenv("ZEROCOPY_DISABLE", "1")
        assert not zerocopy.is_patched() and not is_served(path)


def test_safetensors_without_the_package(forked: Child) -> None:
    result = forked(
        """
        import sys, torch, zerocopy
        sys.modules["safetensors"] = None
        for patch in (zerocopy.patch, lambda **options: zerocopy.patched(**options).__enter__()):
            try:
                patch(safetensors=True)
            except zerocopy.UnsupportedError as error:
                print(error, zerocopy.is_patched())
        """
    )
    assert result.stdout.count("needs the package safetensors, which is not installed False") == 2, result


# ------------------------------------------------------------------------- early references


def test_rebind(save: Saver) -> None:
    path = save(STATE)
    module = types.ModuleType("early_bird")
    module.load, module.write, module.other = torch.load, torch.save, print  # type: ignore[attr-defined]
    sys.modules["early_bird"] = module
    try:
        with zerocopy.patched():
            assert module.load is ORIGINALS[0]
        with zerocopy.patched(rebind=True):
            assert module.load is torch.load and module.write is torch.save and module.other is print
            assert maps(module.load, path)
        assert module.load is ORIGINALS[0] and module.write is ORIGINALS[2]
        zerocopy.patch()
        zerocopy.patch(rebind=True)
        assert module.load is torch.load
        zerocopy.unpatch()
        assert module.load is ORIGINALS[0]
    finally:
        del sys.modules["early_bird"]


# ------------------------------------------------------------------------- what is kept


def test_signature_name_and_documentation() -> None:
    before = [(inspect.signature(f), f.__name__, f.__module__, f.__doc__) for f in ORIGINALS]
    with zerocopy.patched():
        after = [getattr(module, name) for module, name in PLACES]
        assert [(inspect.signature(f), f.__name__, f.__module__, f.__doc__) for f in after] == before
        assert [inspect.unwrap(f) for f in after] == ORIGINALS
        assert pickle.loads(pickle.dumps(torch.load)) is torch.load


def test_call_left_to_torch_is_logged_once(
    save: Saver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scalar.txt"
    path.write_bytes(b"hello")
    with zerocopy.patched(), caplog.at_level(logging.DEBUG, "zerocopy"):
        torch.load(save(STATE))
        assert not goes_to_stock(caplog)
        with pytest.raises(Exception):  # noqa: B017  (as stock)
            torch.load(path)
    (record,) = goes_to_stock(caplog)
    assert record.levelno == logging.DEBUG
    assert "goes to torch.load" in record.getMessage() and str(path) in record.getMessage()


def test_position_of_a_file_object() -> None:
    """Two legacy checkpoints in one file: the second load begins where the first ended."""
    file = io.BytesIO()
    for number in (1, 2):
        torch.save({"n": torch.tensor(number)}, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    with zerocopy.patched():
        assert [int(torch.load(file)["n"]) for _ in range(2)] == [1, 2]
        tensor = torch.arange(5)  # torch.storage._load_from_bytes calls torch.load on a BytesIO
        assert_same(pickle.loads(pickle.dumps(tensor)), tensor)


@pytest.mark.slow("imports torch's compiler")
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with 2.0")
@pytest.mark.parametrize(
    "patches", ["zerocopy.patch()", "zerocopy.patch(); import torch._dynamo", "compiler first"]
)
def test_compiled_function_that_loads_and_saves(forked: Child, tmp_path: Path, patches: str) -> None:
    """The compiler makes the same graphs of it as without the patch, and warns of nothing more."""
    done = forked(
        """
        import sys, warnings
        import torch, zerocopy

        path, patches = sys.argv[1:]
        torch.save({"weight": torch.ones(3)}, path)
        if patches == "compiler first":
            import torch._dynamo

            patches = "zerocopy.patch()"

        def compiled():
            graphs = []

            def note(graph, inputs):
                graphs.append([node.op for node in graph.graph.nodes])
                return graph.forward

            @torch.compile(backend=note)
            def function(value):
                doubled = value * 2
                state = torch.load(path)
                torch.save(state, path + ".saved")
                return doubled + state["weight"]

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = function(torch.ones(3)).tolist()
            return found, graphs, [str(warning.message) for warning in caught]

        exec(patches)
        patched = compiled()
        zerocopy.unpatch()
        torch._dynamo.reset()
        assert patched == compiled(), (patched, compiled())
        """,
        tmp_path / "state.pt",
        patches,
    )
    assert done.returncode == 0, done.stderr
