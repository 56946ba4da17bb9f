"""Fixtures: checkpoints that stock torch.save wrote, and Python in a process of its own, started or forked."""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_errors import require_dcp
from file_systems import file_system
from fork_server import ForkServer
from ranks import Ranks
from sanitizer import SANITIZED

from zerocopy.share.conditions import state

# A shell ignores these signals in background jobs. Programs that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Most machines keep what they compile, which changes what an import reads.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Warnings of torch about its own loading do not matter here.
warnings.filterwarnings(
    "ignore", message=r"(?s).*(TypedStorage|weights_only|beta state|non-writable|quantiz)"
)

Saver = Callable[..., Path]
Child = Callable[..., subprocess.CompletedProcess[str]]


# Files whose tests take the most time. A worker that began one of them last would work on alone.
_LONGEST = (
    "share/test_share_differential.py",
    "cli/test_programs.py",
    "hostile/test_attacks.py",
    "saving/test_save_in_background.py",
    "saving/test_save_faults.py",
    "share/test_share_programs.py",
    "hostile/test_proportion.py",
    "share/test_share_cache.py",
    "cli/test_run.py",
    "share/test_share.py",
    "process/test_hazards_process.py",
    "share/test_share_mains.py",
    "launch/test_warm_programs.py",
    "project/test_examples.py",
    "cli/test_every_command.py",
    "distributed/test_checkpoint_reader.py",
    "project/test_bridge.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let workers begin files in the order of collection, not with those of the most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if not hasattr(config, "workerinput"):  # workers of one run share the folder
        _use_runtime_folder_of_our_own(config)


def _use_runtime_folder_of_our_own(config: pytest.Config) -> None:
    """Keep tests away from the user's own kept results and fork servers, which they would see and stop."""
    folder = tempfile.mkdtemp(prefix="run-")  # short: the address of a socket is
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_RUNTIME_DIR", folder)
    patch.setenv("ZEROCOPY_CACHE", f"{folder}/cache")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.add_cleanup(patch.undo)


def pytest_report_header() -> str:
    """Return the line about torch that stands below pytest's own about Python."""
    return f"torch {torch.__version__}"


def pytest_collection_finish() -> None:
    """Leave what was collected out of collections of garbage: each would go through a million objects."""
    gc.collect()
    gc.freeze()


def _place_of(item: pytest.Item) -> int:
    name = "/".join(item.path.parts[-2:])
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest. Skip under a sanitizer what is marked ``plain_memory(reason)``."""
    items.sort(key=_place_of)
    for item in items:
        for mark in item.iter_markers("slow"):
            if not (mark.args and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid}: the marker slow needs a reason")
    for item in items if SANITIZED else ():
        for mark in item.iter_markers("plain_memory"):
            item.add_marker(pytest.mark.skip(reason=f"under {SANITIZED}: {mark.args[0]}"))


_BASE = torch.arange(2000.0)
TIED_STATE = {
    "weight": _BASE,
    "tied": _BASE[10:],
    "bias": torch.ones(3),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give pytest's folder, and empty the folder after a test that passes."""
    failed = request.session.testsfailed
    yield tmp_path
    if request.session.testsfailed == failed:
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir(exist_ok=True)  # no other test gets this name: results are cached by the path


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Fail where a test leaves settings of torch behind: a later test in this process would run under them."""
    before = state.state(), state.extensions(), state.why_plain()
    yield
    assert (state.state(), state.extensions(), state.why_plain()) == before


@pytest.fixture
def save(tmp_path: Path) -> Saver:
    """Save an object with stock torch.save; arguments go to it. Return the path."""

    def save(obj: Any, name: str = "checkpoint.pt", **kwargs: Any) -> Path:
        path = tmp_path / name
        torch.save(obj, path, **kwargs)
        return path

    return save


@pytest.fixture
def child() -> Child:
    """Run Python code in a process of its own; the arguments are its ``sys.argv[1:]``."""

    def child(
        code: str, *arguments: object, timeout: float = 180, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout * (5 if SANITIZED else 1),
            env={**os.environ, **environment},
        )

    return child


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Give the process that forks for the tests of this run."""
    made = ForkServer(tmp_path_factory.mktemp("fork_server"))
    yield made
    made.close()


@pytest.fixture
def forked(fork_server: ForkServer) -> Child:
    """Run Python code in a process that was forked with torch and zerocopy imported. Quicker than `child`."""
    return fork_server.run


@pytest.fixture(scope="session")
def server_without_zerocopy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Return a fork server that has imported torch, and not zerocopy."""
    made = ForkServer(tmp_path_factory.mktemp("fork_server"), has_zerocopy=False)
    yield made
    made.close()


@pytest.fixture
def forked_with_torch(server_without_zerocopy: ForkServer) -> Child:
    """Run Python code in a process that was forked with torch imported, but not zerocopy."""
    return server_without_zerocopy.run


@pytest.fixture
def forked_whole(fork_server: ForkServer) -> Child:
    """As `forked`, and the interpreter takes itself down at the end, where what a loader has left behind shows."""
    return functools.partial(fork_server.run, whole_end=True)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Give what runs a program in several processes of one process group."""
    require_dcp()
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give an empty folder of a file system of 2 MiB."""
    with file_system(tmp_path, request.param, 2 << 20) as folder:
        yield folder


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stage copies to a class of ``SimulatedDevice``, for storages that torch tags as CPU."""
    from simulated_device import fresh_simulated_device

    from zerocopy.loading.device import devices, pinned_ring

    made = fresh_simulated_device()
    monkeypatch.setitem(devices.KINDS, "cpu", made)
    monkeypatch.setattr(pinned_ring, "_rings", {})
    return made


def saved_bytes(obj: Any, **kwargs: Any) -> bytes:
    """Return what stock torch.save writes."""
    file = io.BytesIO()
    torch.save(obj, file, **kwargs)
    return file.getvalue()


def digest(path: Path) -> str:
    """Return a hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stock_load(f: Any, **kwargs: Any) -> Any:
    """Load with stock torch.load, trusting the file."""
    return torch.load(f, weights_only=False, **kwargs)


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return ``("value", result)``, or ``("error", type, text)``: for comparing two loaders."""
    try:
        return "value", call()
    except Exception as error:
        return "error", type(error), str(error)


def mappings() -> list[str]:
    """Return the lines of /proc/self/maps. File names there may have any bytes."""
    return Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()


def maps_of(path: Path) -> list[str]:
    """Return the lines of /proc/self/maps that belong to a file."""
    return [line for line in mappings() if line.endswith(str(path))]


def lies_in_mapping(address: int, path: Path) -> bool:
    """Return whether an address lies in a mapping of a file."""
    ranges = ([int(part, 16) for part in line.split()[0].split("-")] for line in maps_of(path))
    return any(start <= address < end for start, end in ranges)


def goes_to_stock(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was said of calls that stock torch had to answer."""
    return [record for record in caplog.records if " goes to torch." in record.getMessage()]


def name_of(value: Any) -> str:
    """Return what a test's parameter is called, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value) if isinstance(value, dict) else repr(value))
