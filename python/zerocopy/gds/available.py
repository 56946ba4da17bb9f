"""``zerocopy.gds.available``: what happens to a file's bytes on their way to a GPU, by evidence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from zerocopy.errors import UnsupportedError
from zerocopy.gds import cufile

_BLOCK = 4096
_TIMEOUT = 120  # seconds: a machine with eight GPUs takes a while to start CUDA

# Reads a block of a file into a GPU's memory.
_PROBE = f"""
import os, sys, torch, torch.cuda.gds
storage = torch.UntypedStorage({_BLOCK}, device=f"cuda:{{sys.argv[2]}}")
torch.cuda.gds.GdsFile(f"/proc/self/fd/{{sys.argv[1]}}", os.O_RDONLY).load_storage(storage)
"""


class Availability(NamedTuple):
    """Whether GPUDirect Storage works, and why.

    Attributes
    ----------
    ok : bool
        Whether the mode is "direct".
    mode : {"direct", "compat", "posix"}
        "direct": disk and GPU exchange bytes without the host's memory. "compat": cuFile is used, and copies through
        the host's memory itself. "posix": cuFile is not used; zerocopy reads and writes plainly, and stages what goes
        to a GPU in pinned memory.
    reason : str
        Why.

    Examples
    --------
    >>> import zerocopy
    >>> availability = zerocopy.gds.available()
    >>> availability.ok == (availability.mode == "direct")
    True
    """

    ok: bool
    mode: str
    reason: str


#: By file system and device: why a read does not go directly, or an empty string.
_known: dict[tuple[int, int], str] = {}


def available(path: str | os.PathLike[str] = ".") -> Availability:
    """Return whether GPUDirect Storage works for files at a path, and if not, why.

    A call that did not fail proves nothing, since cuFile copies through the host's memory where it cannot do better.
    So another process forbids cuFile to do that (``CUFILE_ALLOW_COMPAT_MODE=false``) and reads a block of a file there
    into the current GPU's memory. If that works, the mode is "direct".

    Parameters
    ----------
    path : str or PathLike
        A file, or a folder that files are going to be in. If it does not exist, its folder is asked.

    Returns
    -------
    Availability

    Raises
    ------
    OSError
        There is neither such a file nor its folder.

    Notes
    -----
    The first call for a file system takes seconds, and opens cuFile's driver in this process. cuFile may write a log
    file into the current folder (``CUFILE_LOGFILE_PATH`` names another place).

    Examples
    --------
    >>> import zerocopy
    >>> ok, mode, reason = zerocopy.gds.available()
    >>> mode in ("direct", "compat", "posix") and ok == (mode == "direct")
    True
    """
    place = Path(os.fsdecode(path))
    if not place.exists():
        place = place.absolute().parent
    found = place.stat()
    if reason := cufile.refusal():
        return Availability(False, "posix", reason)
    try:
        with _file_at(place) as file:
            cufile.open_file(file.fileno(), os.fspath(place), os.O_RDONLY)
            key = found.st_dev, torch.cuda.current_device()
            if key not in _known:
                _known[key] = _indirection(file, key[1])
    except OSError as error:
        return Availability(False, "posix", f"no file there can be opened: {error.strerror}")
    except UnsupportedError as error:
        return Availability(False, "posix", str(error))
    if why := _known[key]:
        return Availability(False, "compat", why)
    return Availability(True, "direct", "cuFile reads a file there while its compatibility mode is off")


def _file_at(place: Path) -> IO[bytes]:
    """Open a file of at least a block: the one that is meant, or a new one beside it that has no name."""
    if place.is_file() and place.stat().st_size >= _BLOCK:
        return place.open("rb", buffering=0)
    folder = place if place.is_dir() else place.absolute().parent
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  the caller closes it
    file.write(bytes(_BLOCK))
    return file


def _indirection(file: IO[bytes], device: int) -> str:
    """Return why cuFile cannot read a file directly into a device's memory, or an empty string."""
    command = [sys.executable, "-c", _PROBE, str(file.fileno()), str(device)]
    environment = os.environ | {"CUFILE_ALLOW_COMPAT_MODE": "false", "CUFILE_FORCE_COMPAT_MODE": "false"}
    options: dict[str, Any] = {"env": environment, "pass_fds": [file.fileno()], "timeout": _TIMEOUT}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except subprocess.TimeoutExpired:
        return f"cuFile did not read a block within {_TIMEOUT} s while its compatibility mode was off"
    if not done.returncode:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"cuFile needs its compatibility mode there: {said}"


def is_required(require: str | None) -> bool:
    """Return whether a mode is required. Raises ValueError for a mode that cannot be required."""
    if require not in (None, "direct", "compat"):
        raise ValueError(f"require must be None, 'direct' or 'compat', not {require!r}")
    return require is not None


def required(require: str | None, path: Path) -> None:
    """Raise UnsupportedError if a file or its folder offers less than is required."""
    if not is_required(require):
        return
    there = available(path)
    if there.mode == "posix" or (require == "direct" and not there.ok):
        raise UnsupportedError(
            f"{os.fspath(path)}: GPUDirect Storage ({require}) is required, found the mode {there.mode}: {there.reason}"
        )
