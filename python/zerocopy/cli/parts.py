"""Reads a part of one tensor of a checkpoint: of its bytes only those that the part needs."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch

from zerocopy import _torch
from zerocopy.cli.contents import Entry
from zerocopy.cli.plain_side import is_big_endian
from zerocopy.cli.reading import OpenFile, Trouble
from zerocopy.errors import Error
from zerocopy.lazy.indexing import Geometry
from zerocopy.lazy.opening import open as open_checkpoint

_SLICE = re.compile(
    r"^(-?\d{1,18})?:(-?\d{1,18})?(?::(\d{1,9})?)?$"
)  # torch multiplies a step without a check


def split_name(text: str) -> tuple[str, str]:
    """Return the name in ``NAME[SLICE]``, and the slice without its brackets."""
    name, bracket, rest = text.rpartition("[")
    return (name, rest[:-1]) if bracket and rest.endswith("]") else (text, "")


def index_of(text: str) -> tuple[Any, ...]:
    """Return the index that ``0, 2:4, ..., None`` spells; an empty text selects everything.

    Raises
    ------
    Trouble
        If the text is not such an index.
    """
    return tuple(map(_item, text.split(","))) if text.strip() else (...,)


def _item(text: str) -> Any:
    text = text.strip()
    if text in ("...", "None"):
        return ... if text == "..." else None
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    found = _SLICE.match(text)
    if found is None or found.group(3) == "0":
        raise Trouble(
            f"expected integers, slices with a positive step, '...' and None in the brackets, found '{text}'"
        )
    return slice(*(None if number is None else int(number) for number in found.groups()))


def read_part(path: str, entry: Entry, index: tuple[Any, ...]) -> torch.Tensor:
    """Return ``tensor[index]`` of the tensor that an entry describes."""
    try:
        if entry.inside:
            return _read_inside(entry, index)
        with open_checkpoint(path, unknown="stub", device="cpu") as checkpoint:
            if entry.name not in checkpoint:
                raise Trouble(
                    f"{entry.name} takes {entry.made_by}, which this release of torch does not allow to a file"
                )
            if index == (...,):
                return checkpoint.get_tensor(entry.name)
            return checkpoint.get_slice(entry.name)[index]
    except Error:
        raise
    except RuntimeError as error:
        if entry.stride is not None:
            raise Trouble(f"{entry.name}: {error}") from None
        raise Trouble(f"{entry.name} is not dense, and has no parts: name it without brackets") from None
    except (IndexError, TypeError) as error:
        raise Trouble(f"{entry.name}: {error}") from None


def _read_inside(entry: Entry, index: tuple[Any, ...]) -> torch.Tensor:
    """Read a tensor that an object holds: nobody makes the object, so no checkpoint knows the name."""
    if entry.offset is None or entry.shape is None or entry.stride is None:
        raise Trouble(
            f"{entry.name} is compressed, or made of several parts, inside an object: it cannot be shown"
        )
    dtype: torch.dtype = getattr(torch, entry.dtype)
    with contextlib.closing(OpenFile(entry.file)) as file:
        if is_big_endian(file):
            raise Trouble(f"{entry.name} is big-endian, inside an object: it cannot be shown")
        part = Geometry(0, entry.shape, entry.stride).at(index)
        size = _torch.element_size(dtype)
        span = 1 + sum((n - 1) * step for n, step in zip(part.size, part.stride, strict=True))
        if 0 in part.size:
            return torch.empty(part.size, dtype=dtype, device="cpu")
        content = bytearray(file.read(entry.offset + part.offset * size, span * size))
    return torch.frombuffer(content, dtype=dtype).as_strided(tuple(part.size), tuple(part.stride))
