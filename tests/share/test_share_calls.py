"""A call through the model server is the call: the same state decides it, and it leaves the same state."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sharing
import torch

import zerocopy
from zerocopy import UnsupportedError, share
from zerocopy.process import replacements
from zerocopy.share.client import load_call


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("share")) as place:
        yield place


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have functions of this file patched, as those of known libraries are."""
    config = tmp_path / "share.cfg"
    names = ("drawn", "loaded", "computed", "forked", "told_seed", "appended", "wrapped")
    config.write_text("\n".join(f"{__name__}::{name}" for name in names))
    share.patch_all(config)
    yield
    share.unpatch_all()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


DRAWS: dict[str, Callable[[], float]] = {
    "Python": random.random,
    "NumPy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


def drawn(generator: str) -> float:
    return DRAWS[generator]()


def loaded(path: str) -> Any:
    return torch.load(path)


def computed() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


# --------------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize("generator", DRAWS)
def test_a_patched_call_that_draws_is_made_here(
    generator: str, patched: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zerocopy")
    for number in (1, 2, 1):
        seed(number)
        found = drawn(generator), DRAWS[generator]()
        seed(number)
        assert found == (DRAWS[generator](), DRAWS[generator]())
    lines = [record.getMessage() for record in caplog.records if "random numbers" in record.getMessage()]
    assert len(lines) == 3 and all(generator in line for line in lines)
    # The server remembers it: a loader has run for the first call only.
    assert not [entry for entry in sharing.entries() if entry["name"].endswith("drawn")]


def test_explicit_load_with_other_seeds_is_computed_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zerocopy")
    seed(1)
    first, before = share.load(drawn, "torch"), torch.get_rng_state()
    seed(2)
    assert share.load(drawn, "torch") == first
    assert torch.equal(before, (seed(1), torch.get_rng_state())[1])
    assert "share.options(generators=True)" in caplog.text


@pytest.mark.parametrize("generator", DRAWS)
def test_generators_as_part_of_a_call(generator: str) -> None:
    for number in (1, 2, 1):
        seed(number)
        with share.options(generators=True):
            found = share.load(drawn, generator), DRAWS[generator]()
        seed(number)
        assert found == (DRAWS[generator](), DRAWS[generator]())


@pytest.mark.parametrize(
    ("named", "error"),
    [({"generators": 1}, TypeError), ({"unseen": "x"}, ValueError), ({"seed": 1}, TypeError)],
)
def test_options_of_other_kinds_are_refused(named: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        share.options(**named).__enter__()


def forked() -> float:
    with torch.random.fork_rng():
        return float(torch.rand(()))


def told_seed() -> int:
    return torch.initial_seed()


@pytest.mark.parametrize("function", ["forked", "told_seed"])
def test_a_patched_call_that_asks_for_the_state_is_made_here(function: str, patched: None) -> None:
    found = []
    for number in (1, 2):
        seed(number)
        found.append(globals()[function]())
    assert found[0] != found[1]


def appended(items: list[int]) -> int:
    items.append(5)
    return len(items)


def wrapped(tensor: torch.Tensor, name: str) -> dict[str, Any]:
    return {"tensor": tensor, "name": name}


def test_a_patched_call_that_changes_its_arguments_is_made_here(patched: None) -> None:
    for _ in range(2):
        items = [1]
        assert appended(items) == 2 and items == [1, 5]


def test_a_patched_call_does_not_take_the_result_of_an_explicit_one(patched: None) -> None:
    share.load(appended, [1, 2])
    share.load(wrapped, torch.ones(3), "b")
    items, tensor = [1, 2], torch.ones(3)
    assert appended(items) == 3 and items == [1, 2, 5]
    assert wrapped(tensor, "b")["tensor"] is tensor


def test_a_patched_call_that_returns_its_argument_is_made_here(patched: None) -> None:
    for _ in range(2):
        tensor = torch.ones(3)
        assert wrapped(tensor, "a")["tensor"] is tensor


# --------------------------------------------------------------------------------------- the caller's state


class Config:
    def __init__(self, size: int) -> None:
        self.size = size


@pytest.fixture
def configured(tmp_path: Path) -> str:
    path = str(tmp_path / "config.pt")
    torch.save({"config": Config(3), "weight": torch.ones(3)}, path)
    return path


def safely(path: str) -> Any:
    return torch.load(path, weights_only=True)


@pytest.mark.skipif(not hasattr(torch.serialization, "safe_globals"), reason="came with torch 2.5")
def test_globals_that_are_allowed_here_are_allowed_there(configured: str) -> None:
    with torch.serialization.safe_globals([Config]):
        assert share.load(safely, configured)["config"].size == 3
    with pytest.raises(Exception, match="Config"):
        share.load(safely, configured)


def imported(prefix: str) -> list[str]:
    return [name for name in sys.modules if name.startswith(prefix)]


def test_globals_of_torchs_modules_are_imported_in_a_loader_only_for_files_that_name_them(
    tmp_path: Path,
) -> None:
    """The modules take a second to import, which a call would wait for."""
    placements = pytest.importorskip("torch.distributed.tensor")
    if placements.Shard not in getattr(torch.serialization, "get_safe_globals", list)():
        pytest.skip("this release does not allow its placements")
    torch.save({"placement": placements.Shard(1)}, tmp_path / "placement.pt")
    assert share.load(imported, "torch.distributed.tensor.") == []
    for load in (safely, zerocopy.load):
        assert share.load(load, str(tmp_path / "placement.pt")) == {"placement": placements.Shard(1)}


def test_globals_that_zerocopy_allows_are_allowed_there(configured: str) -> None:
    with zerocopy.safe_globals([Config]):
        assert share.load(zerocopy.load, configured)["config"].size == 3
    with pytest.raises(Exception, match="Config"):
        share.load(zerocopy.load, configured)


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * 2).detach() if tensor.requires_grad and torch.is_grad_enabled() else tensor * 2


def modes() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_cpu_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
    }


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "mode",
    [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        deterministic,
        lambda: torch.autocast("cpu"),
    ],
    ids=["none", "no_grad", "inference", "deterministic", "autocast"],
)
def test_modes_are_those_of_the_caller(mode: Any) -> None:
    with mode():
        assert share.load(modes) == modes()


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def outcome(function: Any, path: str) -> type:
    """Return the type of the result, or of the exception: torch 1.13 cannot load under FakeTensorMode."""
    try:
        return type(function(path))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("mode", [fake, Doubling])
def test_a_mode_that_stays_here_keeps_the_call_here(mode: Any, patched: None, tmp_path: Path) -> None:
    path = str(tmp_path / "a.pt")
    torch.save(torch.ones(2), path)
    plain = replacements.original(torch.load)
    with mode():
        assert outcome(loaded, path) is outcome(plain, path)
        with pytest.raises(UnsupportedError, match="mode"):
            share.load(loaded, path)
    assert type(share.load(loaded, path)) is torch.Tensor


def test_an_object_that_cannot_be_sent_is_made_here(patched: None, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert computed().grad_fn is not None
    assert "autograd computed" in caplog.text


# --------------------------------------------------------------------------------------- programs and places

PROGRAM = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import model
    from zerocopy import share
    print(share.load(model.build))
"""


def test_two_programs_with_modules_of_one_name_have_their_own_results(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text("import layers\ndef build(): return layers.NAME\n")
        (tmp_path / name / "layers.py").write_text(f"NAME = {name!r}\n")
    found = []
    for name in ("first", "second", "first", "second"):
        program = sharing.client(textwrap.dedent(PROGRAM), tmp_path / name)
        out, err = program.communicate(timeout=100)
        assert program.returncode == 0, err
        found.append(out.strip())
    assert found == ["first", "second", "first", "second"]
    assert sorted(entry["hits"] for entry in sharing.entries() if entry["name"] == "model.build") == [1, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a mount namespace of one's own")
def test_a_client_of_another_mount_namespace_never_gets_another_file(tmp_path: Path) -> None:
    for name, value in ("here", 1), ("there", 2):
        (tmp_path / name).mkdir()
        torch.save(torch.tensor(value), tmp_path / name / "a.pt")
    path = tmp_path / "here" / "a.pt"
    assert int(share.load(torch.load, str(path))) == 1
    code = """
        import sys, torch
        from zerocopy import share
        try: print(int(share.load(torch.load, sys.argv[1])))
        except share.ServerError as error: print("refused", error)
        share.patch_all()
        print(int(torch.load(sys.argv[1])))
    """
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {tmp_path}/there {tmp_path}/here && exec "$@"',
        "sh",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "unshare" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"a mount namespace cannot be made here: {done.stderr}")
    first, second = done.stdout.splitlines()
    assert first.startswith("refused") and str(path) in first and second == "2", done.stderr


# --------------------------------------------------------------------------------------- interrupts and fork


def test_interrupted_loads_leave_no_descriptors(tmp_path: Path) -> None:
    torch.save(torch.ones(1000), tmp_path / "a.pt")
    path = str(tmp_path / "a.pt")
    share.load(torch.load, path)
    before, pid = sharing.descriptors_of(), os.getpid()
    count = 0
    generator = random.Random(5)
    for _ in range(60):
        timer = threading.Timer(generator.uniform(0, 0.004), os.kill, (pid, signal.SIGINT))
        try:
            timer.start()
            for _ in range(1000):
                share.load(torch.load, path)
        except KeyboardInterrupt:
            count += 1
        timer.join()
    assert count == 60
    assert sharing.descriptors_of() <= before + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_lock_that_is_held_at_fork_does_not_stop_the_child(tmp_path: Path) -> None:
    from zerocopy.process.fork_safe import ForkSafeLock

    lock, is_held, ends = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            is_held.set()
            ends.wait(180)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(180)
    pid = os.fork()
    if pid == 0:
        with lock.held(), lock.held():
            os._exit(0)
    ends.set()
    thread.join()
    deadline = time.monotonic() + 30
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    assert done[1] == 0


def test_a_thread_that_forks_keeps_its_lock() -> None:
    from zerocopy.process.fork_safe import ForkSafeLock

    lock = ForkSafeLock()
    with lock.held():
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            with lock.held():  # the child holds it already, and takes it once more
                was_taken_again = True
    if pid == 0:
        with lock.held():
            os._exit(0 if was_taken_again else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_dill_passes_further_keywords() -> None:
    """dill 0.4.1 on Python 3.14 passes the object to `_batch_setitems` too."""
    dill = pytest.importorskip("dill")
    from zerocopy.share.objects import by_value

    takes_object = "obj" in inspect.signature(dill.Pickler._batch_setitems).parameters

    class Pickler(dill.Pickler):  # type: ignore[misc]
        def _batch_setitems(self, items: Any, obj: Any = None) -> None:
            super()._batch_setitems(items, *([obj] if takes_object else []))

    made = by_value._pickler_class.__wrapped__(type("dill", (), {"Pickler": Pickler, "detect": dill.detect}))
    buffer = io.BytesIO()
    pickler = made(buffer)
    pickler._batch_setitems({}.items(), obj={})


def summed(tensor: torch.Tensor) -> float:
    return float(tensor.sum())


def test_an_earlier_result_whose_file_was_replaced_goes_by_value(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save(torch.ones(2000), path)
    earlier = share.load(torch.load, path)
    torch.save(torch.zeros(2000), tmp_path / "other.pt")
    (tmp_path / "other.pt").rename(path)
    assert share.load(summed, earlier) == 2000
    assert share.load(torch.load, path).sum() == 0
    assert share.load(summed, earlier) == 2000


def test_result_that_is_computed_between_two_requests_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another client's worker computes the result after the server has said that there is none."""
    computed, others = load_call._computed, list[Any]()

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        others.append(share.load(sharing.filled, 12_345))
        return computed(*arguments)

    monkeypatch.setattr(load_call, "_computed", late)
    before = share.status()
    assert int(share.load(sharing.filled, 12_345).sum()) == int(others[0].sum())
    after = share.status()
    assert before is not None and after is not None and after["loaded"] == before["loaded"] + 1
