"""Stamps: the text in a compiled bridge that says which torch, C++ ABI and Python it was compiled for."""

from __future__ import annotations

import re
import struct
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple

import torch

_STAMP = re.compile(
    rb"zerocopy-bridge-stamp: abi=(?P<abi>\d+) torch=(?P<torch>\S+) cxx11abi=(?P<cxx11_abi>[01]) "
    rb"python=(?P<python>[^\s;]+);"
)
# Names of torch's libraries among the strings of a shared object, which end with zeros.
_LIBRARY = re.compile(rb"(?<=\0)lib(?:c10|torch\w*)\.so[.\d]*(?=\0)")
_FINAL = re.compile(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?")


class Stamp(NamedTuple):
    """Facts that decide whether a bridge can be loaded into this process."""

    abi: int  #: of zerocopy's table of functions
    torch: str  #: the full version
    cxx11_abi: int
    python: str  #: the tag of extension modules

    def __str__(self) -> str:
        return (
            f"zerocopy-bridge-stamp: abi={self.abi} torch={self.torch} cxx11abi={self.cxx11_abi} "
            f"python={self.python};"
        )


def running_stamp(abi: int) -> Stamp:
    """Return the stamp of a bridge that was compiled for this process."""
    # The first suffix has the tag. sysconfig takes milliseconds to import.
    python = EXTENSION_SUFFIXES[0].removeprefix(".").removesuffix(".so")
    return Stamp(abi, str(torch.__version__), int(torch.compiled_with_cxx11_abi()), python)


def stamp_in(content: bytes) -> Stamp | None:
    """Return the stamp in the bytes of a shared object; None if it has no stamp."""
    found = _STAMP.search(content)
    if found is None:
        return None
    return Stamp(
        int(found["abi"]), found["torch"].decode(), int(found["cxx11_abi"]), found["python"].decode()
    )


def libraries_in(content: bytes) -> list[str]:
    """Return the names of torch's libraries that a shared object is linked to."""
    return [name.decode() for name in _LIBRARY.findall(content)]


def is_whole(content: bytes) -> bool:
    """Return whether a shared object of 64 bits has all bytes that the dynamic linker would map.

    The linker does not check this, and its first access to a missing page would end the process.
    """
    try:
        (table,) = struct.unpack_from("=Q", content, 32)
        size, count = struct.unpack_from("=HH", content, 54)
        segments = [struct.unpack_from("=8xQ16xQ", content, table + i * size) for i in range(count)]
    except struct.error:
        return False
    return content[:5] == b"\x7fELF\2" and all(begin + length <= len(content) for begin, length in segments)


def release_of(version: str) -> str:
    """Return the part of a version that fixes the layout of torch's classes.

    That is the minor release, since builds and patch releases of it are alike; of a pre-release, the whole version.
    """
    public = version.partition("+")[0]
    final = _FINAL.fullmatch(public)
    return final[1] if final else public


def mismatch(found: Stamp | None, running: Stamp, *, exact: bool) -> str:
    """Return why a bridge cannot be loaded here; an empty string if it can.

    Parameters
    ----------
    found
        The stamp of the bridge.
    running
        The stamp that this process needs.
    exact
        Whether the full version of torch must be the same, or only the minor release.
    """
    if found is None:
        return "it has no stamp of zerocopy"
    if found.abi != running.abi:
        return f"it is for another release of zerocopy (its table of functions is {found.abi}, not {running.abi})"
    same = found.torch == running.torch if exact else release_of(found.torch) == release_of(running.torch)
    if not same:
        return f"it was compiled for PyTorch {found.torch}, and this is PyTorch {running.torch}"
    if found.cxx11_abi != running.cxx11_abi:
        return f"it was compiled with the C++ ABI {found.cxx11_abi}, and PyTorch with {running.cxx11_abi}"
    if found.python != running.python:
        return f"it was compiled for {found.python}, and this is {running.python}"
    return ""


def file_names(version: str, cxx11_abi: int) -> list[str]:
    """Return the names that a bridge may have in the package: the same as ``cmake/Torch.cmake`` gives it.

    A system's torch has libraries with other names than that of the package index, and its bridges are linked to these.
    """
    name = f"libzerocopy_bridge-{release_of(version)}-{cxx11_abi}"
    return [f"{name}.so", f"{name}-system.so"]
