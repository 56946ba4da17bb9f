"""A folder seen through a file system that answers late: `latency_fs.c`, compiled and mounted."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("latency_fs.c")


@functools.cache
def why_not() -> str:
    """Say why no such file system can be had here, or return an empty string."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if shutil.which("fusermount3") is None:
        return "fuse3 is not installed"
    if shutil.which("pkg-config") is None:
        return "pkg-config is not installed"
    if subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode != 0:
        return "libfuse3-dev is not installed"
    try:
        with tempfile.TemporaryDirectory() as folder, mounted(Path(folder)):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be mounted: {error}"


@functools.cache
def program() -> Path:
    """Compile the file system, once. It is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="latency_fs_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
    ).stdout.split()
    made = folder / "latency_fs"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", SOURCE, "-o", made, *flags], check=True)
    return made


@contextlib.contextmanager
def mounted(folder: Path, **options: int) -> Iterator[Path]:
    """Show a folder at another place, read-only, for a block; `options` are those of `latency_fs.c`."""
    place = Path(tempfile.mkdtemp(prefix="far_"))
    words = ",".join(f"{name}={value}" for name, value in options.items())
    command = [program(), folder, place, "-f", *(["-o", words] if words else [])]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        for _ in range(1000):
            if os.path.ismount(place) or server.poll() is not None:
                break
            time.sleep(0.01)
        if not os.path.ismount(place):
            said = server.communicate(timeout=10)[1] if server.poll() is not None else b"nothing"
            raise OSError(f"it said {said.decode(errors='replace').strip()}")
        yield place
    finally:
        # Lazily: what is still open is let go when its owner closes it.
        subprocess.run(["fusermount3", "-u", "-z", place], check=False, capture_output=True)
        server.terminate()
        server.communicate()
        for _ in range(200):  # the kernel may still be busy with it
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.01)
        else:
            place.rmdir()


@functools.cache
def place_of(path: str) -> str:
    """Return where a file is seen from 5 ms away, until the program ends."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return str(stack.enter_context(mounted(Path(path).parent, delay_us=5000)) / Path(path).name)
