"""Functions that depend on something besides their arguments: test_share.py.

Each is given a folder without its first slash: so no argument names a file.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path
from typing import Any


def text(folder: str) -> str:
    return Path(f"/{folder}/a").read_text()


def newest(folder: str) -> str:
    return max(Path("/", folder).glob("a*")).name


def exists(folder: str) -> bool:
    return Path(f"/{folder}/late").exists()


def may_read(folder: str) -> bool:
    return os.access(f"/{folder}/late", os.R_OK)


def is_link(folder: str) -> bool:
    return Path(f"/{folder}/a").is_symlink()


def by_libc(folder: str) -> bytes:
    libc = ctypes.CDLL(None)
    content = ctypes.create_string_buffer(100)
    file = libc.open(f"/{folder}/a".encode(), 0)
    libc.read(file, content, 99)
    libc.close(file)
    return content.value


def by_stdio(folder: str) -> bytes:
    libc = ctypes.CDLL(None)
    libc.fopen.restype = libc.fgets.restype = ctypes.c_void_p
    content = ctypes.create_string_buffer(100)
    file = ctypes.c_void_p(libc.fopen(f"/{folder}/a".encode(), b"r"))
    libc.fgets(content, 99, file)
    libc.fclose(file)
    return content.value


def database(folder: str) -> list[Any]:
    connection = sqlite3.connect(f"/{folder}/a")
    try:
        return connection.execute("SELECT value FROM numbers").fetchall()
    finally:
        connection.close()


def in_child(folder: str) -> str:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(text, (folder,))


def through_own_link(folder: str) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "x").symlink_to(f"/{folder}/a")
        return Path(temporary, "x").read_text()


def renamed_meanwhile(folder: str) -> str:
    renamed = Path(f"/{folder}/a").rename(f"/{folder}/moved")
    try:
        return renamed.read_text()
    finally:
        renamed.rename(f"/{folder}/a")


# ------------------------------------------------------------------- what must not count


def extracted(folder: str) -> str:
    """Read files that have older times than the call, and are its own."""
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(f"/{folder}/a.tar") as archive:
            archive.extractall(temporary)
        shutil.copy2(f"{temporary}/a", f"{temporary}/copied")
        Path(temporary, "copied").rename(f"{temporary}/b")
        return Path(temporary, "a").read_text() + Path(temporary, "b").read_text()


def with_scratch(folder: str) -> str:
    """Write and read files of its own, beside and in the temporary folder."""
    scratch = Path(f"/{folder}/scratch")
    found = scratch.exists()
    scratch.write_text("scratch")
    assert list(Path("/", folder).iterdir())
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "x").write_text("x")
        assert Path(temporary, "x").read_text() == "x"
    scratch.read_text()
    scratch.unlink()
    Path(f"/{folder}/made").mkdir(exist_ok=True)
    return f"{text(folder)} {found}"


# ------------------------------------------------------------------------ what is not seen


def program(folder: str) -> str:
    return subprocess.run(["/bin/cat", f"/{folder}/a"], capture_output=True, text=True, check=True).stdout


def shell(folder: str) -> int:
    return os.system(f"exit $(cat /{folder}/a)")


def network(_: str) -> str:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(("127.0.0.1", 9))
    return "spoke"


def machine(_: str) -> str:
    import ctypes.util
    import platform

    return f"{ctypes.util.find_library('c')} {platform.processor()}"


def text_and_meanwhile(folder: str) -> str:
    found = text(folder)
    meanwhile(folder)  # type: ignore[name-defined]  # noqa: F821
    return found


def talkative(_: str) -> int:
    logger = logging.getLogger("sources")
    logger.warning("look at %s", "this")
    logger.info("never mind")
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    warnings.warn("odd", UserWarning, stacklevel=1)
    with warnings.catch_warnings(record=True):
        warnings.warn("caught", UserWarning, stacklevel=1)
    return 1


# --------------------------------------------------------------------- variables and folders


def rank(_: str) -> str | None:
    return os.environ.get("LOCAL_RANK")


def variable(_: str) -> str | None:
    return os.environ.get("ZC_TEST_VARIABLE")


def variable_in_bytes(_: str) -> bytes | None:
    return os.environb.get(b"ZC_TEST_VARIABLE")


def variables(_: str) -> str | None:
    return dict(os.environ).get("ZC_TEST_VARIABLE")


def folder_itself(_: str) -> str:
    return os.path.abspath("a")


def relative(_: str) -> str:
    return Path("here").read_text() if Path("here").exists() else "none"


def folder_listed(_: str) -> list[str]:
    return os.listdir()


def folder_scanned(_: str) -> list[str]:
    return [path.name for path in Path().iterdir()]


def variables_shown(_: str) -> bool:
    return "ZC_TEST_VARIABLE" in str(os.environ)


def argument_found(_: str) -> int:
    return sys.argv.index(sys.argv.copy()[0])


def arguments_reversed(_: str) -> list[str]:
    return list(reversed(sys.argv))
