"""``zerocopy bench``: compares loaders on the user's file, also with the time that reading the file takes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import gc
import importlib.util
import inspect
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import _core, display
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli import output, runner
from zerocopy.cli.output import escaped, say
from zerocopy.cli.runner import Trouble
from zerocopy.process import malloc_trim

DESCRIPTION = """
Measures loaders on a checkpoint, side by side. READY is the time until the object is there. CONSUMED is the time until
one thread has read every byte of its tensors once. Each measurement has its own forked process. The last line is the
ceiling: the time to read the bytes of the file. Rounds alternate between loaders, and medians are printed. PRIVATE is
the private memory of the process at the end.
"""

EPILOG = """
exit codes:
  0  measured
  2  trouble: the line on standard error says why
130 after an interrupt.

example:
  $ zerocopy bench model.pt
  $ zerocopy bench --cold --repeat 3 model.safetensors
"""

_PIECE = 1 << 20
_MAX_ERROR = 300
_CEILING = "reading the file"


class Measured(NamedTuple):
    """The medians of one loader, or the reason why it does not load the file."""

    name: str
    ready: float | None
    consumed: float | None
    private: int | None
    error: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="FILE", help="a checkpoint in one file")
    parser.add_argument(
        "--repeat", type=_count, default=5, metavar="N", help="measure each loader N times (default: 5)"
    )
    parser.add_argument(
        "--cold", action="store_true", help="drop the file from the page cache before each measurement"
    )
    parser.add_argument(
        "--trust", action="store_true", help="load with weights_only=False, which lets the file run any code"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Measure, and return the exit code."""
    with contextlib.closing(OpenFile(options.file)) as file:
        container = _core.container(file.descriptor, file.path)
        loaders = {**_loaders(file.path, container, options.trust), _CEILING: lambda: _read(file.path)}
        if options.cold:
            _drop(file)
        else:
            _read(file.path)
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in loaders}
        with output.Progress("zerocopy bench:", options.repeat * len(loaders)) as progress:
            for _ in range(options.repeat):
                for name, load in loaders.items():
                    if options.cold:
                        _drop(file)
                    rounds[name].append(_in_fork(load))
                    progress.add(1)
                errors = [found[0].get("error") for name, found in rounds.items() if name != _CEILING]
                if all(errors):
                    raise Trouble(f"no loader loads it: zerocopy.load: {errors[0]}")
        _report(options, container, file.size, [_median(name, found) for name, found in rounds.items()])
    return runner.FINE


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1000, not {text!r}")
    return value


def _loaders(path: str, container: str, trust: bool) -> dict[str, Callable[[], Any]]:
    """Return the loaders that may read the file. torch is imported here, once for all processes."""
    import torch

    import zerocopy

    # Other releases have no such parameter.
    known = inspect.signature(torch.load).parameters
    safety: dict[str, Any] = {"weights_only": not trust} if "weights_only" in known else {}
    found: dict[str, Callable[[], Any]] = {
        "zerocopy.load": functools.partial(zerocopy.load, path, weights_only=not trust)
    }
    if container == "safetensors":
        if importlib.util.find_spec("safetensors") is not None:
            from safetensors.torch import load_file

            found["safetensors load_file"] = lambda: load_file(path)
    elif container != "hdf5":
        found["torch.load"] = lambda: torch.load(path, **safety)
        if "mmap" in known:
            found["torch.load(mmap=True)"] = lambda: torch.load(path, mmap=True, **safety)
    return found


def _read(path: str) -> None:
    piece = bytearray(_PIECE)
    with Path(path).open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def _drop(file: OpenFile) -> None:
    """Drop a file from the page cache, and check that it is gone."""
    with contextlib.suppress(OSError):
        os.fsync(file.descriptor)  # pages that are not written yet would stay
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    cached = sum(_is_cached(file.descriptor, file.size * part // 8) for part in range(8))
    if cached > 4:
        raise Trouble(
            "the page cache keeps the file: another process maps it, or its file system lies in memory"
        )


def _is_cached(descriptor: int, offset: int) -> bool:
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        raise Trouble("--cold: this file system cannot say what is in the page cache") from None


def _in_fork(load: Callable[[], Any]) -> dict[str, Any]:
    """Measure in a forked process, which has imported everything and loaded nothing."""
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)

    def measure() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # this process reports it
            sending.send(_measure(load))

    child = fork.Process(target=measure)
    child.start()
    sending.close()
    try:
        return dict(receiving.recv())
    except EOFError:
        child.join()
        return {"error": f"the process ended with status {child.exitcode}"}
    finally:
        receiving.close()
        child.join()


def _measure(load: Callable[[], Any]) -> dict[str, Any]:
    import torch

    # A fork does not have the threads that torch may have started in the parent, but would wait for them.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Otherwise the loader would reuse memory that the parent has freed, which would not be counted.
    gc.collect()
    malloc_trim.trim(0)
    before = _private()
    start = time.perf_counter()
    try:
        loaded = load()
        ready = time.perf_counter() - start
        _consume(loaded)
    except Exception as error:  # a loader may raise any type
        line = str(error).strip().partition("\n")[0]
        return {"error": f"{type(error).__name__}: {line}"[:_MAX_ERROR]}
    return {"ready": ready, "consumed": time.perf_counter() - start, "private": max(_private() - before, 0)}


def _private() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _consume(loaded: Any) -> None:
    """Use every byte of every storage once."""
    import torch

    from zerocopy import _torch
    from zerocopy.lazy.prefetch import leaves_of

    storages = (
        _torch.untyped_of(leaf) for leaf in leaves_of(loaded, set()) if isinstance(leaf, torch.Tensor)
    )
    for storage in {storage.data_ptr(): storage for storage in storages}.values():
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        rest = len(whole) % 8
        whole[: len(whole) - rest].view(torch.int64).sum()
        whole[len(whole) - rest :].sum()


def _median(name: str, found: list[dict[str, Any]]) -> Measured:
    if errors := [each["error"] for each in found if "error" in each]:
        return Measured(name, None, None, None, errors[0])
    ready, consumed, private = (
        statistics.median(each[key] for each in found) for key in ("ready", "consumed", "private")
    )
    return Measured(name, ready, consumed, int(private))


def _report(options: argparse.Namespace, container: str, size: int, rows: list[Measured]) -> None:
    cache = "cold" if options.cold else "hot"
    if options.json:
        facts = {"file": options.file, "container": container, "size": size, "cache": cache}
        loaders = {"rounds": options.repeat, "loaders": [row._asdict() for row in rows]}
        output.say_json(runner.head("bench") | facts | loaders)
        return
    import torch

    rounds = display.count(options.repeat, "round")
    say([f"{escaped(options.file)}: {container}, {display.size(size)}, {cache} page cache, {rounds}"])
    say([f"torch {torch.__version__}, Python {sys.version.split()[0]}"])
    say([f"{'':<24}{'READY':>12}{'CONSUMED':>12}{'PRIVATE':>12}"])
    for name, ready, consumed, private, error in rows:
        if error:
            line = escaped(error, _MAX_ERROR)
        elif name == _CEILING:  # Nothing is ready before the end, and the buffer is all the memory.
            line = f"{'':>12}{_span(consumed):>12}{'':>12}  {size / (consumed or 1) / 1e9:.1f} GB/s"
        else:
            line = f"{_span(ready):>12}{_span(consumed):>12}{display.size(private or 0):>12}"
        say([f"{name:<24}{line}"])


def _span(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
