"""Comparing what is loaded lazily with what is loaded at once."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equality
import torch
from conftest import outcome

import zerocopy
from zerocopy import NotYetLoadedTensor

# Parts of messages that differ between calls: addresses, places in torch; and the name of the class.
PASSING = re.compile(r"0x[0-9a-f]+|(?s:\nException raised from.*)|(?<=\n)frame #.*")
CLASSES = re.compile(r"\b(NotYetLoadedTensor|Parameter)\b")


def is_placeholder(value: Any) -> bool:
    """Return whether a value is a placeholder by its very type."""
    return type(value) is NotYetLoadedTensor


def is_dense(value: Any) -> bool:
    """Return whether a value is a tensor or parameter of torch's own with numbers in memory."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not (value.is_quantized or value.is_meta or getattr(value, "is_nested", False))
    )


class _Comparison(equality._Comparison):
    """Compares real tensors in place of the placeholders in `a`."""

    def __init__(self) -> None:
        super().__init__(attributes=True)
        self.met: dict[int, Any] = {}  # placeholders
        self.present: list[str] = []  # where a dense tensor was one already
        self._within = 0

    def value(self, a: Any, b: Any, where: str) -> None:
        if is_placeholder(a):
            self.met[id(a)] = a
            a = a.materialize()
        elif is_dense(a) and not self._within:
            self.present.append(where)
        super().value(a, b, where)

    def object(self, a: Any, b: Any, where: str) -> None:
        is_tensor = isinstance(a, torch.Tensor)
        self._within += is_tensor  # what a tensor consists of comes with it
        if isinstance(a, torch.UntypedStorage):
            self.storage(a, b, where)
        else:
            super().object(a, b, where)
        self._within -= is_tensor


class _Visible(_Comparison):
    """Compares of a storage what tensors show: operations leave the rest of their results uninitialized."""

    def tensor(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        super().tensor(a, b, where)
        if is_dense(a) and a.numel():
            assert _shown(a) == _shown(b), f"{where}: values differ"

    def storage(self, a: torch.UntypedStorage, b: torch.UntypedStorage, where: str) -> None:
        assert a.nbytes() == b.nbytes(), f"{where}: storages of {a.nbytes()} and {b.nbytes()} bytes"
        if a.nbytes():
            self.alive += (a, b)
            self.paired(("storage", a._cdata), ("storage", b._cdata), where)


def _shown(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach()
    plain = plain.conj() if plain.is_conj() else plain
    plain = torch._neg_view(plain) if plain.is_neg() else plain
    plain = plain.clone(memory_format=torch.contiguous_format)
    return equality.storage_bytes(equality.untyped(plain))


def compared(lazy: Any, eager: Any) -> tuple[list[Any], list[str]]:
    """Assert that all is the same once materialized. Return the placeholders, and where tensors were already real."""
    comparison = _Comparison()
    with deep_recursion():
        comparison.value(lazy, eager, "root")
    return list(comparison.met.values()), comparison.present


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Let a comparison go as deep as some of the objects are."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def placeholders_in(value: Any) -> list[Any]:
    """Return every placeholder of an object, once, loading none."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if is_placeholder(value):
            found.setdefault(id(value), value)
        elif id(value) not in seen and not isinstance(value, (type, torch.Tensor)):
            seen.add(id(value))
            for part in _parts(value):
                visit(part)

    with deep_recursion():
        visit(value)
    return list(found.values())


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()


class Named(dict[str, Any]):
    """Arguments by name, at the end of a tuple of arguments."""


def called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return what a function gives for arguments, the last of which may be :class:`Named`."""
    if arguments and isinstance(arguments[-1], Named):
        return function(*arguments[:-1], **arguments[-1])
    return function(*arguments)


def answer(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return ``outcome(call)``, from the same random numbers each time, and messages without what passes."""
    # Of the CPU alone: torch.manual_seed formats a stack for each device.
    torch.default_generator.manual_seed(0)
    found = outcome(call)
    if found[0] == "value":
        return found
    return (*found[:2], CLASSES.sub("Tensor", PASSING.sub("", found[2])))


def same_on_both(source: Any, call: Callable[[Any], Any]) -> str:
    """Assert that a call does the same to what is loaded lazily and at once; return "value" or "error".

    Its result has only those placeholders that it was called with, where the other has the tensors
    themselves. Both change the same arguments, and share the same memory with them.
    """
    eager, lazy = zerocopy.load(source), zerocopy.lazy_load(source)
    own = placeholders_in(lazy)
    expected, found = answer(lambda: call(eager)), answer(lambda: call(lazy))
    assert found[0] == expected[0], (found, expected)
    if expected[0] == "error":
        assert found == expected, (found, expected)
    else:
        assert not {*map(id, placeholders_in(found[1]))} - {*map(id, own)}, "the result is a placeholder"
    _Visible().value([found[1], lazy], [expected[1], eager], "(result, argument)")
    return found[0]


def assert_all(check: Callable[[Any], bool], names: Iterable[Any], at_least: float = 0.0) -> None:
    """Assert that a check fails for no name, and returns True for a share of them; list those that fail."""
    found = {name: outcome(lambda name=name: check(name)) for name in names}
    wrong = [
        f"{name}: {result[1].__name__}: {result[2]}" for name, result in found.items() if result[0] == "error"
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(result[1] for result in found.values()) >= at_least * len(found) > 0
