"""``zerocopy.gds.available``: what happens to a file's bytes on their way to a GPU, by evidence."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver
from zerocopy.gds.topology import site_of


class Availability(NamedTuple):
    """Return whether GPUDirect Storage works, and why.

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
    """

    ok: bool
    mode: str
    reason: str


def available(path: str | os.PathLike[str] = ".") -> Availability:
    """Say whether GPUDirect Storage serves a place, and if not, why.

    Nothing is guessed from a call that did not fail, since recent cuFile succeeds without GPUDirect too. "direct" takes
    all of: the CUDA driver with a device; cuFile, whose driver opens; the kernel module nvidia-fs, or peer-to-peer DMA,
    by what the driver says of itself; a file system and disks (``/sys``) that the driver says it serves; a file there
    that opens with ``O_DIRECT`` and that cuFile takes.

    Parameters
    ----------
    path : str or PathLike
        A file, or a folder that files are going to be in. One that is not there yet: its folder.

    Returns
    -------
    Availability

    Raises
    ------
    OSError
        There is neither such a file nor its folder.

    Notes
    -----
    The first call opens cuFile's driver and keeps it open; cuFile may write a log file where the process is
    (``CUFILE_LOGFILE_PATH`` says where else).

    Examples
    --------
    >>> import zerocopy
    >>> ok, mode, reason = zerocopy.gds.available()
    >>> mode in ("direct", "compat", "posix") and ok == (mode == "direct")
    True
    """
    path = Path(os.fsdecode(path))
    return availability_of(path if path.exists() else path.absolute().parent)


def availability_of(path: Path) -> Availability:
    """Return the same for what is there."""
    try:
        cufile = driver.opened().driver
    except UnsupportedError as error:
        path.stat()
        return Availability(False, "posix", str(error))
    if why := _refusal(cufile, path):
        return Availability(False, "posix", why)
    told, site = cufile.properties, site_of(path)
    has_module, peer_to_peer = told["nvfs"] != (0, 0), bool(told["peer_to_peer"])
    if not (has_module or peer_to_peer):
        why = "the kernel module nvidia-fs is not loaded, and the driver has no peer-to-peer DMA"
    elif has_module and site.is_served(told["status"]):
        version = ".".join(map(str, told["nvfs"]))
        return Availability(True, "direct", f"cuFile with nvidia-fs {version} serves {site.said}")
    elif peer_to_peer and site.kind == "NVMe":
        return Availability(True, "direct", f"cuFile with peer-to-peer DMA serves {site.said}")
    else:
        why = f"cuFile's driver does not serve {site.said}"
    if told["compatibility"]:
        return Availability(False, "compat", why)
    return Availability(False, "posix", f"{why}, and cuFile's compatibility mode is off")


def _refusal(cufile: _C.GdsDriver, path: Path) -> str:
    """Return why cuFile does not take a file there, or an empty string."""
    try:
        file = _opened(path)
    except OSError as error:
        path.stat()
        return f"no file there can be opened: {error.strerror}"
    with file:
        try:
            _C.GdsFile.open(cufile, file.fileno(), os.fspath(path))
        except (UnsupportedError, OSError) as error:
            return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ""


def _opened(path: Path) -> IO[bytes]:
    """Open a file; in a folder a new one, which has no name and is gone when it is closed."""
    if path.is_dir():
        # Where the file system knows none without a name (NFS, Lustre), one that loses its name at once.
        return tempfile.TemporaryFile(dir=path, buffering=0)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)


def is_required(require: str | None) -> bool:
    """Return whether anything is required. Raises ValueError for what cannot be."""
    if require not in (None, "direct", "compat"):
        raise ValueError(f"require must be None, 'direct' or 'compat', not {require!r}")
    return require is not None


def required(require: str | None, path: Path) -> None:
    """Raise UnsupportedError where less than what is required is available for a file or its folder."""
    if not is_required(require):
        return
    there = available(path)
    if there.mode == "posix" or (require == "direct" and not there.ok):
        raise UnsupportedError(
            f"{os.fspath(path)}: GPUDirect Storage ({require}) is required, found the mode {there.mode}: {there.reason}"
        )
