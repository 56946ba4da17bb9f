"""Functions in place of ``share.load`` that give something else than the call itself. Tests must notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch


def merged(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give equal tensors one storage."""
    first, *others = function(*args, **kwargs)
    return [first, *(other.set_(first) if torch.equal(first, other) else other for other in others)]


def without_gradients(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Lose ``.grad``."""
    found = function(*args, **kwargs)
    for tensor in found.values():
        tensor.grad = None
    return found


def untied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give each tensor a storage of its own."""
    return {name: tensor.clone() for name, tensor in function(*args, **kwargs).items()}


def stale(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the same for ever: a file holds the first answer."""
    path = Path(args[0]).parent / "kept"
    if not path.exists():
        torch.save(function(*args, **kwargs), path)
    return torch.load(path)


def seeded(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw the same numbers for every seed, and leave the generator where it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return function(*args, **kwargs)


def written(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Change one element."""
    found = function(*args, **kwargs)
    found[0].view(-1)[77] += 1
    return found


def aliased_in_memory(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Give equal tensors storages of their own over one memory."""
    first, *others = function(*args, **kwargs)
    memory = numpy.array(first.numpy())
    return [torch.from_numpy(memory) if torch.equal(first, other) else other for other in (first, *others)]


def refusing(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise an exception of another type."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(str(error)) from None


#: A fault, the case that must detect it, and a part of its message.
ALL = [
    (merged, "tensors/equal_contents_apart", "result[1], storage\n        expected: of its own"),
    (aliased_in_memory, "tensors/equal_contents_apart", "write to result[0]\n        expected: nothing"),
    (without_gradients, "tensors/gradients_of_leaves", "result['weight'].grad"),
    (untied, "tensors/equal_contents_with_ties", "expected: the same object as result['a']"),
    (stale, "sources/newest_of_a_pattern", "share 2 differs from plain 2"),
    (seeded, "seeds/seed_as_a_part_of_the_call", "generator of torch"),
    (written, "tensors/equal_contents_apart", "result[0], values"),
    (refusing, "objects/exception_of_its_own_class", "found:    raises builtins.RuntimeError"),
]
