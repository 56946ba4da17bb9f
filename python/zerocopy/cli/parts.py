"""Reads a part of one tensor of a checkpoint, and only the bytes of that part."""

from __future__ import annotations

import re
from typing import Any

import torch

from zerocopy.catalogue.contents import Entry
from zerocopy.cli.runner import Trouble
from zerocopy.errors import Error
from zerocopy.lazy.opening import open as open_checkpoint

# A step has at most 9 digits, because torch does not check its products for overflow.
_SLICE = re.compile(r"^(-?\d{1,18})?:(-?\d{1,18})?(?::(\d{1,9})?)?$")


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
        with open_checkpoint(path, unknown="stub", device="cpu") as checkpoint:
            if entry.name not in checkpoint:
                raise Trouble(
                    f"{entry.name} takes a class or function that is not on the allow-list: zerocopy scan names it"
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
