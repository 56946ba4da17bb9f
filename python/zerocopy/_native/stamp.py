"""Stamps: the text in a compiled bridge that says which torch, C++ ABI and Python it was compiled for."""

from __future__ import annotations

import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import torch

_STAMP = re.compile(
    rb"zerocopy-bridge-stamp: abi=(?P<abi>\d+) torch=(?P<torch>\S+) cxx11abi=(?P<cxx11_abi>[01]) "
    rb"python=(?P<python>[^\s;]+);"
)
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


def read_stamp(path: Path) -> Stamp | None:
    """Return the stamp of a shared object, which is not loaded; None if it has no stamp."""
    found = _STAMP.search(path.read_bytes())
    if found is None:
        return None
    return Stamp(
        int(found["abi"]), found["torch"].decode(), int(found["cxx11_abi"]), found["python"].decode()
    )


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


def file_name(version: str, cxx11_abi: int) -> str:
    """Return the name of a bridge's file in the package: the same as ``cmake/Torch.cmake`` gives it."""
    return f"libzerocopy_bridge-{release_of(version)}-{cxx11_abi}.so"
